"""Which leftover is exported when, and for what: the rules, on the real books with a clock and a disk of the test's."""

import pytest
from tests.fixtures.scheduling import Shadow, make_job, make_settings, text
from tests.fixtures.tick_loop import SteppedClock

from superfluid.domain.job import ParkKind
from superfluid.scheduling.parks import MIN_PARK_TOKENS
from superfluid.worker.leftovers import RETRY_SECONDS, SETTLE_SECONDS, Export, Leftovers


class Stage:
    """Lanes in which jobs of 300 tokens have ended, one after another."""

    def __init__(self, *lengths: int, host_cache_bytes: int = 10_000_000) -> None:
        self.shadow = Shadow(make_settings(lanes=max(1, len(lengths)), host_cache_bytes=host_cache_bytes))
        self.clock = SteppedClock()
        self.can_write = True
        scheduler = self.shadow.scheduler
        self.parks = scheduler.parks
        self.leftovers = Leftovers(scheduler.parks, scheduler.copies, lambda: self.can_write, self.clock)
        for seed, length in enumerate(lengths):
            self.shadow.submit(make_job(text(seed, length), max_tokens=1))
            self.shadow.step()
        self.shadow.run()

    def note(self, kind: ParkKind = ParkKind.SESSION) -> None:
        for lane in self.parks.unsettled_lanes():
            lane.park = kind
            self.leftovers.note(lane, can_have_file=kind is not ParkKind.NONE and lane.length >= MIN_PARK_TOKENS)

    def next(self, *, is_busy: bool = False) -> tuple[int, bool, bool] | None:
        """Lane, file, copy."""
        export = self.leftovers.next_export(is_busy=is_busy)
        self.leftovers.check_integrity(self.parks.lanes)
        return None if export is None else (export.lane, export.has_file, export.has_copy)


@pytest.mark.parametrize(
    ("length", "host_bytes", "kind", "expected"),
    [
        (300, 10_000_000, ParkKind.SESSION, (0, True, True)),
        (300, 10_000_000, ParkKind.NONE, (0, False, True)),
        (300, 0, ParkKind.SESSION, (0, True, False)),
        (100, 10_000_000, ParkKind.SESSION, (0, False, True)),
        (100, 0, ParkKind.SESSION, None),
        (20, 10_000_000, ParkKind.SESSION, None),
    ],
)
def test_leftover_is_exported_once_for_whoever_wants_it(
    length: int, host_bytes: int, kind: ParkKind, expected: tuple[int, bool, bool] | None
) -> None:
    stage = Stage(length, host_cache_bytes=host_bytes)
    stage.note(kind)
    assert stage.next() is None, "it has not settled"
    stage.clock.now += SETTLE_SECONDS
    assert stage.next() == expected
    assert stage.next() is None
    assert not stage.leftovers
    assert stage.parks.unsettled_lanes() == []
    assert stage.leftovers.seconds_to_wait() is None


def test_leftovers_are_exported_in_the_order_in_which_they_were_left() -> None:
    stage = Stage(300, 310, 320)
    stage.note()
    stage.clock.now += SETTLE_SECONDS
    assert [stage.next(), stage.next(), stage.next(), stage.next()] == [
        (0, True, True),
        (1, True, True),
        (2, True, True),
        None,
    ]


def test_leftover_that_the_disk_has_no_time_for_is_copied_now_and_written_later() -> None:
    stage = Stage(300)
    stage.can_write = False
    stage.note()
    stage.clock.now += SETTLE_SECONDS
    assert stage.next() == (0, False, True)
    assert stage.leftovers.seconds_to_wait() == RETRY_SECONDS
    assert stage.next() is None
    stage.can_write = True
    assert stage.next() == (0, True, False)
    assert not stage.leftovers


def test_leftover_that_waits_for_the_disk_holds_up_no_other() -> None:
    stage = Stage(300, 100)
    stage.can_write = False
    stage.note()
    stage.clock.now += SETTLE_SECONDS
    assert stage.next() == (0, False, True)
    assert stage.next() == (1, False, True)


def test_leftover_beside_running_jobs_waits_for_its_share_of_the_time() -> None:
    stage = Stage(300, 310)
    stage.note()
    stage.clock.now += SETTLE_SECONDS
    assert stage.next(is_busy=True) == (0, True, True)
    stage.leftovers.took_time(1.0)
    assert stage.next(is_busy=True) is None
    stage.clock.now += 50
    assert stage.next(is_busy=True) is None
    stage.clock.now += 50
    assert stage.next(is_busy=True) == (1, True, True)


def test_leftover_whose_lane_is_gone_is_not_exported() -> None:
    stage = Stage(300)
    stage.note()
    left = stage.leftovers.pop(0)
    assert left is not None
    assert left.is_file_open
    stage.clock.now += SETTLE_SECONDS
    assert stage.next() is None


def test_leftovers_in_a_hurry_are_written_at_once_and_not_copied() -> None:
    stage = Stage(300)
    stage.note()
    stage.leftovers.hurry()
    (left,) = [stage.leftovers.get(0)]
    assert left is not None
    assert stage.leftovers.next_export(is_busy=False) == Export(0, left.parkable, has_file=True, has_copy=False)
