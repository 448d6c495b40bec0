"""What the daemon knows of a model's KV files: how much of which session is on the disk. Pure; on the event loop."""

from array import array
from collections.abc import Collection

import msgspec

from superfluid.domain.statistics import KeptPrefix
from superfluid.worker.prefix_book import PrefixBook
from superfluid.worker.prefix_marks import unpacked_marks
from superfluid.worker.protocol import KvChanged, KvTotals


class ParkedFiles:
    """Follows the reports of one worker after the other."""

    def __init__(self) -> None:
        self._files = PrefixBook()
        self._last = KvTotals()
        self._earlier = KvTotals()

    def take(self, change: KvChanged) -> None:
        for file in change.added:
            whole, beginnings = (file.tokens, file.digest), unpacked_marks(file.lengths, file.digests)
            self._files.add(file.file_id, KeptPrefix(file.session, file.tokens), [*beginnings, whole])
        for file_id in change.removed:
            self._files.remove(file_id)
        self._last = change.totals

    def forget(self, sessions: Collection[int]) -> None:
        """Their files are being erased: nobody hears of them any more."""
        self._files.forget(sessions)

    def worker_lost(self) -> None:
        """The next worker numbers its files anew, and counts from 0."""
        self._earlier = msgspec.structs.replace(self.totals(), files=0, size_bytes=0)
        self._last = KvTotals()
        self._files.clear()

    def covered_tokens(self, session: int, tokens: "array[int]") -> int:
        """How much of the session's input has a state on the disk, whosever it is. Takes time in proportion to it."""
        return self._files.covered_tokens(session, tokens)

    def newest(self, count: int) -> tuple[KeptPrefix, ...]:
        """What is there, at most so many, the newest first."""
        return self._files.newest(count)

    def totals(self) -> KvTotals:
        """Counters over all workers; what there is, as of the last report."""
        last, earlier = self._last, self._earlier
        return KvTotals(
            parks_total=earlier.parks_total + last.parks_total,
            resumes_total=earlier.resumes_total + last.resumes_total,
            skips_total=earlier.skips_total + last.skips_total,
            damaged_total=earlier.damaged_total + last.damaged_total,
            files=last.files,
            size_bytes=last.size_bytes,
        )
