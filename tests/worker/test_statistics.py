from msgspec.structs import replace
from tests.fixtures.scripted_models import FACTS

from superfluid.worker.journal import JobJournal
from superfluid.worker.statistics import EMPTY_TICK, model_statistics, no_statistics
from superfluid.worker.totals import TickTotals

TWO_LANES = replace(FACTS, lanes=2, window_tokens=600)


def test_pool_of_a_loaded_model_has_its_size_before_the_first_tick() -> None:
    statistics = model_statistics(JobJournal(), TickTotals(), is_ready=True, failures=0, respawns=0, facts=TWO_LANES)
    assert (statistics.pool_blocks_used, statistics.pool_blocks_total) == (0, 6)


def test_pool_of_a_working_model_is_what_its_tick_says() -> None:
    totals = TickTotals()
    totals.add(replace(EMPTY_TICK, pool_blocks_used=1, pool_blocks_total=5))
    statistics = model_statistics(JobJournal(), totals, is_ready=True, failures=0, respawns=0, facts=TWO_LANES)
    assert (statistics.pool_blocks_used, statistics.pool_blocks_total) == (1, 5)


def test_pool_of_a_model_that_is_not_there_has_no_size() -> None:
    assert no_statistics().pool_blocks_total == 0
