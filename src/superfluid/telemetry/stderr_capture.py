"""Descriptor 2 as a pipe, so that whatever anybody writes there can be shown on a screen. Lives in the daemon."""

import errno
import os
import sys
import threading
from collections.abc import Callable
from typing import Final

MAX_LINE_BYTES: Final = 16 * 1024
_READ_BYTES: Final = 1 << 16
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StderrCapture:
    """From ``start`` to ``stop`` lines go to ``take``, in a thread; to the old descriptor 2 as well while
    ``is_mirrored``. Children that are started meanwhile inherit the pipe."""

    def __init__(self, take: Callable[[str], None], *, is_mirrored: bool) -> None:
        self._take = take
        self.is_mirrored = is_mirrored
        self._original = -1
        self._reader = -1
        self._thread: threading.Thread | None = None

    @property
    def original(self) -> int:
        """The descriptor that was 2 before."""
        return self._original

    def start(self) -> None:
        """Raises OSError."""
        sys.stderr.flush()
        self._original = os.dup(2)
        self._reader, writer = os.pipe()
        os.dup2(writer, 2)
        os.close(writer)
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Puts the old descriptor back; what was written by then has been taken. Idempotent."""
        if self._thread is None:
            return
        sys.stderr.flush()
        os.dup2(self._original, 2)
        # A child may still hold the pipe: it is not waited for.
        self._thread.join(0.5)
        self._thread = None

    def _run(self) -> None:
        pending = b""
        while data := os.read(self._reader, _READ_BYTES):
            if self.is_mirrored:
                self._mirror(data)
            pending += data
            *lines, pending = pending.split(b"\n")
            while len(pending) > MAX_LINE_BYTES:
                lines.append(pending[:MAX_LINE_BYTES])
                pending = pending[MAX_LINE_BYTES:]
            for line in lines:
                self._take(line.decode("utf-8", "replace"))
        if pending:
            self._take(pending.decode("utf-8", "replace"))
        os.close(self._reader)

    def _mirror(self, data: bytes) -> None:
        try:
            os.write(self._original, data)
        except OSError as error:
            # A full disk can have room again. A terminal that was closed stays so: there is nobody to show it to.
            self.is_mirrored = error.errno in _FULL
