"""Ends the step in flight when what has just arrived should not wait for it. Three threads; in the worker.

The reader thread hears of a message while the engine's thread is inside the engine, where it cannot look for one.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from superfluid.clock import Clock
from superfluid.engine.interface import Engine
from superfluid.kvfiles.service import KvEvent
from superfluid.scheduling.plan import Chunk
from superfluid.worker.protocol import Cancel, Submit, ToWorker

WORTHWHILE_SECONDS: Final = 0.02
"""A chunk this near its expected end is left alone. One that is long overdue is not: then the expectation was wrong."""
WORTHWHILE_SHARE: Final = 0.125
"""Nor is a chunk ended for a newcomer who would gain less than this part of the time it has taken so far: that is what
may be lost, as the engine keeps whole micro-batches only."""


class InFlight(NamedTuple):
    """A step that the engine is at: when it began, and how many rows it has; 0 for a prompt chunk."""

    begun: float
    rows: int


class Interruption:
    """``arrived`` is for the reader thread; ``in_flight`` and ``end`` for the one that watches over steps; the rest for
    the engine's. A model whose state an abort would corrupt has no step ended."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._can_cut = engine.facts.can_truncate
        self._clock = clock
        self._lock = threading.Lock()
        self._chunk: Chunk | None = None
        self._decoding: frozenset[int] = frozenset()
        self._expected_end = 0.0
        self._in_flight: InFlight | None = None
        self._is_overdue = False
        self._fresh: list[ToWorker] = []
        self._decode_in_flight = _DecodeInFlight(self)

    def arrived(self, message: ToWorker | KvEvent) -> None:
        """Called for every message, when the tick loop can take it already. One that it has taken may be heard of too
        late: it then cuts one chunk short in vain."""
        if not isinstance(message, Cancel | Submit):
            return
        with self._lock:
            self._fresh.append(message)
            if self._is_reason(message) or self._is_for_nobody():
                self._engine.abort()

    def taking_messages(self) -> None:
        """Whatever has arrived so far will be in the next plan."""
        if self._fresh:
            with self._lock:
                self._fresh.clear()

    @contextmanager
    def during(self, chunk: Chunk) -> Iterator[None]:
        """Around the engine's step: it may end early, or do nothing at all if the reason came after the plan."""
        with self._lock:
            self._chunk = chunk
            begun = self._clock.monotonic()
            self._in_flight = InFlight(begun, 0)
            self._expected_end = begun + chunk.expected_seconds
            if any(self._is_reason(message) for message in self._fresh):
                self._engine.abort()
        try:
            yield
        finally:
            with self._lock:
                self._chunk = self._in_flight = None
                self._engine.resume()

    def during_decode(self, job_ids: frozenset[int], fillers: int = 0) -> "_DecodeInFlight":
        """Around a step that gives these jobs a token, and has so many rows more: it ends without one when all of them
        have been cancelled. Begins with the call."""
        with self._lock:
            self._in_flight = InFlight(self._clock.monotonic(), len(job_ids) + fillers)
            self._decoding = job_ids if self._can_cut else frozenset()
            if self._is_for_nobody():
                self._engine.abort()
        return self._decode_in_flight

    def decode_is_over(self) -> None:
        """Called when what ``during_decode`` gave is left."""
        with self._lock:
            self._decoding = frozenset()
            self._in_flight = None
            self._engine.resume()

    @property
    def in_flight(self) -> InFlight | None:
        """The step that can be ended now."""
        return self._in_flight if self._can_cut else None

    def end(self, step: InFlight) -> None:
        """Ends that step, unless it is over: it is overdue."""
        with self._lock:
            if self._in_flight is step:
                self._is_overdue = True
                self._engine.abort()

    def take_overdue(self) -> bool:
        """Whether a step was ended for that since the last time it was asked."""
        is_overdue, self._is_overdue = self._is_overdue, False
        return is_overdue

    def _is_for_nobody(self) -> bool:
        if not self._decoding or not self._fresh:
            return False
        return self._decoding <= {message.job_id for message in self._fresh if isinstance(message, Cancel)}

    def _is_reason(self, message: ToWorker) -> bool:
        chunk, in_flight = self._chunk, self._in_flight
        if chunk is None or in_flight is None:
            return False
        now = self._clock.monotonic()
        left = abs(self._expected_end - now)
        if isinstance(message, Cancel):
            return message.job_id == chunk.job_id and left >= WORTHWHILE_SECONDS
        # A job that must run alone would have to wait all the same.
        if not isinstance(message, Submit) or message.job.is_batch_invariant or message.job.qos not in chunk.yields_to:
            return False
        return left >= max(WORTHWHILE_SECONDS, WORTHWHILE_SHARE * (now - in_flight.begun))


class _DecodeInFlight:
    """No generator, as most steps pass through here: it would be half of what is computed around one."""

    def __init__(self, interruption: Interruption) -> None:
        self._interruption = interruption

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._interruption.decode_is_over()
