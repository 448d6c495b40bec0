"""The media pool: files named by the SHA-256 of their content, in a directory of their own. Blocks; runs in threads.

A file appears under its name when all of it is on the disk, and never changes afterwards.
"""

import hashlib
import os
import re
import secrets
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from superfluid.errors import StoreUnavailableError

_NAME: Final = re.compile(r"[0-9a-f]{64}")
_TEMPORARY: Final = ".new-"


class Swept(NamedTuple):
    kept: int
    removed: int


def is_blob_name(text: str) -> bool:
    """Whether it could be a file of the pool: 64 lower-case hex digits."""
    return _NAME.fullmatch(text) is not None


def blob_name(content: bytes) -> str:
    """What a file of the pool with this content is called."""
    return hashlib.sha256(content).hexdigest()


class MediaPool:
    """One pool. Thread-safe; no two pools have the same directory."""

    def __init__(self, directory: Path) -> None:
        """Removes what a write that was cut short has left; a directory that cannot be used is left to whoever uses it.
        It is made when it is first needed.
        """
        self.directory = directory
        self._lock = threading.Lock()
        self._writing: set[str] = set()
        with suppress(StoreUnavailableError):
            for name in self._names():
                if name.startswith(_TEMPORARY):
                    self._discard(name)

    def put(self, content: bytes, blob: str | None = None) -> str:
        """Stores ``content``, durably, and returns its name, which may be given. Storing it again changes nothing.

        Raises StoreUnavailableError if it cannot be written; then nothing of it is left.
        """
        blob = blob or blob_name(content)
        if self._has(blob, content):
            return blob
        temporary = f"{_TEMPORARY}{secrets.token_hex(8)}"
        with self._lock:
            self._writing.add(temporary)
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            self._write(self.directory / temporary, content)
            os.replace(self.directory / temporary, self.directory / blob)
            self._sync_directory()
        except OSError as error:
            self._discard(temporary)
            raise StoreUnavailableError(f"the media pool cannot be written: {error.strerror}") from error
        finally:
            with self._lock:
                self._writing.discard(temporary)
        return blob

    def get(self, blob: str) -> bytes | None:
        """``None`` if it is not there. Raises StoreUnavailableError if it cannot be read, or is damaged."""
        try:
            content = (self.directory / blob).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailableError(f"the media pool cannot be read: {error.strerror}") from error
        if blob_name(content) != blob:
            raise StoreUnavailableError(f"the blob {blob} is damaged in the media pool: put it there again")
        return content

    def sweep(self, named: Collection[str], among: Collection[str] | None = None) -> Swept:
        """Deletes every file but those ``named``, durably; with ``among``, only files of these names.

        Raises StoreUnavailableError if one cannot be deleted; the others are.
        """
        with self._lock:
            writing = set(self._writing)
        kept = removed = 0
        failure: OSError | None = None
        for name in self._names():
            if name in named:
                kept += 1
            elif name not in writing and (among is None or name in among):
                try:
                    (self.directory / name).unlink(missing_ok=True)
                    removed += 1
                except OSError as error:
                    failure = error
        try:
            if removed:
                self._sync_directory()
        except OSError as error:
            failure = failure or error
        if failure is not None:
            raise StoreUnavailableError(f"the media pool cannot be swept: {failure.strerror}") from failure
        return Swept(kept, removed)

    def _has(self, blob: str, content: bytes) -> bool:
        """Compared in full: a damaged file is written anew."""
        try:
            return (self.directory / blob).read_bytes() == content
        except OSError:
            return False

    def _write(self, path: Path, content: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb", buffering=0) as file:
            view = memoryview(content)
            while view:
                view = view[file.write(view) or 0 :]
            os.fsync(descriptor)

    def _discard(self, temporary: str) -> None:
        """What cannot be removed now is removed by the next sweep."""
        with suppress(OSError):
            (self.directory / temporary).unlink(missing_ok=True)

    def _sync_directory(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.directory))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreUnavailableError(f"the media pool cannot be listed: {error.strerror}") from error
