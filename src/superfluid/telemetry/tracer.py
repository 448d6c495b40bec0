"""Turns what the daemon sees of replies and ticks into spans. Lives on the daemon's event loop; never waits.

A ``generate`` span lasts from a reply's begin to its end, its time in the queue included. A ``tick`` span is one call
of the engine and is linked to the ``generate`` spans it worked for.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from superfluid.telemetry.filter import DEBUG, INFO, LogFilter
from superfluid.telemetry.spans import FinishedSpan, SpanContext, SpanValue, child_of, new_trace

_DAEMON: Final = "superfluid_daemon"
_SCHEDULER: Final = "superfluid_daemon::scheduler"
_REMEMBERED_ENDS: Final = 1024
"""A tick is told after the replies that ended in it: so many of those can still be linked to."""


class TickFacts(Protocol):
    """One tick of the worker (see ``worker.protocol.TickSpan``)."""

    @property
    def sequence(self) -> int: ...

    @property
    def started_unix(self) -> float: ...

    @property
    def wall_seconds(self) -> float: ...

    @property
    def queued(self) -> int: ...

    @property
    def jobs(self) -> Sequence[int]: ...


class KvFacts(Protocol):
    """A state that was parked or restored (see ``worker.protocol.KvSpan``)."""

    @property
    def kind(self) -> str: ...

    @property
    def started_unix(self) -> float: ...

    @property
    def wall_seconds(self) -> float: ...

    @property
    def session(self) -> int: ...

    @property
    def covered(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def tick(self) -> int: ...


class ReplyFacts(Protocol):
    @property
    def session(self) -> int | None: ...

    @property
    def max_tokens(self) -> int: ...


class Tracer:
    """``sessions.counter.ReplyObserver`` and receiver of ticks. ``put`` takes a finished span and must not block.

    ``session_link`` gives the span that stands for a whole session in an exported trace; ``store_ns`` is the store's
    number in those ids, 0 where there is no store.
    """

    def __init__(
        self,
        put: Callable[[FinishedSpan], None],
        span_filter: LogFilter,
        *,
        model: Callable[[], str],
        store_ns: int,
        session_link: Callable[[int], SpanContext],
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._put = put
        self._model = model
        self._store_ns = store_ns
        self._session_link = session_link
        self._unix_ns = unix_ns
        self._has_generate = span_filter.level_for(_DAEMON) <= INFO
        self._has_ticks = span_filter.level_for(_SCHEDULER) <= DEBUG
        self._has_kv = span_filter.level_for(_SCHEDULER) <= INFO
        self._open: dict[int, tuple[SpanContext, int]] = {}
        self._ended: OrderedDict[int, SpanContext] = OrderedDict()
        self._tick_contexts: dict[int, SpanContext] = {}

    @property
    def wants_ticks(self) -> bool:
        """Whether the worker has to tell what it does."""
        return self._has_kv

    def began(self, reply_id: int) -> None:
        if self._has_generate:
            self._open[reply_id] = new_trace(), self._unix_ns()

    def ended(self, reply_id: int, facts: ReplyFacts) -> None:
        begun = self._open.pop(reply_id, None)
        if begun is None:
            return
        context, started = begun
        self._ended[reply_id] = context
        if len(self._ended) > _REMEMBERED_ENDS:
            self._ended.popitem(last=False)
        session = facts.session
        attributes: dict[str, SpanValue] = {"max_tokens": facts.max_tokens, "store_ns": self._store_ns}
        attributes |= {"raw": True} if session is None else {"session": session}
        links: tuple[SpanContext, ...] = ()
        if session is not None and self._store_ns:
            links = (self._session_link(session),)
        self._put(
            FinishedSpan("generate", _DAEMON, context, None, started, self._unix_ns(), attributes, self._model(), links)
        )

    def ticked(self, ticks: Sequence[TickFacts]) -> None:
        if self._has_ticks:
            for tick in ticks:
                self._put(self._tick_span(tick))

    def moved(self, kv: KvFacts) -> None:
        """A state was parked or restored. Of a restored one the tick is told later, and becomes its parent."""
        if not self._has_kv:
            return
        parent: SpanContext | None = None
        if kv.tick and self._has_ticks:
            parent = self._tick_contexts.setdefault(kv.tick, new_trace())
        attributes: dict[str, SpanValue] = {"session": kv.session, "store_ns": self._store_ns, "covered": kv.covered}
        attributes |= {"lossy": False} if kv.kind == "park" else {"bytes": kv.size_bytes, "encoding": 0}
        links: tuple[SpanContext, ...] = ()
        if parent is None and kv.session and self._store_ns:
            links = (self._session_link(kv.session),)
        started = round(kv.started_unix * 1e9)
        ended = started + round(kv.wall_seconds * 1e9)
        context = new_trace() if parent is None else child_of(parent)
        self._put(FinishedSpan(kv.kind, _SCHEDULER, context, parent, started, ended, attributes, self._model(), links))

    def _tick_span(self, tick: TickFacts) -> FinishedSpan:
        started = round(tick.started_unix * 1e9)
        attributes: dict[str, SpanValue] = {
            "queued": tick.queued,
            "store_ns": self._store_ns,
            "lanes": len(tick.jobs),
            "tick_seq": tick.sequence,
        }
        links = tuple([context for job in tick.jobs if (context := self._generate_context(job)) is not None])
        ended = started + round(tick.wall_seconds * 1e9)
        context = self._tick_contexts.pop(tick.sequence, None) or new_trace()
        return FinishedSpan("tick", _SCHEDULER, context, None, started, ended, attributes, self._model(), links)

    def _generate_context(self, reply_id: int) -> SpanContext | None:
        begun = self._open.get(reply_id)
        return self._ended.get(reply_id) if begun is None else begun[0]
