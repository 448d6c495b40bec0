"""Time as an argument: the protocol that timed code takes, and the real clock. Used by all processes."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: ``monotonic`` for durations, ``unix`` for timestamps, both in seconds."""

    def monotonic(self) -> float: ...

    def unix(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def unix(self) -> float:
        return time.time()
