"""What jobs have left in lanes and nobody has saved yet: which of it is exported next, for what, and when. Worker.

As soon as nothing runs, and beside running jobs within a hundredth of the time.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from superfluid.clock import Clock
from superfluid.scheduling.copies import Copies
from superfluid.scheduling.parks import Parkable, Parks
from superfluid.scheduling.sequence import Lane

SETTLE_SECONDS: Final = 0.15
"""A turn that is answered within this time is not saved: the next one is, and it holds all of this one."""
BUSY_SHARE: Final = 0.01
"""The part of the time that saving may take from running jobs."""
MOST_SAVED_UP_SECONDS: Final = 0.1
RETRY_SECONDS: Final = 1.0


@dataclass(slots=True)
class Leftover:
    """What lies in a lane since ``since``, and whether it is still to be decided if it gets a file, or a copy."""

    parkable: Parkable
    since: float
    is_file_open: bool
    is_copy_open: bool


class Export(NamedTuple):
    """A lane to be exported, for a file, a copy, or both."""

    lane: int
    parkable: Parkable
    has_file: bool
    has_copy: bool


class Leftovers:
    """``can_write`` tells whether a file would be written now."""

    def __init__(self, parks: Parks, copies: Copies, can_write: Callable[[], bool], clock: Clock) -> None:
        self._parks = parks
        self._copies = copies
        self._can_write = can_write
        self._clock = clock
        self._left: dict[int, Leftover] = {}
        self._saved_up = MOST_SAVED_UP_SECONDS
        self._credited_at = clock.monotonic()

    def __bool__(self) -> bool:
        return bool(self._left)

    def note(self, lane: Lane, *, can_have_file: bool) -> None:
        """A free lane that is not settled. It is, if nothing of it can be kept."""
        can_have_copy = self._copies.can_copy(lane.index)
        if not (can_have_file or can_have_copy):
            lane.is_settled = True
        elif lane.index not in self._left:
            parkable = Parkable(lane.held, lane.park, lane.owner)
            self._left[lane.index] = Leftover(parkable, self._clock.monotonic(), can_have_file, can_have_copy)

    def get(self, lane: int) -> Leftover | None:
        return self._left.get(lane)

    def pop(self, lane: int) -> Leftover | None:
        """The lane goes to somebody else, was emptied, or was saved otherwise."""
        return self._left.pop(lane, None)

    def next_export(self, *, is_busy: bool) -> Export | None:
        """The lane that has waited longest, if its time has come and something of it is to be kept; that is then
        settled. ``is_busy``: jobs are running."""
        if not self._left:
            return None
        for index, left in sorted(self._left.items(), key=lambda item: item[1].since):
            if self._clock.monotonic() - left.since < SETTLE_SECONDS or (is_busy and not self.has_time()):
                return None
            has_file, has_copy = self._wanted(index, left, is_busy=is_busy)
            if not (left.is_file_open or left.is_copy_open):
                del self._left[index]
                self._parks.lane(index).is_settled = True
            if has_file or has_copy:
                return Export(index, left.parkable, has_file, has_copy)
        return None

    def has_time(self) -> bool:
        """Whether saving has taken less than its share from running jobs."""
        now = self._clock.monotonic()
        self._saved_up = min(MOST_SAVED_UP_SECONDS, self._saved_up + BUSY_SHARE * (now - self._credited_at))
        self._credited_at = now
        return self._saved_up > 0.0

    def took_time(self, seconds: float) -> None:
        """So long running jobs have been kept from the engine."""
        self._saved_up -= seconds

    def hurry(self) -> None:
        """The worker is about to end: files are wanted at once, copies not any more."""
        for left in self._left.values():
            left.since -= SETTLE_SECONDS
            left.is_copy_open = False

    def seconds_to_wait(self) -> float | None:
        """Until there may be something to export; ``None``: not before something happens."""
        if not self._left:
            return None
        now = self._clock.monotonic()
        can_write = self._can_write()
        waits = [
            left.since + SETTLE_SECONDS - now if left.is_copy_open or can_write else RETRY_SECONDS
            for left in self._left.values()
        ]
        return min(waits)

    def check_integrity(self, lanes: Iterable[Lane]) -> None:
        """Raises AssertionError if the books are wrong."""
        for lane in lanes:
            left = self._left.get(lane.index)
            assert left is None or (not lane.is_settled and lane.length == left.parkable.length)

    def _wanted(self, index: int, left: Leftover, *, is_busy: bool) -> tuple[bool, bool]:
        """Whether there is to be a file, and a copy. What is not worth it while nothing runs will not be later, unless
        it is the writing thread that has no time."""
        is_worth_a_file = left.is_file_open and self._parks.is_worth_parking(left.parkable, is_busy=is_busy)
        has_file = is_worth_a_file and self._can_write()
        has_copy = left.is_copy_open and self._copies.is_worth_copying(index, is_busy=is_busy)
        left.is_file_open &= not has_file and (is_busy or is_worth_a_file)
        left.is_copy_open &= not has_copy and is_busy
        return has_file, has_copy
