"""The store's one writer: a thread that commits everything that waits in one transaction, with one sync."""

import os
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

import apsw

from superfluid.errors import StoreUnavailableError, SuperfluidError
from superfluid.store.checkpoint import Checkpointer
from superfluid.store.interface import (
    AddEvents,
    Batch,
    BeginErasure,
    CommitCallback,
    CopyInherited,
    EraseSession,
    ForgetSession,
    PutPrefix,
    PutSession,
    RequireLength,
    SessionRow,
    StoredEvent,
    StoreStatistics,
    Write,
)
from superfluid.store.record import event_checksum

ROW_COLUMNS = (
    "id, parent, base, fork_at, origin, epoch, start, events, tokens, open_tool_calls, title, is_archived, "
    "meta_version, generation, is_purged, touched_unix_ms, qos_class, "
    "is_batch_invariant, is_generating"
)
_PUT_SESSION = f"INSERT OR REPLACE INTO session ({ROW_COLUMNS}) VALUES ({', '.join('?' * 19)})"
_ADD_EVENT = "INSERT INTO event (session, id, epoch, ts_unix_ms, body, checksum) VALUES (?, ?, ?, ?, ?, ?)"
# A fork of something that is gone (dropped in between) can have no first event.
_NEXT_EVENT = (
    "SELECT coalesce((SELECT max(id) + 1 FROM event WHERE session = ?1), (SELECT CASE WHEN base IS NULL OR EXISTS "
    "(SELECT 1 FROM session AS origin WHERE origin.id = session.base) THEN fork_at ELSE -1 END "
    "FROM session WHERE id = ?1))"
)
_IS_INHERITED = "SELECT EXISTS (SELECT 1 FROM session WHERE base = ?)"
_REMEMBER_LAST = (
    "INSERT INTO store VALUES ('last_session', ?) ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)"
)
_PUT_PREFIX = "INSERT OR REPLACE INTO prefix (digest, session, at_event) VALUES (?, ?, ?)"
_INHERIT_PREFIXES = (
    "UPDATE prefix SET session = child.id FROM session AS child "
    "WHERE child.id = ? AND prefix.session = child.base AND prefix.at_event <= child.fork_at"
)
_BEGIN_ERASURE = "INSERT OR REPLACE INTO erasure (session, shared_events, content_end) VALUES (?, ?, ?)"
_CONTENT_END = "SELECT coalesce((SELECT content_end FROM erasure WHERE session = ?), ?)"
# More than this in one transaction would hold up the first of them.
_MAX_SUBMISSIONS = 512
_MAX_KNOWN_SESSIONS = 4096
# As SQLite's automatic checkpoints would.
_CHECKPOINT_PAGES = 1000
_MEASURE_SECONDS = 1.0
_MAX_ID = 2**63 - 1
# What fails every write alike.
_DISK_TROUBLE = (apsw.FullError, apsw.IOError, apsw.ReadOnlyError, apsw.CantOpenError, apsw.BusyError)

Submission = tuple[tuple[Batch, ...], CommitCallback]


class LogGapError(apsw.ConstraintError):
    """Events that do not continue their session's log: what came before them was not stored."""


class StoreWriter:
    """Owns the writing connection and the checkpointer. ``submit`` never blocks; its callers bound what waits."""

    def __init__(self, connection: apsw.Connection, path: Path, checkpointer: Checkpointer) -> None:
        self._connection = connection
        self._checkpointer = checkpointer
        self._log_pages = 0
        connection.set_wal_hook(self._note_log_pages)
        self._path = path
        self._queue: queue.SimpleQueue[Submission | None] = queue.SimpleQueue()
        self._commits = self._batches = self._events = self._failed = 0
        self._last_commit_seconds = 0.0
        self._is_closed = False
        self._closing = threading.Lock()
        self._page_bytes = int(connection.execute("PRAGMA page_size").get)
        # What a session's next event is, so that a tick's records need not ask.
        self._next_events: dict[int, int] = {}
        self._measured_at = 0.0
        self._free_bytes = 0
        self._free_bytes = self._measure_free()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, batches: tuple[Batch, ...], done: CommitCallback) -> None:
        """Refuses at once, in the caller's thread, when the store is closed."""
        with self._closing:
            # Together: what is queued behind the end would never be answered.
            is_closed = self._is_closed
            if not is_closed:
                self._queue.put((batches, done))
        if is_closed:
            done([StoreUnavailableError("the session store is closed")] * len(batches))

    def statistics(self, sessions_total: int) -> StoreStatistics:
        file_bytes = self._measure_files()
        return StoreStatistics(
            sessions_total=sessions_total,
            commits_total=self._commits,
            batches_total=self._batches,
            events_total=self._events,
            failed_commits_total=self._failed,
            waiting_batches=self._queue.qsize(),
            file_bytes=file_bytes,
            used_bytes=max(0, file_bytes - self._free_bytes),
            last_commit_seconds=self._last_commit_seconds,
        )

    def close(self, last_session: int) -> None:
        """Commits what waits and closes the connection. Blocks."""
        with self._closing:
            self._is_closed = True
            self._queue.put(None)
        self._thread.join()
        try:
            self._connection.execute(_REMEMBER_LAST, (last_session,))
        except apsw.Error:
            # Only keeps ids of never-stored sessions from being used again; on a full disk that is not worth a failure.
            pass
        self._connection.close()
        self._checkpointer.close()

    def _run(self) -> None:
        is_open = True
        while is_open:
            submissions: list[Submission] = []
            item = self._queue.get()
            while True:
                if item is None:
                    is_open = False
                    break
                submissions.append(item)
                if len(submissions) >= _MAX_SUBMISSIONS:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            self._settle(submissions)

    def _settle(self, submissions: list[Submission]) -> None:
        batches = [batch for group, _ in submissions for batch in group]
        errors = self._commit(batches)
        first = errors[0] if errors else None
        if len(batches) > 1 and first is not None and not isinstance(first.__cause__, _DISK_TROUBLE):
            # One batch breaks a rule, or meets a damaged page: the others must not pay for it.
            errors = [self._commit([batch])[0] for batch in batches]
        position = 0
        for group, done in submissions:
            done(errors[position : position + len(group)])
            position += len(group)

    def _commit(self, batches: list[Batch]) -> list[SuperfluidError | None]:
        """One transaction for all of ``batches``, and their results."""
        if not batches:
            return []
        started = time.monotonic()
        events = 0
        try:
            with self._connection:
                for batch in batches:
                    for write in batch:
                        events += self._apply(write)
        except Exception as cause:  # noqa: BLE001  (supervision point: everybody waits for this thread)
            self._failed += 1
            # They ran ahead of the transaction that is now undone.
            self._next_events.clear()
            return [_unavailable(cause)] * len(batches)
        self._last_commit_seconds = time.monotonic() - started
        self._commits += 1
        self._batches += len(batches)
        self._events += events
        errors: list[SuperfluidError | None] = [None] * len(batches)
        erasing = [index for index, batch in enumerate(batches) if _erases(batch)]
        error = self._finish_erasing([batches[index] for index in erasing]) if erasing else None
        for index in erasing:
            errors[index] = error
        if self._log_pages >= _CHECKPOINT_PAGES:
            self._log_pages = 0
            self._checkpointer.advance()
        if erasing or started - self._measured_at >= _MEASURE_SECONDS:
            self._measured_at = started
            self._free_bytes = self._measure_free()
        return errors

    def _note_log_pages(self, _: apsw.Connection, name: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _finish_erasing(self, batches: list[Batch]) -> SuperfluidError | None:
        """Empties the write-ahead log, whose old frames still hold what was erased. Nothing else depends on it."""
        erased = [(write.session,) for batch in batches for write in batch if isinstance(write, EraseSession)]
        try:
            self._checkpointer.empty_log()
            self._log_pages = 0
            # Pages in memory may have what the checkpointer has cleaned away. SQLite forgets them by itself when it
            # finds the log begun anew, but promises that nowhere.
            self._connection.release_memory()
            if erased:
                with self._connection:
                    self._connection.executemany("DELETE FROM erasure WHERE session = ?", erased)
        except apsw.Error as cause:
            return _unavailable(cause)
        return None

    def _apply(self, write: Write) -> int:
        execute = self._connection.execute
        match write:
            case PutSession(row):
                execute(_PUT_SESSION, _row_values(row))
                return 0
            case AddEvents(session, events):
                self._check_continues(session, events[0].event_id, len(events))
                self._add(session, events)
                return len(events)
            case RequireLength(session, length):
                self._check_continues(session, length, 0)
                return 0
            case PutPrefix(digest, session, at_event):
                execute(_PUT_PREFIX, (digest, session, at_event))
                return 0
            case CopyInherited(session, events):
                self._add(session, events)
                execute(_INHERIT_PREFIXES, (session,))
                return 0
            case BeginErasure(session, shared_events, content_end):
                execute(_BEGIN_ERASURE, (session, shared_events, content_end))
                return 0
            case EraseSession(session):
                self._erase(session)
                execute("UPDATE session SET title = NULL, parent = NULL, base = NULL WHERE id = ?", (session,))
                return 0
            case ForgetSession(session):
                if not execute(_IS_INHERITED, (session,)).get:
                    self._erase(session)
                    execute("DELETE FROM session WHERE id = ?", (session,))
                    execute(_REMEMBER_LAST, (session,))
                return 0
            case _:
                assert_never(write)

    def _check_continues(self, session: int, event_id: int, count: int) -> None:
        expected = self._next_events.get(session)
        if expected is None:
            expected = self._connection.execute(_NEXT_EVENT, (session,)).get
        if event_id != expected:
            raise LogGapError(f"session {session} continues at event {expected}, not at {event_id}")
        if len(self._next_events) >= _MAX_KNOWN_SESSIONS:
            self._next_events.clear()
        self._next_events[session] = event_id + count

    def _add(self, session: int, events: Sequence[StoredEvent]) -> None:
        for event in events:
            checksum = event_checksum(session, event.event_id, event.epoch, event.ts_unix_ms, event.body)
            self._connection.execute(
                _ADD_EVENT, (session, event.event_id, event.epoch, event.ts_unix_ms, event.body, checksum)
            )

    def _erase(self, session: int) -> None:
        self._next_events.pop(session, None)
        end = self._connection.execute(_CONTENT_END, (session, _MAX_ID)).get
        self._connection.execute("DELETE FROM event WHERE session = ? AND id < ?", (session, end))
        self._connection.execute("DELETE FROM prefix WHERE session = ?", (session,))

    def _measure_free(self) -> int:
        """Bytes of erased pages. In the writer's thread, whose connection it asks."""
        try:
            return int(self._connection.execute("PRAGMA freelist_count").get) * self._page_bytes
        except apsw.Error:
            # A disk in trouble: the figure of before will do until a later commit.
            return self._free_bytes

    def _measure_files(self) -> int:
        total = 0
        for suffix in ("", "-wal"):
            try:
                total += os.stat(f"{self._path}{suffix}").st_size
            except FileNotFoundError:
                continue
        return total


def _erases(batch: Batch) -> bool:
    return any(isinstance(write, EraseSession | ForgetSession) for write in batch)


def _unavailable(cause: Exception) -> StoreUnavailableError:
    error = StoreUnavailableError(f"the session store could not be written: {cause}")
    error.__cause__ = cause
    return error


def _row_values(row: SessionRow) -> tuple[int | str | None, ...]:
    return (
        row.id, row.parent, row.base, row.fork_at, row.origin, row.epoch, row.start, row.events, row.tokens,
        row.open_tool_calls, row.title, row.is_archived, row.meta_version, row.generation, row.is_purged,
        row.touched_unix_ms, row.qos_class, row.is_batch_invariant, row.is_generating,
    )  # fmt: skip
