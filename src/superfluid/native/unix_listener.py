"""The unix socket as a file: made so that only its owner can connect, kept from a second server, removed at the end."""

import errno
import os
import socket
import stat
import sys
from pathlib import Path

from superfluid.errors import AddressUnavailableError, UsageError

# The size of the address structure's path, its closing zero included.
MAX_PATH_BYTES = 108 if sys.platform == "linux" else 104
SOCKET_MODE = 0o600


class UnixListener:
    """A bound socket that does not listen yet, and the file it put at ``path``."""

    def __init__(self, path: Path) -> None:
        """Makes the directory if need be, and replaces a file that a server left behind. Raises UsageError on a path
        that is too long, AddressUnavailableError if a server answers there or the file cannot be made."""
        length = len(os.fsencode(path))
        if length >= MAX_PATH_BYTES:
            raise UsageError(
                f"--socket must be shorter than {MAX_PATH_BYTES} bytes, and {str(path)!r} has {length}",
                param="--socket",
            )
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _clear(path)
            self.socket.bind(str(path))
            # Nobody can connect before the socket listens, so there is no moment at which others could.
            path.chmod(SOCKET_MODE)
            self._identity = _identity(path)
        except OSError as error:
            self.socket.close()
            raise AddressUnavailableError(f"cannot listen on {path}: {error.strerror}") from error
        except AddressUnavailableError:
            self.socket.close()
            raise
        self.socket.setblocking(False)

    def remove(self) -> None:
        """Removes the file, unless another server has put its own there. Raises nothing if it is gone."""
        try:
            if _identity(self.path) == self._identity:
                self.path.unlink()
        except FileNotFoundError:
            return


def _clear(path: Path) -> None:
    """Removes a socket on which nobody listens. Raises AddressUnavailableError if something else is there."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressUnavailableError(f"cannot listen on {path}: the file there is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A server whose queue is full is alive as well.
        probe.setblocking(False)
        outcome = probe.connect_ex(str(path))
    if outcome != errno.ECONNREFUSED:
        raise AddressUnavailableError(f"cannot listen on {path}: another server does")
    path.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino
