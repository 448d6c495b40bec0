"""The keyboard of a chat. While a reply comes, Ctrl-C is counted instead of raised, and what is typed is not shown."""

import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_LOCAL_MODES = 3  # where termios keeps them


class Interrupts:
    """A context. ``count`` says how often Ctrl-C was pressed in it."""

    def __init__(self) -> None:
        self.count = 0
        self._handler: Any = None
        self._mode: list[Any] | None = None

    def __enter__(self) -> Self:
        self.count = 0
        self._handler = signal.signal(signal.SIGINT, self._note)
        self._mode = _switch_off(termios.ECHO)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _restore(self._mode)
        signal.signal(signal.SIGINT, self._handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


@contextmanager
def key_by_key() -> Iterator[None]:
    """Has the terminal hand on every key at once, also between two prompts: what is typed ahead waits for the next
    prompt, where a terminal that collects lines would keep a Ctrl-D to itself. Needs a line editor for the prompts."""
    before = _switch_off(termios.ICANON)
    try:
        yield
    finally:
        _restore(before)


def _switch_off(flag: int) -> list[Any] | None:
    """Takes ``flag`` from the terminal's local modes, if a person types there; what to restore."""
    if not sys.stdin.isatty():
        return None
    try:
        before = termios.tcgetattr(sys.stdin)
        changed = termios.tcgetattr(sys.stdin)
        changed[_LOCAL_MODES] &= ~flag
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, changed)
    except termios.error:
        # A terminal that has just gone; reading from it will tell.
        return None
    return before


def _restore(mode: list[Any] | None) -> None:
    if mode is None:
        return
    try:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, mode)
    except termios.error:
        return
