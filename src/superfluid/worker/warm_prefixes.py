"""What the daemon knows of prefixes in free lanes and in host memory. Pure; on the event loop."""

from array import array
from collections.abc import Collection

from superfluid.domain.statistics import KeptPrefix, LaneStatus, Warmth
from superfluid.worker.prefix_book import PrefixBook
from superfluid.worker.prefix_marks import unpacked_marks
from superfluid.worker.protocol import PrefixesChanged


class WarmPrefixes:
    """Follows the reports of one worker after the other."""

    def __init__(self) -> None:
        self._in_lanes = PrefixBook()
        self._in_memory = PrefixBook()
        self._number_in_lane: dict[int, int] = {}

    def take(self, change: PrefixesChanged) -> None:
        for number in change.removed:
            self._in_lanes.remove(number)
            self._in_memory.remove(number)
        for prefix in change.added:
            book = self._in_memory if prefix.lane is None else self._in_lanes
            marks = unpacked_marks(prefix.lengths, prefix.digests)
            book.add(prefix.number, KeptPrefix(prefix.session, prefix.tokens), marks)
            if prefix.lane is not None:
                self._number_in_lane[prefix.lane] = prefix.number

    def forget(self, sessions: Collection[int]) -> None:
        """What they have left is being erased: nobody hears of it any more."""
        self._in_lanes.forget(sessions)
        self._in_memory.forget(sessions)

    def worker_lost(self) -> None:
        """It has taken along all of it."""
        self._in_lanes.clear()
        self._in_memory.clear()
        self._number_in_lane.clear()

    def warmth(self, session: int, tokens: "array[int]", *, can_truncate: bool) -> Warmth:
        """How much of the session's input there is, whosever it is. Takes time in proportion to it."""
        return Warmth(
            lane=self._in_lanes.covered_tokens(session, tokens, can_truncate=can_truncate),
            memory=self._in_memory.covered_tokens(session, tokens, can_truncate=can_truncate),
        )

    def lane_session(self, lane: LaneStatus) -> int | None:
        """Whose tokens a free lane still holds."""
        number = self._number_in_lane.get(lane.lane)
        prefix = None if number is None or lane.job_id else self._in_lanes.get(number)
        return None if prefix is None else prefix.session

    def newest_in_memory(self, count: int) -> tuple[KeptPrefix, ...]:
        """What lies in host memory, at most so many, the newest first."""
        return self._in_memory.newest(count)
