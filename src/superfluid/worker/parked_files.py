"""What the daemon knows of a model's KV files: how much of which session is on the disk. Pure; on the event loop."""

from array import array

import msgspec

from superfluid.kvfiles.names import prefix_digests
from superfluid.worker.protocol import KvChanged, KvFileAdded, KvTotals


class ParkedFiles:
    """Follows the reports of one worker after the other."""

    def __init__(self) -> None:
        self._files: dict[int, KvFileAdded] = {}
        self._of_session: dict[int, set[int]] = {}
        self._by_digest: dict[tuple[int, bytes], int] = {}
        self._last = KvTotals()
        self._earlier = KvTotals()

    def take(self, change: KvChanged) -> None:
        for file in change.added:
            self._files[file.file_id] = file
            self._by_digest[file.tokens, file.digest] = file.file_id
            if file.session is not None:
                self._of_session.setdefault(file.session, set()).add(file.file_id)
        for file_id in change.removed:
            self._remove(file_id)
        self._last = change.totals

    def worker_lost(self) -> None:
        """The next worker numbers its files anew, and counts from 0."""
        self._earlier = msgspec.structs.replace(self.totals(), files=0, size_bytes=0)
        self._last = KvTotals()
        self._files.clear()
        self._of_session.clear()
        self._by_digest.clear()

    def session_tokens(self, session: int) -> int:
        """The longest state that was written of the session itself."""
        return max((self._files[file_id].tokens for file_id in self._of_session.get(session, ())), default=0)

    def prefix_tokens(self, tokens: "array[int]") -> int:
        """The longest state that lies wholly within this stream, whosever it is. Takes time in proportion to it."""
        packed = memoryview(tokens).cast("B")
        lengths = sorted({length for length, _ in self._by_digest if length <= len(tokens)})
        found = 0
        for length, digest in prefix_digests(packed, lengths):
            if (length, digest) in self._by_digest:
                found = length
        return found

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

    def _remove(self, file_id: int) -> None:
        file = self._files.pop(file_id, None)
        if file is None:
            return
        if self._by_digest.get((file.tokens, file.digest)) == file_id:
            del self._by_digest[file.tokens, file.digest]
        if file.session is not None:
            self._of_session[file.session].discard(file_id)
            if not self._of_session[file.session]:
                del self._of_session[file.session]
