"""The KV files by number and by name, and what the daemon has not been told of them yet. Runs in the worker."""

from collections.abc import Collection
from typing import Protocol

import msgspec

from superfluid.kvfiles.format import Tokens
from superfluid.kvfiles.names import token_digest
from superfluid.kvfiles.service import KvWrite
from superfluid.scheduling.kv_index import KvFile
from superfluid.scheduling.parks import MIN_PARK_TOKENS
from superfluid.worker.prefix_marks import mark_lengths, packed_digests
from superfluid.worker.protocol import KvChanged, KvFileAdded, KvTotals


class KvFileThreads(Protocol):
    """``kvfiles.service.KvFiles``, as far as the tick loop uses it."""

    @property
    def can_write(self) -> bool: ...

    @property
    def size_bytes(self) -> int: ...

    def write(self, write: KvWrite) -> None: ...

    def read(self, name: str, tokens: Tokens) -> None: ...

    def remove(self, names: Collection[str]) -> None: ...

    def erase(self, request_id: int, owners: Collection[int]) -> None: ...

    def wait_room(self, seconds: float) -> None: ...

    def close(self, seconds: float) -> None: ...


class KvCatalog:
    """Numbers are used once. The counters of ``totals`` are changed by whoever counts, through ``count``.

    ``can_truncate``: a file is of use for a part of what it holds, too.
    """

    def __init__(self, *, can_truncate: bool) -> None:
        self._can_truncate = can_truncate
        self._names: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        self._next_id = 1
        self._totals = KvTotals()
        self._added: list[KvFileAdded] = []
        self._removed: list[int] = []
        self._is_changed = False

    def __len__(self) -> int:
        return len(self._names)

    def name(self, file_id: int) -> str:
        return self._names[file_id]

    def file_id(self, name: str) -> int | None:
        return self._ids.get(name)

    def new_id(self, name: str) -> int:
        """A number for a file that was written or found."""
        file_id = self._next_id
        self._next_id += 1
        self._names[file_id] = name
        self._ids[name] = file_id
        return file_id

    def added(self, file: KvFile) -> None:
        packed = file.tokens.tobytes()
        # A file is not worth reading for less than it takes to be worth writing.
        *lengths, _ = mark_lengths(file.length, least=MIN_PARK_TOKENS) if self._can_truncate else [file.length]
        digests = packed_digests(packed, lengths)
        self._added.append(KvFileAdded(file.file_id, file.owner, file.length, token_digest(packed), lengths, digests))
        self._is_changed = True

    def removed(self, file_id: int) -> str | None:
        """Forgets the number; the name it stood for."""
        name = self._names.pop(file_id, None)
        if name is not None:
            del self._ids[name]
            self._removed.append(file_id)
            self._is_changed = True
        return name

    def touch(self) -> None:
        """The size of what is there has changed."""
        self._is_changed = True

    def count(self, *, parks: int = 0, resumes: int = 0, skips: int = 0, damaged: int = 0) -> None:
        totals = self._totals
        self._totals = msgspec.structs.replace(
            totals,
            parks_total=totals.parks_total + parks,
            resumes_total=totals.resumes_total + resumes,
            skips_total=totals.skips_total + skips,
            damaged_total=totals.damaged_total + damaged,
        )
        self._is_changed = True

    @property
    def has_changes(self) -> bool:
        """Whether there is something to tell the daemon."""
        return self._is_changed

    def take_changes(self, size_bytes: int) -> KvChanged | None:
        """What to tell the daemon, if there is something; ``size_bytes`` is that of all files on the disk."""
        if not self._is_changed:
            return None
        self._is_changed = False
        added, self._added = self._added, []
        removed, self._removed = self._removed, []
        self._totals = msgspec.structs.replace(self._totals, files=len(self._names), size_bytes=size_bytes)
        return KvChanged(added, removed, self._totals)

    def check_integrity(self) -> None:
        """Raises AssertionError if the books are wrong."""
        assert {name: file_id for file_id, name in self._names.items()} == self._ids
