"""Memory for lane states while nothing runs: some is made ready, and what a busy time has left is given back. Worker.

On the tick loop.
"""

from typing import Final

from superfluid.clock import Clock
from superfluid.engine.spare_buffers import SpareBuffers

REST_SECONDS: Final = 2.0
"""Who is idle for so long gives back what is kept beyond the least."""


class IdleMemory:
    """Looks after what is kept for states to come."""

    def __init__(self, spares: SpareBuffers, clock: Clock) -> None:
        self._spares = spares
        self._clock = clock
        self._idle_since = clock.monotonic()

    def work(self, *, is_busy: bool) -> bool:
        """Some milliseconds of it, if nothing else is to be done. Whether there was something."""
        if is_busy:
            self._idle_since = self._clock.monotonic()
            return False
        if self._spares.prepare():
            return True
        if self._spares.has_excess and self._clock.monotonic() - self._idle_since >= REST_SECONDS:
            self._spares.trim()
        return False

    def seconds_to_wait(self) -> float | None:
        """Until there is something to give back; ``None``: not before something happens."""
        if not self._spares.has_excess:
            return None
        return max(0.001, self._idle_since + REST_SECONDS - self._clock.monotonic())
