"""Keeps the engine's threads to as many as the machine has room for. In the worker: the tick loop's thread, and one
that watches over the step in flight."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from superfluid.clock import Clock
from superfluid.scheduling.plan import StepPlan
from superfluid.worker.executor import Execution
from superfluid.worker.interruption import InFlight, Interruption
from superfluid.worker.threads import STARK_SHARE, CoreReading, ThreadPolicy

LOOK_SECONDS: Final = 0.1
"""How often a step in flight is looked at."""

_logger = logging.getLogger("superfluid_daemon::worker")


class ThreadControl:
    """Tells the policy what happens, and ``set_threads`` what the policy says. ``read_cores`` is asked by the tick
    loop's thread, ``read_waited`` by the other: for how long threads have waited for a core since the last time."""

    def __init__(
        self,
        policy: ThreadPolicy,
        set_threads: Callable[[int], None],
        interruption: Interruption,
        clock: Clock,
        *,
        read_cores: Callable[[], CoreReading | None] = lambda: None,
        read_waited: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._policy = policy
        self._set_threads = set_threads
        self._interruption = interruption
        self._clock = clock
        self._read_cores = read_cores
        self._read_waited = read_waited
        self._is_working = threading.Event()
        self._is_over = threading.Event()
        self._seen: InFlight | None = None
        self._seen_at = 0.0
        self._waited_seconds = 0.0

    def before_tick(self) -> None:
        """Wakes the watch, if it sleeps. Cheap."""
        if not self._is_working.is_set():
            self._is_working.set()

    def after_tick(self, plan: StepPlan, execution: Execution) -> None:
        """Takes effect with the next step."""
        seconds = execution.decode_seconds + execution.chunk_seconds + execution.draft_seconds
        if seconds <= 0.0:
            return
        before, now = self._policy.threads, self._clock.monotonic()
        if self._interruption.take_overdue():
            self._policy.computed(seconds)
            self._policy.interrupted(now)
        elif plan.decodes and not (execution.drafted or execution.is_decode_cut or execution.chunk_seconds):
            self._policy.stepped(len(plan.rows), execution.decode_seconds, now)
        else:
            self._policy.computed(seconds)
        reading = None
        if self._policy.is_reading_due:
            reading = self._read_cores()
            self._policy.take(reading, now)
        if self._policy.threads != before:
            self._set_threads(self._policy.threads)
            _logger.debug("the number of threads changed", extra={"fields": self._fields(before, reading)})

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A thread of its own ends steps that take far too long because the engine's threads wait for cores."""
        if self._read_waited() is None:
            yield
            return
        watcher = threading.Thread(target=self._watch, name="steps", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._is_working.set()
            watcher.join()

    def look(self) -> bool:
        """At the step in flight: ends it if need be. Whether there is one. For the watching thread."""
        step = self._interruption.in_flight
        if step is None:
            return False
        now, waited = self._clock.monotonic(), self._read_waited() or 0.0
        if step is not self._seen:
            self._seen, self._seen_at, self._waited_seconds = step, now, 0.0
            return True
        self._waited_seconds += waited
        patience = self._policy.patience_seconds(step.rows)
        is_crowded = self._waited_seconds >= STARK_SHARE * (now - self._seen_at)
        if is_crowded and patience is not None and now - step.begun > patience:
            self._interruption.end(step)
        return True

    def _watch(self) -> None:
        while not self._is_over.is_set():
            # Without a deadline: it sleeps as long as the worker does.
            self._is_working.wait()
            self._is_working.clear()
            while not self._is_over.wait(LOOK_SECONDS) and self.look():
                pass

    def _fields(self, before: int, reading: CoreReading | None) -> dict[str, float]:
        seen = {} if reading is None else {"used_by_others": round(reading.used_by_others, 2)}
        return {"threads": self._policy.threads, "before": before, **seen}
