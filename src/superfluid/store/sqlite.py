"""The session store on SQLite: opening, reading, and the protocol's front. Writing is in ``store/writer.py``.

WAL with ``synchronous=FULL``: a commit is on the disk when it returns, and readers never wait for the writer. Only
``store/checkpoint.py`` moves the log into the file.
"""

import os
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw

from superfluid.errors import DamagedRecordError, StoreError, StoreUnavailableError
from superfluid.store.checkpoint import Checkpointer
from superfluid.store.interface import (
    Batch,
    BeginErasure,
    CommitCallback,
    Origin,
    PutPrefix,
    SessionRow,
    StoredEvent,
    StoreStatistics,
)
from superfluid.store.record import event_checksum
from superfluid.store.schema import migrate
from superfluid.store.writer import ROW_COLUMNS, StoreWriter

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA secure_delete = ON",
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA busy_timeout = 5000",
    "PRAGMA temp_store = MEMORY",
)
_READER_PRAGMAS = _PRAGMAS[4:]
# The log of a session: its own events, and below its fork point those of the session it was forked from, and so on.
_LINEAGE = """
    WITH RECURSIVE lineage (session, upper) AS (
        SELECT ?1, ?3
        UNION ALL
        SELECT session.base, min(lineage.upper, session.fork_at)
        FROM lineage JOIN session ON session.id = lineage.session
        WHERE session.base IS NOT NULL AND min(lineage.upper, session.fork_at) > ?2
    )
"""
_EVENTS = (
    _LINEAGE
    + """
    SELECT event.session, event.id, event.epoch, event.ts_unix_ms, event.body, event.checksum
    FROM lineage CROSS JOIN event ON event.session = lineage.session
    WHERE event.id >= ?2 AND event.id < lineage.upper
    ORDER BY event.id
    """
)
_DESCENDANTS = """
    WITH RECURSIVE tree (id) AS (
        SELECT ?1
        UNION
        SELECT session.id FROM tree JOIN session ON session.parent = tree.id OR session.base = tree.id
        WHERE NOT session.is_purged
    )
"""
_LIVE_EXTENTS = """
    WITH RECURSIVE needed (session, upper) AS (
        SELECT id, ?1 FROM session WHERE NOT is_purged
        UNION
        SELECT session.base, min(needed.upper, session.fork_at)
        FROM needed JOIN session ON session.id = needed.session
        WHERE session.base IS NOT NULL
    )
    SELECT session, max(upper) FROM needed GROUP BY session ORDER BY session
"""
# SQLite counts in signed 64 bits; ids beyond that exist on the wire only.
_MAX_ID = 2**63 - 1


def open_connection(path: Path, *, is_read_only: bool = False, vfs: str | None = None) -> apsw.Connection:
    """A connection with the store's settings. Raises StoreError if the file cannot be used."""
    if not is_read_only:
        _create_private(path)
    flags = apsw.SQLITE_OPEN_READONLY if is_read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    try:
        connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
        for pragma in _READER_PRAGMAS if is_read_only else _PRAGMAS:
            connection.execute(pragma)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    except apsw.Error as error:
        raise StoreError(f"the session store {path} cannot be opened: {error}") from error
    return connection


def _create_private(path: Path) -> None:
    """Others than the owner have no business with it; SQLite gives its side files the same mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"the session store {path} cannot be opened: {error.strerror}") from error


class SqliteStore:
    """``store.interface.SessionStore`` in one file: one connection for the writer, one for the readers."""

    def __init__(self, path: Path, *, vfs: str | None = None) -> None:
        """Opens or creates the store and counts this start. Blocks, for a time that does not grow with the history."""
        self._path = path
        connection = open_connection(path, vfs=vfs)
        try:
            migrate(connection)
            with connection:
                connection.execute("UPDATE store SET value = value + 1 WHERE key = 'start'")
            facts: dict[str, Any] = {
                str(key): value for key, value in connection.execute("SELECT key, value FROM store")
            }
            last = connection.execute("SELECT coalesce(max(id), 0) FROM session").get
            checkpointer = Checkpointer(path, vfs)
        except apsw.Error as error:
            connection.close()
            raise StoreError(f"the session store {path} cannot be used: {error}") from error
        except StoreError:
            connection.close()
            raise
        assert isinstance(last, int)
        self.store_id: bytes = facts["store_id"]
        self.start: int = facts["start"]
        self._last_session: int = max(last, facts.get("last_session", 0))
        # After a crash the log may hold traces of what was being erased.
        checkpointer.advance(is_emptying=True)
        self._writer = StoreWriter(connection, path, checkpointer)
        self._reader_lock = threading.Lock()
        self._reader = open_connection(path, is_read_only=True, vfs=vfs)
        self._is_closed = False

    def commit(self, batches: Sequence[Batch], done: CommitCallback) -> None:
        self._writer.submit(tuple(batches), done)

    def allocate_session_id(self) -> int:
        self._last_session += 1
        return self._last_session

    def row(self, session: int) -> SessionRow | None:
        if session > _MAX_ID:
            return None
        rows = self._rows("WHERE id = ?", (session,))
        return rows[0] if rows else None

    def rows(self, *, include_archived: bool = True) -> list[SessionRow]:
        return self._rows("WHERE NOT is_purged" + ("" if include_archived else " AND NOT is_archived") + " ORDER BY id")

    def generating(self) -> list[int]:
        return [session for (session,) in self._query("SELECT id FROM session WHERE is_generating AND NOT is_purged")]

    def children(self, session: int) -> list[SessionRow]:
        return self._rows("WHERE NOT is_purged AND (parent = ?1 OR base = ?1) ORDER BY id", (session,))

    def descendants(self, session: int) -> list[SessionRow]:
        selected = f"SELECT {ROW_COLUMNS} FROM session WHERE id IN tree AND id <> ?1 ORDER BY id DESC"
        found = self._query(_DESCENDANTS + selected, (session,))
        return _children_first(session, [_session_row(values) for values in found])

    def erasing(self) -> list[BeginErasure]:
        found = self._query("SELECT session, shared_events, content_end FROM erasure ORDER BY session")
        return [BeginErasure(*values) for values in found]

    def events(self, session: int, first: int = 0, end: int | None = None) -> list[StoredEvent]:
        if session > _MAX_ID or first > _MAX_ID:
            return []
        try:
            found = self._query(_EVENTS, (session, first, _MAX_ID if end is None else min(end, _MAX_ID)))
        except DamagedRecordError as error:
            raise DamagedRecordError(f"session {session} cannot be read: {error.message}") from error
        events: list[StoredEvent] = []
        for owner, event_id, epoch, ts_unix_ms, body, checksum in found:
            is_next = event_id == first + len(events)
            if not is_next or checksum != _checksum(owner, event_id, epoch, ts_unix_ms, body):
                raise DamagedRecordError(
                    f"session {session}: the stored record of event {event_id if is_next else first + len(events)} is "
                    f"{'damaged' if is_next else 'missing'}"
                    + (f" (inherited from session {owner})" if owner != session else "")
                )
            events.append(StoredEvent(event_id, epoch, ts_unix_ms, body))
        return events

    def prefix(self, digests: Sequence[bytes]) -> PutPrefix | None:
        for digest in reversed(digests):
            found = self._query(
                "SELECT prefix.session, at_event FROM prefix JOIN session ON session.id = prefix.session "
                "WHERE digest = ? AND NOT is_purged",
                (digest,),
            )
            if found:
                return PutPrefix(digest, found[0][0], found[0][1])
        return None

    def oldest_http_sessions(self, limit: int, *, touched_before_unix_ms: int | None = None) -> list[SessionRow]:
        return self._rows(
            "AS old WHERE origin = 1 AND NOT is_purged AND touched_unix_ms < ? AND NOT EXISTS "
            "(SELECT 1 FROM session WHERE base = old.id) AND NOT EXISTS "
            "(SELECT 1 FROM session WHERE parent = old.id) ORDER BY touched_unix_ms LIMIT ?",
            (_MAX_ID if touched_before_unix_ms is None else touched_before_unix_ms, limit),
        )

    def live_extents(self) -> list[tuple[int, int]]:
        return [(session, upper) for session, upper in self._query(_LIVE_EXTENTS, (_MAX_ID,))]

    def bodies_with(self, needle: bytes, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        statement = "SELECT body FROM event WHERE session = ?1 AND id < ?2 AND instr(body, ?3)"
        return [body for extent in extents for (body,) in self._query(statement, (*extent, needle))]

    def statistics(self) -> StoreStatistics:
        return self._writer.statistics(self._last_session)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        # The reader first: the last connection to close empties the log, and that must be the checkpointer.
        with self._reader_lock:
            self._reader.close()
        self._writer.close(self._last_session)

    # ----

    def _rows(self, tail: str, arguments: tuple[int, ...] = ()) -> list[SessionRow]:
        return [_session_row(values) for values in self._query(f"SELECT {ROW_COLUMNS} FROM session {tail}", arguments)]

    def _query(self, statement: str, arguments: tuple[bytes | int, ...] = ()) -> list[tuple]:  # type: ignore[type-arg]
        try:
            with self._reader_lock:
                return self._reader.execute(statement, arguments).fetchall()
        except (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError) as error:
            raise DamagedRecordError(f"the session store {self._path} is damaged: {error}") from error
        except apsw.Error as error:
            raise StoreUnavailableError(f"the session store cannot be read: {error}") from error


def _checksum(owner: int, event_id: int, epoch: int, ts_unix_ms: int, body: bytes) -> int | None:
    """``None`` if damage has made other types of the columns."""
    try:
        return event_checksum(owner, event_id, epoch, ts_unix_ms, body)
    except (struct.error, TypeError):
        return None


def _children_first(root: int, rows: Sequence[SessionRow]) -> list[SessionRow]:
    """``rows``, newest first, in the order in which a walk from the oldest child on leaves them."""
    known = {root, *(row.id for row in rows)}
    children: dict[int | None, list[SessionRow]] = {}
    for row in rows:
        children.setdefault(row.parent if row.parent in known else row.base, []).append(row)
    left: list[SessionRow] = []
    waiting = [*reversed(children.get(root, ()))]
    while waiting:
        row = waiting.pop()
        left.append(row)
        waiting += reversed(children.get(row.id, ()))
    return left[::-1]


def _session_row(values: tuple) -> SessionRow:  # type: ignore[type-arg]
    (
        session, parent, base, fork_at, origin, epoch, start, events, tokens, open_tool_calls, title, is_archived,
        meta_version, generation, is_purged, touched_unix_ms, qos_class, is_batch_invariant,
        is_generating,
    ) = values  # fmt: skip
    return SessionRow(
        id=session,
        parent=parent,
        base=base,
        fork_at=fork_at,
        origin=Origin(origin),
        epoch=epoch,
        start=start,
        events=events,
        tokens=tokens,
        open_tool_calls=open_tool_calls,
        title=title,
        is_archived=bool(is_archived),
        meta_version=meta_version,
        generation=generation,
        is_purged=bool(is_purged),
        touched_unix_ms=touched_unix_ms,
        is_generating=bool(is_generating),
        qos_class=qos_class,
        is_batch_invariant=bool(is_batch_invariant),
    )
