"""Moves the write-ahead log into the database file, and only clean pages. Runs in the store's writer thread.

Nobody else does: the writer's own automatic checkpoints are off. So whatever has been erased leaves no leftovers in the
database file (``store/page.py``), and none in the log once that is emptied.
"""

import itertools
from pathlib import Path
from typing import Any

import apsw

from superfluid.store.page import MAX_FILE_BYTES, cleaned_page

_vfs_numbers = itertools.count(1)


class Checkpointer:
    """A connection of its own, whose writes to the database file are cleaned. ``vfs`` is what lies below.

    It must be closed last: who closes last empties the log.
    """

    def __init__(self, path: Path, vfs: str | None) -> None:
        self._vfs = _CleaningVfs(f"superfluid-cleaning-{next(_vfs_numbers)}", vfs or "")
        try:
            self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=self._vfs.name)
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA busy_timeout = 5000")
        except apsw.Error:
            self._vfs.unregister()
            raise

    def advance(self, *, is_emptying: bool = False) -> None:
        """Moves what readers do not hold back, and empties the log if it can. A failure is none: the log grows, and the
        next time does it."""
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if is_emptying else apsw.SQLITE_CHECKPOINT_PASSIVE
        try:
            self._connection.wal_checkpoint(mode=mode)
        except apsw.Error:
            # Everything committed is safe in the log.
            return

    def empty_log(self) -> None:
        """Moves everything and cuts the log's file to nothing. Waits for readers; raises apsw.Error."""
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def close(self) -> None:
        self._connection.close()
        self._vfs.unregister()


class _CleaningVfs(apsw.VFS):
    def __init__(self, name: str, below: str) -> None:
        self.name = name
        self._below = below
        super().__init__(name, below)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        if flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            return _CleaningFile(self._below, name, flags)
        return apsw.VFSFile(self._below, name, flags)


class _CleaningFile(apsw.VFSFile):
    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        """A checkpoint writes whole pages."""
        is_small = self.xFileSize() < MAX_FILE_BYTES
        cleaned = cleaned_page(bytes(data), is_first=offset == 0) if is_small else None
        super().xWrite(data if cleaned is None else cleaned, offset)
