"""What a session store is: rows, events, prefix digests; atomic batches; reads that verify what they read.

``store/sqlite.py`` implements it. A shared database behind several daemons would be another implementation.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from superfluid.errors import SuperfluidError


class Origin(enum.IntEnum):
    """Who made a session: a client that holds its id, or an HTTP request that named none."""

    SESSION_API = 0
    HTTP = 1


class SessionRow(Struct, frozen=True, kw_only=True):
    """One session's summary, updated with every event it gets but those of a generation in flight.

    ``is_generating`` says that one was going on when the row was written: the counts may be behind the log.

    ``parent`` is lineage; ``base`` is the session whose first ``fork_at`` events this one inherits (``None``: nothing).
    ``events`` and ``tokens`` count inherited ones too. ``start`` is the start that last raised ``epoch``.
    ``qos_class`` and ``is_batch_invariant`` are the current ones.
    """

    id: int
    parent: int | None = None
    base: int | None = None
    fork_at: int = 0
    origin: Origin = Origin.SESSION_API
    epoch: int = 1
    start: int = 0
    events: int = 0
    tokens: int = 0
    open_tool_calls: int = 0
    title: str | None = None
    is_archived: bool = False
    meta_version: int = 0
    generation: int = 0
    is_purged: bool = False
    touched_unix_ms: int = 0
    is_generating: bool = False
    qos_class: int = 2
    is_batch_invariant: bool = False


class StoredEvent(Struct, frozen=True, array_like=True):
    """One event as it lies in the store; ``body`` is the encoded record."""

    event_id: int
    epoch: int
    ts_unix_ms: int
    body: bytes


class PutSession(Struct, frozen=True):
    """Insert or replace a session's row."""

    row: SessionRow


class AddEvents(Struct, frozen=True):
    """Append events to a session's own log; their ids must be new."""

    session: int
    events: tuple[StoredEvent, ...]


class RequireLength(Struct, frozen=True):
    """Refuse the batch unless the session's log ends before event ``events``: for a row that comes without records."""

    session: int
    events: int


class PutPrefix(Struct, frozen=True):
    """Remember that the conversation with this digest ends before event ``at_event`` of ``session``."""

    digest: bytes
    session: int
    at_event: int


class CopyInherited(Struct, frozen=True):
    """Give a session its own copies of the events it inherits, all of them: it will not need its base any more.

    What is known of its base's conversations up to there is known of the session from then on.
    """

    session: int
    events: tuple[StoredEvent, ...]


class BeginErasure(Struct, frozen=True):
    """Note that a purged session is to be erased, so that this is finished whatever happens.

    Its first ``shared_events`` events stay with others: those it inherited from, or that had inherited them from it.
    From event ``content_end`` on nothing is said (``None``: there is no such event).
    """

    session: int
    shared_events: int
    content_end: int | None


class EraseSession(Struct, frozen=True):
    """Overwrite what is stored of a session, but for events without content; its row forgets title and lineage.

    Ends what ``BeginErasure`` began, once no file of the store holds a trace.
    """

    session: int


class ForgetSession(Struct, frozen=True):
    """Erase a session and its row, unless others inherit from it. Its id is not used again."""

    session: int


Write = PutSession | AddEvents | RequireLength | PutPrefix | CopyInherited | BeginErasure | EraseSession | ForgetSession
Batch = Sequence[Write]
CommitCallback = Callable[[Sequence[SuperfluidError | None]], None]


class StoreStatistics(Struct, frozen=True):
    """Counters since the start, and sizes.

    ``sessions_total`` are those ever made, dropped ones included. ``file_bytes`` is what the files take, ``used_bytes``
    what of them holds something: erased pages are used again.
    """

    sessions_total: int
    commits_total: int
    batches_total: int
    events_total: int
    failed_commits_total: int
    waiting_batches: int
    file_bytes: int
    used_bytes: int
    last_commit_seconds: float


class SessionStore(Protocol):
    """A store that is open. Writes may come from the event loop; reads block and belong in a thread."""

    @property
    def store_id(self) -> bytes:
        """16 random bytes, made with the store."""
        ...

    @property
    def start(self) -> int:
        """The number of this start; rises by one at every open."""
        ...

    def commit(self, batches: Sequence[Batch], done: CommitCallback) -> None:
        """Queues batches, each atomic. They are committed in order; all that waits shares one transaction and one sync.

        ``done`` is called from the writer thread with one entry a batch: ``None`` once it is durable, else why nothing
        of it is stored (of an erasure: that traces may be left). Events that do not continue their session's log are
        refused, and so are all that follow them.
        """
        ...

    def allocate_session_id(self) -> int:
        """An id that was never used. Does not touch the disk."""
        ...

    def row(self, session: int) -> SessionRow | None: ...

    def rows(self, *, include_archived: bool = True) -> list[SessionRow]:
        """Live sessions by id."""
        ...

    def generating(self) -> list[int]:
        """Live sessions whose row says that they are generating: after a crash, those that were."""
        ...

    def children(self, session: int) -> list[SessionRow]:
        """Live sessions whose ``parent`` or ``base`` is ``session``."""
        ...

    def descendants(self, session: int) -> list[SessionRow]:
        """Live sessions that go back to ``session`` by ``parent`` or ``base``, each behind its own descendants."""
        ...

    def erasing(self) -> list[BeginErasure]:
        """The erasures that have begun and not ended, by session."""
        ...

    def events(self, session: int, first: int = 0, end: int | None = None) -> list[StoredEvent]:
        """Events ``first`` to ``end`` - 1, inherited ones included. Raises DamagedRecordError naming the session."""
        ...

    def prefix(self, digests: Sequence[bytes]) -> PutPrefix | None:
        """The last of ``digests`` (shortest conversation first) that is known and whose session is live."""
        ...

    def oldest_http_sessions(self, limit: int, *, touched_before_unix_ms: int | None = None) -> list[SessionRow]:
        """Live sessions that no client named and that none descends from, least recently touched first."""
        ...

    def live_extents(self) -> list[tuple[int, int]]:
        """Every session whose own events a live one needs, by id, and how many of its log's first events those are."""
        ...

    def bodies_with(self, needle: bytes, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        """Stored bodies of these sessions' own events, up to the extent, that contain ``needle``. No checksum is
        looked at."""
        ...

    def statistics(self) -> StoreStatistics: ...

    def close(self) -> None:
        """Commits what waits, then closes. Idempotent."""
        ...
