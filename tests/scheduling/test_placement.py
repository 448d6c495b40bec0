"""Where a job begins."""

import numpy as np
import pytest
from tests.fixtures.scheduling import make_job, text

from superfluid.scheduling.placement import EXPECTED_REPLY_TOKENS, PlacementRules, SeedChooser, count_runs
from superfluid.scheduling.prefix import PrefixIndex
from superfluid.scheduling.rates import Rates
from superfluid.scheduling.sequence import Lane, Sequence


def _sequence(tokens: list[int], order: int = 0) -> Sequence:
    job = make_job(tokens, max_tokens=EXPECTED_REPLY_TOKENS)
    return Sequence(job, np.array(tokens, np.int32), order=order, window_tokens=4096, is_replayed=False)


def _rates(decode_seconds: float = 0.01) -> Rates:
    rates = Rates()
    rates.observe_prefill(100, 0.8)
    for lanes in range(1, 9):
        rates.observe_decode(lanes, decode_seconds * lanes)
    return rates


class _House:
    """Lanes, an index and the chooser over them."""

    def __init__(self, lanes: int, decode_seconds: float = 0.01) -> None:
        self.lanes = [Lane(index) for index in range(lanes)]
        self.index = PrefixIndex(limit_bytes=10**9, is_nesting=True)
        self.rates = _rates(decode_seconds)
        self.chooser = SeedChooser(self.lanes, self.index, self.rates, PlacementRules(10**9, can_truncate=True))

    def leave(self, lane: int, tokens: list[int]) -> None:
        self.occupy(lane, tokens)
        self.lanes[lane].release()

    def occupy(self, lane: int, tokens: list[int]) -> None:
        self.lanes[lane].place(_sequence(tokens), 0, tick=0)
        self.lanes[lane].length = len(tokens)

    def choose(self, tokens: list[int]) -> tuple[int, int, int | None, int | None]:
        """Lane, kept tokens, entry id and source lane."""
        sequence = _sequence(tokens)
        seed = self.chooser.choose(sequence, self.chooser.survey(sequence, tick=1))
        entry = None if seed.entry is None else seed.entry.entry_id
        return seed.lane.index, seed.keep, entry, None if seed.source is None else seed.source.index


def test_choose_empty_house_takes_the_lowest_lane() -> None:
    assert _House(4).choose(text(1, 100)) == (0, 0, None, None)


def test_choose_best_resident_match_stays_where_it_is() -> None:
    house = _House(4)
    house.leave(1, text(1, 100))
    house.leave(2, [*text(1, 100), *text(2, 100)])
    assert house.choose([*text(1, 100), *text(2, 100), *text(3, 50)]) == (2, 200, None, None)


def test_choose_match_of_a_template_header_counts_for_nothing() -> None:
    house = _House(2)
    house.leave(1, text(1, 100))
    assert house.choose([*text(1, 10), *text(2, 100)]) == (0, 0, None, None)


def test_choose_fully_resident_prompt_evaluates_two_tokens_again() -> None:
    house = _House(1)
    house.leave(0, text(1, 100))
    assert house.choose(text(1, 100)) == (0, 98, None, None)


def test_choose_longer_host_entry_beats_a_short_resident_match() -> None:
    house = _House(2)
    house.leave(0, text(1, 100))
    entry = house.index.add(_sequence([*text(1, 100), *text(2, 900)]).stream, 0, is_transient=False)
    lane, keep, entry_id, source = house.choose([*text(1, 100), *text(2, 900), *text(3, 9)])
    assert (lane, keep, entry_id, source) == (1, 1000, entry.entry_id, None)


def test_choose_resident_match_beats_an_equal_host_entry() -> None:
    house = _House(2)
    house.index.add(_sequence(text(1, 500)).stream, 0, is_transient=False)
    house.leave(1, text(1, 500))
    assert house.choose([*text(1, 500), *text(3, 9)]) == (1, 500, None, None)


def test_choose_running_lane_with_the_prefix_is_saved_and_imported() -> None:
    house = _House(3)
    house.occupy(0, [*text(1, 500), *text(2, 20)])
    assert house.choose([*text(1, 500), *text(3, 9)]) == (1, 500, None, 0)


def test_choose_short_match_is_computed_again_when_the_state_is_huge() -> None:
    house = _House(3)
    house.occupy(0, [*text(1, 20), *text(2, 4000)])
    house.rates.observe_save(1000, 30.0)
    assert house.choose([*text(1, 20), *text(3, 9)]) == (1, 0, None, None)


def test_choose_resident_match_across_a_gap_moves_next_to_the_others() -> None:
    house = _House(8)
    house.occupy(0, text(9, 50))
    house.leave(6, text(1, 500))
    assert house.choose([*text(1, 500), *text(3, 9)]) == (1, 500, None, 6)


def test_choose_resident_match_across_a_gap_stays_where_gaps_cost_nothing() -> None:
    house = _House(8, decode_seconds=0.0)
    house.occupy(0, text(9, 50))
    house.leave(6, text(1, 500))
    assert house.choose([*text(1, 500), *text(3, 9)]) == (6, 500, None, None)


def test_survey_lane_given_away_in_this_tick_is_a_leader_but_no_source() -> None:
    house = _House(2)
    house.lanes[0].place(_sequence(text(1, 300)), 0, tick=1)
    survey = house.chooser.survey(_sequence([*text(1, 300), *text(2, 30)]), tick=1)
    assert survey.lanes == ()
    assert (survey.leader, survey.coming_tokens) == (house.lanes[0].sequence, 300)


@pytest.mark.parametrize(("lanes", "runs"), [((), 0), ((3,), 1), ((0, 1, 2), 1), ((0, 2, 4), 3), ((5, 4, 1), 2)])
def test_count_runs_of_consecutive_lane_ids(lanes: tuple[int, ...], runs: int) -> None:
    assert count_runs(lanes) == runs
