"""A session in memory, and how it and its row in the store stand for each other. Used on the daemon's event loop."""

import asyncio
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from superfluid.domain.events import Created, Event, Forked, Rebased
from superfluid.domain.reply import Channel
from superfluid.domain.state import SessionState
from superfluid.errors import DamagedRecordError, SuperfluidError
from superfluid.store.interface import Origin, SessionRow


class TurnPhase(enum.Enum):
    """Where in a generation a batch of its records stands."""

    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"


EndReason = Literal["unsubscribed", "lagged", "publisher closed", "purged"]


class SessionWatcher(Protocol):
    """Told of a session's events as they become durable, and of text ahead of them. Must not block or raise."""

    def committed(self, events: Sequence[Event]) -> None: ...

    def provisional(self, channel: Channel, text: str) -> None: ...

    def ended(self, reason: EndReason) -> None:
        """Nothing more will come."""
        ...


@dataclass(slots=True, eq=False, weakref_slot=True)
class OpenSession:
    """A session in memory. ``state`` is ahead of the disk by ``waiting`` batches; ``durable_events`` are on it.

    Until ``creation`` is done nothing of it is on the disk, and nobody is shown it.
    Whoever renders for the session's state and appends the result holds ``lock`` meanwhile.
    ``failure`` is set when the store refused some of its events, or the session was dropped or purged: this object is
    of no use any more, and the next ``SessionLog.open`` reads the session again. ``cancel_generation`` ends the
    generation in flight; whoever began that calls ``end_generation`` when all of it is durable. ``is_generating`` is
    what the row says: from the first record of a generation to its last.
    """

    state: SessionState
    base: int | None
    origin: Origin
    start: int
    durable_events: int = 0
    waiting: int = 0
    is_busy: bool = False
    is_generating: bool = False
    is_purging: bool = False
    failure: SuperfluidError | None = None
    watchers: list[SessionWatcher] = field(default_factory=list)
    cancel_generation: Callable[[], None] | None = None
    creation: "asyncio.Future[list[Event]] | None" = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _idle_waiters: list["asyncio.Future[None]"] = field(default_factory=list)

    @property
    def id(self) -> int:
        return self.state.session

    @property
    def is_gone(self) -> bool:
        """Purged, or about to be."""
        return self.is_purging or self.state.is_purged

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.is_busy or self.is_purging or self.watchers or self.lock.locked())

    def created(self, _: object) -> None:
        """The store has answered: what is inherited can be read, or there is a ``failure``."""
        self.creation = None

    def end_generation(self) -> None:
        """The generation in flight is over; another may begin."""
        self.is_busy = False
        self.cancel_generation = None
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def generation_ended(self) -> None:
        """Returns when no generation is in flight. Without a deadline of its own."""
        while self.is_busy:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def fail(self, error: SuperfluidError, reason: EndReason = "publisher closed") -> None:
        """Makes the object unusable and tells its watchers why. Only the first failure counts."""
        if self.failure is None:
            self.failure = error
            for watcher in tuple(self.watchers):
                watcher.ended(reason)


def state_of_row(row: SessionRow) -> SessionState:
    """An empty state with what the row alone knows: lineage and the standing settings of a fork."""
    return SessionState(
        row.id,
        fork_at=row.fork_at,
        parent=row.parent,
        epoch=row.epoch,
        qos_class=row.qos_class,
        is_batch_invariant=row.is_batch_invariant,
    )


def check_lineage(row: SessionRow, events: Sequence[Event]) -> None:
    """Rows have no checksum; what a session inherits is in its own first record as well. Raises DamagedRecordError."""
    first = events[row.fork_at].body if row.fork_at < len(events) else None
    match first:
        case Forked(parent, fork_at) | Rebased(parent, fork_at):
            is_sound = row.base in (parent, None) and row.fork_at == fork_at
        case Created():
            is_sound = row.base is None
        case _:
            is_sound = False
    if not is_sound:
        raise DamagedRecordError(f"session {row.id}: the stored record of event {row.fork_at} is not its first one")


def row_of(opened: OpenSession, state: SessionState) -> SessionRow:
    """The row that goes with ``state``, which is the session's or an earlier one of it."""
    return SessionRow(
        id=state.session,
        parent=state.parent,
        base=opened.base,
        fork_at=state.fork_at,
        origin=opened.origin,
        epoch=state.epoch,
        start=opened.start,
        events=state.events,
        tokens=len(state.tokens),
        open_tool_calls=len(state.open_calls) if state.calls else 0,
        title=None if state.is_purged else state.title,
        is_archived=state.is_archived,
        meta_version=state.meta_version,
        generation=state.generation,
        is_purged=state.is_purged,
        is_generating=opened.is_generating,
        touched_unix_ms=state.last_unix_ms,
        qos_class=state.qos_class,
        is_batch_invariant=state.is_batch_invariant,
    )
