"""What time and the operating system do to kept prefixes: pins end, pressure takes. Runs in the worker's tick loop."""

import logging
from collections.abc import Callable
from typing import Final

from superfluid.clock import Clock
from superfluid.scheduling.plan import EvictionLook
from superfluid.scheduling.pressure import PressureLevel
from superfluid.scheduling.scheduler import Scheduler
from superfluid.worker.debug import pressure_line

POLL_SECONDS: Final = 1.0
MOST_HELD_SECONDS: Final = 30.0
"""How long background jobs wait at most for one shortage of memory to end."""

_logger = logging.getLogger("superfluid_daemon::scheduler")


class MemoryWatch:
    """``read_pressure`` is ``None`` where the operating system is not to be asked. ``debug`` gets a line for each
    decision to give up prefixes."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Clock,
        *,
        read_pressure: Callable[[], PressureLevel] | None,
        debug: Callable[[str], None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._read_pressure = read_pressure
        self._debug = debug
        self._polled_at = clock.monotonic()
        self._level = PressureLevel.NONE
        self._critical_since: float | None = None
        self._has_changed = False

    def before_plan(self, now_unix: float, now: float) -> None:
        """Lets pins end and asks the system, at most once a second."""
        deadline = self._scheduler.pins.next_deadline_unix
        if deadline is not None and deadline <= now_unix:
            self._has_changed |= self._scheduler.pins.expire(now_unix)
        if self._read_pressure is not None and now - self._polled_at >= POLL_SECONDS:
            self._polled_at = now
            self._act(self._read_pressure(), now)

    def evicted(self, look: EvictionLook) -> None:
        """Tells of an eviction decision, if the operator wants to see them."""
        if self._debug is not None:
            self._debug(pressure_line(look))

    def pin(self, session: int, deadline_unix: float) -> None:
        """Somebody pins a session, or lets it go (0), beside its jobs; monitors are to see it."""
        self._scheduler.pins.set_session(session, deadline_unix, self._clock.unix())
        self._has_changed = True

    def changed(self) -> None:
        """What is kept has changed without a plan; monitors are to see it."""
        self._has_changed = True

    def take_changes(self) -> bool:
        """Whether there is something to tell, beside what plans do. Once."""
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def seconds_to_wait(self) -> float | None:
        """How long the loop may sleep when it has nothing to do; ``None``: until a message comes."""
        times: list[float] = []
        deadline = self._scheduler.pins.next_deadline_unix
        if deadline is not None:
            times.append(deadline - self._clock.unix())
        has_something_to_give = self._scheduler.has_host_entries or self._critical_since is not None
        if self._read_pressure is not None and has_something_to_give:
            times.append(self._polled_at + POLL_SECONDS - self._clock.monotonic())
        return max(0.001, min(times)) if times else None

    def _act(self, level: PressureLevel, now: float) -> None:
        if level is not self._level:
            _logger.log(
                logging.INFO if level is PressureLevel.NONE else logging.WARNING,
                "the system's memory pressure changed",
                extra={"fields": {"level": level.name.lower()}},
            )
            self._level = level
        if level is PressureLevel.NONE:
            self._critical_since = None
        else:
            self._scheduler.system_pressure(level)
            self._has_changed = True
        if level is PressureLevel.CRITICAL and self._critical_since is None:
            self._critical_since = now
        since = self._critical_since
        self._scheduler.hold_background(
            is_held=level is PressureLevel.CRITICAL and since is not None and now - since < MOST_HELD_SECONDS
        )
