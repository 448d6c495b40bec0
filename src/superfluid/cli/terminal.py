"""What the command line asks of the terminal it runs in: is it one, how wide, can it show more than ASCII."""

import codecs
import os
import shutil
import sys
import time
from typing import TextIO

_LIKENESS = "superfluid.likeness"
_LIKENESSES = {
    "•": "*", "◦": "-", "…": "...", "–": "-", "—": "-", "―": "-", "‘": "'", "’": "'", "“": '"', "”": '"', "«": '"',
    "»": '"', "›": ">", "‹": "<", "→": "->", "←": "<-", "×": "x", "│": "|", "─": "-", "▌": "|", "├": "|", "└": "`",
    "⋮": ":", "\u00a0": " ", "\u202f": " ",
}  # fmt: skip
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def open_standard_streams() -> None:
    """A standard stream that was closed becomes the null device.

    Otherwise a file that is opened later gets its number, and what is meant for stderr is written into the store.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at it."""
    return stream.isatty()


def is_unicode(stream: TextIO) -> bool:
    return "utf" in (getattr(stream, "encoding", None) or "").lower()


def terminal_columns() -> int:
    """``COLUMNS`` if set, else what the terminal says, else 80."""
    return shutil.get_terminal_size((80, 24)).columns


def survive_any_text() -> None:
    """Makes the standard streams write something like it where their encoding lacks a character, and read anything,
    instead of failing."""
    codecs.register_error(_LIKENESS, _likeness)
    for stream, handler in ((sys.stdin, "replace"), (sys.stdout, _LIKENESS), (sys.stderr, _LIKENESS)):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=handler)


def _likeness(error: UnicodeError) -> tuple[str, int]:
    """An error handler for codecs: what typewriters had for a character, else ``?``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_LIKENESSES.get(character, "?") for character in missing), error.end


def age_text(now_unix_ms: int, then_unix_ms: int | None) -> str:
    """How long ago that was, in one unit; a date if it is more than a month."""
    if not then_unix_ms:
        return "-"
    seconds = max(0, now_unix_ms - then_unix_ms) // 1000
    if seconds < _MINUTE:
        return "just now"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE} min ago"
    if seconds < _DAY:
        return f"{seconds // _HOUR} h ago"
    if seconds < 31 * _DAY:
        return f"{seconds // _DAY} d ago"
    return time.strftime("%Y-%m-%d", time.localtime(then_unix_ms / 1000))
