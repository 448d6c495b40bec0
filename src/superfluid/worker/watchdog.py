"""Decides when a worker that is alive but says nothing counts as wedged. Pure: the time is an argument."""

from collections import deque
from typing import Literal

PING_BUSY_SECONDS = 2.0
PING_IDLE_SECONDS = 10.0
IMAGE_SECONDS = 600.0
"""How long a worker may be silent over an image, whose encoder can take minutes on a small machine."""
_SLOWEST_TICK_FACTOR = 8
_FIRST_TICK_FACTOR = 6
_RECENT_TICKS = 64

Verdict = Literal["fine", "ping", "wedged"]


class Watchdog:
    """Measures silence from the first unanswered ping on, so that an idle worker is never suspected unasked.

    The patience is ``timeout_seconds``, or eight of the slowest recent ticks if that is more. Before any tick of the
    model was measured, a busy worker gets six times the timeout: the first chunk of a big model on a slow machine is
    long. What is known of the ticks survives a respawn.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._walls: deque[float] = deque(maxlen=_RECENT_TICKS)
        self._ping_busy = min(PING_BUSY_SECONDS, timeout_seconds / 4)
        self._ping_idle = max(self._ping_busy, min(PING_IDLE_SECONDS, timeout_seconds))
        self._pinged_at = self._checked_at = 0.0
        self._silent_since: float | None = None
        self._is_at_image = False

    @property
    def check_seconds(self) -> float:
        """How often ``check`` wants to be asked."""
        return self._ping_busy

    def restart(self, now: float) -> None:
        """A new worker: nothing is asked yet."""
        self.heard()
        self._pinged_at = self._checked_at = now

    def heard(self) -> None:
        """The tick loop showed that it runs."""
        self._silent_since = None
        self._is_at_image = False

    def image_begun(self) -> None:
        """The tick loop is about to be silent for as long as an image takes."""
        self._silent_since = None
        self._is_at_image = True

    def ticked(self, wall_seconds: float) -> None:
        self.heard()
        self._walls.append(wall_seconds)

    def patience_seconds(self, *, is_busy: bool) -> float:
        if self._is_at_image:
            return max(self._timeout, IMAGE_SECONDS)
        if self._walls:
            return max(self._timeout, _SLOWEST_TICK_FACTOR * max(self._walls))
        return self._timeout * _FIRST_TICK_FACTOR if is_busy else self._timeout

    def check(self, now: float, *, is_busy: bool) -> Verdict:
        """``ping`` asks the caller to send one, which is then taken as sent."""
        overslept = now - self._checked_at > 2 * self.check_seconds + 1.0
        self._checked_at = now
        if self._silent_since is not None:
            if overslept:
                # The daemon itself stood still (stopped, starved): answers may wait unread in the socket.
                self._silent_since = now
            elif now - self._silent_since > self.patience_seconds(is_busy=is_busy):
                return "wedged"
        if now - self._pinged_at >= (self._ping_busy if is_busy else self._ping_idle):
            self._pinged_at = now
            if self._silent_since is None:
                self._silent_since = now
            return "ping"
        return "fine"
