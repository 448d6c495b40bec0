"""What is lost with a lane that is given away, and whether that is saved first."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.fixtures.scheduling import BYTES_PER_TOKEN, Shadow, make_job, make_settings, text

from superfluid.domain.memory import MemoryRules
from superfluid.scheduling.losses import Loss, Losses
from superfluid.scheduling.prefix import CheckpointKind, PrefixIndex
from superfluid.scheduling.rates import Rates
from superfluid.scheduling.sequence import Lane
from superfluid.scheduling.token_tree import Tokens

SHARED = text(1, 1000)
"""What a herd of requests begins with."""
NEW_MEMORY_SECONDS_PER_TOKEN = 0.2e-3


def _tokens(*parts: list[int]) -> Tokens:
    return np.array([token for part in parts for token in part], np.int32)


@dataclass
class _House:
    """Lanes, an index, and what is lost with the first lane, which holds ``SHARED`` and 40 tokens."""

    can_truncate: bool = True
    index: PrefixIndex = field(init=False)
    lanes: list[Lane] = field(init=False)
    rates: Rates = field(default_factory=Rates)

    def __post_init__(self) -> None:
        self.index = PrefixIndex(limit_bytes=10**9, is_nesting=self.can_truncate)
        self.lanes = [Lane(index) for index in range(2)]
        self.hold(0, SHARED, text(2, 40))
        self.rates.observe_prefill(100, 0.25)
        self.rates.observe_entry(1, 1000)
        self.losses = Losses(self.lanes, self.index, self.rates, host_cache_bytes=10**9, can_truncate=self.can_truncate)

    def hold(self, lane: int, *parts: list[int]) -> None:
        self.lanes[lane].tokens = _tokens(*parts)
        self.lanes[lane].length = len(self.lanes[lane].tokens)

    def keep(self, *parts: list[int], uses: int = 0, checkpoint: CheckpointKind | None = None) -> None:
        entry = self.index.add(_tokens(*parts), 0, is_transient=False)
        entry.uses, entry.checkpoint = uses, checkpoint


def _nothing_else(house: _House) -> None:
    del house


def _own_earlier_turn(house: _House) -> None:
    house.keep(SHARED)


def _entry_that_goes_on_differently(house: _House) -> None:
    house.keep(SHARED, text(3, 20))


def _entry_that_several_began_with(house: _House) -> None:
    house.keep(SHARED, uses=2)


def _seam_of_a_herd(house: _House) -> None:
    house.keep(SHARED, checkpoint=CheckpointKind.SHARED)


def _lane_that_goes_on_differently(house: _House) -> None:
    house.hold(1, SHARED, text(3, 20))


def _own_earlier_turn_and_such_a_lane(house: _House) -> None:
    house.keep(SHARED)
    house.hold(1, SHARED, text(3, 20))


def _longer_own_turn_and_such_a_lane(house: _House) -> None:
    house.keep(SHARED, text(2, 40)[:20])
    house.hold(1, SHARED, text(3, 20))


def _lane_with_all_of_it(house: _House) -> None:
    house.hold(1, SHARED, text(2, 40), text(4, 5))


def _lane_of_an_adapter(house: _House) -> None:
    house.hold(1, SHARED, text(3, 20))
    house.lanes[1].adapter = 2


@pytest.mark.parametrize(
    ("arrange", "lost", "is_branch"),
    [
        (_nothing_else, 1040, False),
        (_own_earlier_turn, 40, False),
        (_entry_that_goes_on_differently, 40, True),
        (_entry_that_several_began_with, 40, True),
        (_seam_of_a_herd, 40, True),
        (_lane_that_goes_on_differently, 40, True),
        (_own_earlier_turn_and_such_a_lane, 40, True),
        (_longer_own_turn_and_such_a_lane, 20, False),
        (_lane_with_all_of_it, 0, True),
        (_lane_of_an_adapter, 1040, False),
    ],
)
def test_loss_is_what_nothing_else_holds(arrange: Callable[[_House], None], lost: int, is_branch: bool) -> None:
    house = _House()
    arrange(house)
    assert house.losses.of(house.lanes[0], 0) == Loss(lost, 1040, is_branch)


@pytest.mark.parametrize(("keep", "lost"), [(0, 1040), (1000, 40), (1024, 16), (1025, 0), (1040, 0)])
def test_loss_to_somebody_who_takes_the_beginning_over_is_the_rest_and_a_branch(keep: int, lost: int) -> None:
    house = _House()
    assert house.losses.of(house.lanes[0], keep) == Loss(lost, 1040, is_branch=lost > 0 and keep > 0)


def test_loss_of_a_state_that_cannot_be_cut_is_covered_by_whole_entries_alone() -> None:
    house = _House(can_truncate=False)
    _lane_that_goes_on_differently(house)
    _entry_that_goes_on_differently(house)
    assert house.losses.of(house.lanes[0], 0).tokens == 1040
    _seam_of_a_herd(house)
    assert house.losses.of(house.lanes[0], 0) == Loss(40, 1040, is_branch=True)


@pytest.mark.parametrize(
    ("lost", "is_branch", "save_ms", "is_saved"),
    [
        # A conversation: all of it, or what it has gone on by.
        (1040, False, 60, True),
        (1040, False, 1299, True),
        (1040, False, 1301, False),
        (55, False, 60, True),
        (55, False, 70, False),
        (32, False, 3, True),
        (31, False, 3, False),
        # A request among others that begin like it.
        (40, True, 60, False),
        (40, True, 13, False),
        (40, True, 12, True),
        (259, True, 60, True),
        # Where it is more than a quarter, it is as good as a conversation.
        (260, True, 324, True),
        (260, True, 326, False),
    ],
)
def test_lane_is_saved_if_having_it_again_would_cost_more_than_the_save(
    lost: int, is_branch: bool, save_ms: float, is_saved: bool
) -> None:
    house = _House()
    house.rates.observe_save(1040, save_ms / 1000)
    assert house.losses.is_worth_saving(house.lanes[0], Loss(lost, 1040, is_branch)) is is_saved


def test_lane_without_time_to_lose_is_saved_for_what_it_may_be_worth() -> None:
    house = _House()
    house.rates.observe_save(1040, 0.045)
    loss = Loss(40, 1040, is_branch=True)
    assert not house.losses.is_worth_saving(house.lanes[0], loss)
    assert house.losses.is_worth_saving(house.lanes[0], loss, is_idle=True)


@pytest.mark.parametrize(("on_disk", "save_ms", "is_saved"), [(1040, 60, False), (1040, 9, True), (999, 60, True)])
def test_lane_that_is_on_the_disk_is_worth_what_reading_it_takes(on_disk: int, save_ms: float, is_saved: bool) -> None:
    """20 ms; or else all of it, or 41 tokens and reading."""
    house = _House()
    house.losses.covered_on_disk = lambda _: on_disk
    house.rates.observe_read(1040, 0.019)
    house.rates.observe_restore(1040, 0.001)
    house.rates.observe_save(1040, save_ms / 1000)
    assert house.losses.is_worth_saving(house.lanes[0], Loss(1040, 1040)) is is_saved
    house.lanes[0].adapter = 1
    assert house.losses.is_worth_saving(house.lanes[0], Loss(1040, 1040)), "files are of the model alone"


@pytest.mark.parametrize(
    ("is_branch", "is_nesting", "grows_by"), [(False, True, 40), (True, True, 1040), (False, False, 1040)]
)
def test_host_memory_grows_by_what_is_new_where_an_earlier_state_goes(
    is_branch: bool, is_nesting: bool, grows_by: int
) -> None:
    house = _House(can_truncate=is_nesting)
    assert house.losses.added_bytes(house.lanes[0], Loss(40, 1040, is_branch)) == grows_by * 1000


# ---- whole plans


def _finish(shadow: Shadow, *parts: list[int]) -> list[int]:
    job = make_job(_tokens(*parts).tolist(), max_tokens=1)
    shadow.submit(job)
    shadow.run()
    return shadow.streams[job.job_id][:-1]


def _make_memory_dear(shadow: Shadow) -> None:
    """A token that is saved into new memory costs a fortieth of computing it, else nearly nothing."""
    shadow.scheduler.rates.observe_save(1000, 0.001)
    shadow.scheduler.rates.observe_entry(1, BYTES_PER_TOKEN)
    seconds = 1000 * NEW_MEMORY_SECONDS_PER_TOKEN
    shadow.scheduler.rates.observe_save(1000, seconds, new_bytes=1000 * BYTES_PER_TOKEN)


def _saved_lengths(shadow: Shadow, *parts: list[int]) -> list[int]:
    """What is saved when somebody new gets a lane."""
    shadow.submit(make_job(_tokens(*parts).tolist(), max_tokens=1))
    return [save.length for save in shadow.step().saves]


@pytest.mark.parametrize(("ready_tokens", "saved"), [(0, []), (2000, [1040])])
def test_request_of_a_herd_is_saved_only_where_memory_is_at_hand(ready_tokens: int, saved: list[int]) -> None:
    shadow = Shadow(make_settings(lanes=2))
    _finish(shadow, SHARED, text(2, 40))
    _finish(shadow, SHARED, text(3, 40))
    _make_memory_dear(shadow)
    shadow.scheduler.memory_at_hand(ready_tokens * BYTES_PER_TOKEN)
    assert _saved_lengths(shadow, SHARED, text(4, 40)) == saved


@pytest.mark.parametrize("ready_tokens", [0, 2000])
def test_conversation_that_nothing_else_holds_is_saved_whatever_memory_costs(ready_tokens: int) -> None:
    shadow = Shadow(make_settings(lanes=1))
    _finish(shadow, text(2, 1000))
    _make_memory_dear(shadow)
    shadow.scheduler.memory_at_hand(ready_tokens * BYTES_PER_TOKEN)
    assert _saved_lengths(shadow, text(3, 50)) == [1000]


@pytest.mark.parametrize(("more", "ready_tokens", "saved"), [(55, 0, [1055]), (45, 0, []), (45, 2000, [1045])])
def test_conversation_that_has_gone_on_a_little_is_saved_again_if_that_pays(
    more: int, ready_tokens: int, saved: list[int]
) -> None:
    shadow = Shadow(make_settings(lanes=1))
    first = _finish(shadow, text(2, 1000))
    shadow.copy(0)
    _finish(shadow, first, text(3, more))
    _make_memory_dear(shadow)
    shadow.scheduler.memory_at_hand(ready_tokens * BYTES_PER_TOKEN)
    assert _saved_lengths(shadow, text(4, 50)) == saved


def test_memory_at_hand_serves_one_save_of_a_plan() -> None:
    shadow = Shadow(make_settings(lanes=2))
    _finish(shadow, SHARED, text(2, 40))
    _finish(shadow, SHARED, text(3, 40))
    _make_memory_dear(shadow)
    shadow.scheduler.memory_at_hand(2000 * BYTES_PER_TOKEN)
    for seed in (4, 5):
        shadow.submit(make_job([*SHARED, *text(seed, 40)], max_tokens=1))
    assert [save.length for save in shadow.step().saves] == [1040]


@pytest.mark.parametrize(("host_tokens", "saved"), [(10_000, [1040]), (3100, [])])
def test_short_branch_pushes_nothing_out_of_host_memory(host_tokens: int, saved: list[int]) -> None:
    memory = MemoryRules(pressure_low_percent=98, pressure_high_percent=99)
    shadow = Shadow(make_settings(lanes=2, host_cache_bytes=host_tokens * BYTES_PER_TOKEN, memory=memory))
    for seed in (11, 12, 13, 14):
        _finish(shadow, text(seed, 1000))
    _finish(shadow, SHARED, text(2, 40))
    _finish(shadow, SHARED, text(3, 40))
    assert _saved_lengths(shadow, SHARED, text(4, 40)) == saved
