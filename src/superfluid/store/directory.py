"""The sessions directory: made private, and locked for as long as one server lives."""

import fcntl
import os
from pathlib import Path

from superfluid.errors import StoreError

STORE_FILE = "sessions.db"
MEDIA_DIRECTORY = "media"
_LOCK_FILE = "serve.lock"


class SessionsDirectory:
    """Holds the lock of a sessions directory. The kernel drops it when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        """Creates the directory (0700) if needed and locks it. Raises StoreError naming what is in the way."""
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"the sessions directory {path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._lock, 64, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            raise StoreError(
                f"another server{f' (process {owner})' if owner else ''} uses the sessions directory {path}: "
                "stop it, or choose another directory with --sessions"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode("ascii"), 0)

    @property
    def store_path(self) -> Path:
        return self.path / STORE_FILE

    @property
    def media_path(self) -> Path:
        return self.path / MEDIA_DIRECTORY

    def close(self) -> None:
        """Gives the lock back."""
        os.close(self._lock)
