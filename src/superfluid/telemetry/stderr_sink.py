"""Whole lines on standard error, which may be a file on a disk that is full. Lives in the daemon; any thread."""

import io
import logging
import os
import sys
from typing import Final

from superfluid.telemetry.line_format import compact_line

_DESCRIPTOR: Final = 2


class StderrSink:
    """Compact lines, written at once, so that they keep their place among other output.

    A line that cannot be written is dropped and counted. The next one that can be is preceded by how many were lost.
    """

    def __init__(self) -> None:
        self.dropped_lines = 0
        self._lost_now = 0

    def write(self, record: logging.LogRecord) -> None:
        line = compact_line(record) + "\n"
        try:
            if self._lost_now:
                # The first that was lost may have been written in part.
                write_stderr(f"\nsuperfluid: {self._lost_now} lines of the log could not be written\n")
                self._lost_now = 0
            write_stderr(line)
        except (OSError, ValueError):  # full, closed, or nobody reads it any more
            self.dropped_lines += 1
            self._lost_now += 1

    def close(self) -> None:
        """Standard error stays open."""


def write_stderr(text: str) -> None:
    """Raises OSError, or ValueError if it is closed. Nothing of what could not be written is kept for later.

    Python's own stream keeps what a full disk did not take, and would fail again with that at the process's end.
    """
    sys.stderr.flush()
    if not _is_plain():
        sys.stderr.write(text)
        sys.stderr.flush()
        return
    view = memoryview(text.encode(sys.stderr.encoding or "utf-8", "backslashreplace"))
    while view:
        view = view[os.write(_DESCRIPTOR, view) :]


def _is_plain() -> bool:
    """Whether Python's stream is nothing but descriptor 2: a test, or a library, may have put another in its place."""
    try:
        return sys.stderr.fileno() == _DESCRIPTOR
    except (OSError, ValueError, AttributeError, io.UnsupportedOperation):
        return False
