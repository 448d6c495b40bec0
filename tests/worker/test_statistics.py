from msgspec.structs import replace
from tests.fixtures.scripted_models import FACTS

from superfluid.worker.journal import JobJournal
from superfluid.worker.protocol import HeldPrefix, LaneState, PrefixesChanged
from superfluid.worker.statistics import EMPTY_TICK, MAX_KEPT, model_statistics, no_statistics
from superfluid.worker.totals import TickTotals
from superfluid.worker.warm_prefixes import WarmPrefixes

TWO_LANES = replace(FACTS, lanes=2, window_tokens=600)


def test_pool_of_a_loaded_model_has_its_size_before_the_first_tick() -> None:
    statistics = model_statistics(JobJournal(), TickTotals(), is_ready=True, failures=0, respawns=0, facts=TWO_LANES)
    assert (statistics.pool_blocks_used, statistics.pool_blocks_total) == (0, 6)


def test_pool_of_a_working_model_is_what_its_tick_says() -> None:
    totals = TickTotals()
    totals.add(replace(EMPTY_TICK, pool_blocks_used=1, pool_blocks_total=5))
    statistics = model_statistics(JobJournal(), totals, is_ready=True, failures=0, respawns=0, facts=TWO_LANES)
    assert (statistics.pool_blocks_used, statistics.pool_blocks_total) == (1, 5)


def test_free_lane_has_the_session_whose_tokens_it_holds() -> None:
    totals, warm = TickTotals(), WarmPrefixes()
    free, busy = LaneState(0, 0, False, 2, 300, 0, 0, 0), LaneState(1, 5, False, 2, 300, 310, 300, 0)
    totals.add(replace(EMPTY_TICK, lanes=[free, busy]))
    warm.take(PrefixesChanged([HeldPrefix(1, 0, 7, 300, [], b""), HeldPrefix(2, 1, 8, 300, [], b"")], []))
    statistics = model_statistics(JobJournal(), totals, is_ready=True, failures=0, respawns=0, warm=warm)
    assert [lane.session for lane in statistics.lanes] == [7, None]


def test_lists_of_kept_prefixes_are_bounded() -> None:
    warm = WarmPrefixes()
    warm.take(PrefixesChanged([HeldPrefix(number, None, 7, number, [], b"") for number in range(100)], []))
    statistics = model_statistics(JobJournal(), TickTotals(), is_ready=True, failures=0, respawns=0, warm=warm)
    assert [prefix.tokens for prefix in statistics.memory_prefixes] == list(range(99, 99 - MAX_KEPT, -1))


def test_pool_of_a_model_that_is_not_there_has_no_size() -> None:
    assert no_statistics().pool_blocks_total == 0
