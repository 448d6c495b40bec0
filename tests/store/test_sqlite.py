"""The SQLite store: what is committed is read back, what is damaged is found out, what fails leaves nothing."""

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw
import pytest
from tests.fixtures.faulty_disk import FaultyDisk

from superfluid.errors import DamagedRecordError, StoreError, StoreUnavailableError, SuperfluidError
from superfluid.store.directory import SessionsDirectory
from superfluid.store.interface import (
    AddEvents,
    BeginErasure,
    CopyInherited,
    EraseSession,
    ForgetSession,
    Origin,
    PutPrefix,
    PutSession,
    SessionRow,
    StoredEvent,
    Write,
)
from superfluid.store.schema import STEPS
from superfluid.store.sqlite import SqliteStore
from superfluid.store.writer import Submission


def event(event_id: int, body: bytes = b"body") -> StoredEvent:
    return StoredEvent(event_id, 1, 1_700_000_000_000 + event_id, body + str(event_id).encode())


def commit(store: SqliteStore, *writes: Write) -> SuperfluidError | None:
    """Commits one batch and waits for its answer."""
    answered = threading.Event()
    answers: list[SuperfluidError | None] = []

    def done(errors: Sequence[SuperfluidError | None]) -> None:
        answers.extend(errors)
        answered.set()

    store.commit([writes], done)
    assert answered.wait(30)
    return answers[0]


def root(store: SqliteStore, session: int, count: int, **columns: object) -> None:
    row = SessionRow(id=session, events=count, **columns)  # type: ignore[arg-type]
    assert commit(store, PutSession(row), AddEvents(session, tuple(event(n) for n in range(count)))) is None


def fork(store: SqliteStore, session: int, base: int, at: int, count: int) -> None:
    row = SessionRow(id=session, parent=base, base=base, fork_at=at, events=at + count)
    events = tuple(event(at + n, b"fork") for n in range(count))
    assert commit(store, PutSession(row), AddEvents(session, events)) is None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(path)
    yield opened
    opened.close()


def test_committed_events_read_back_after_reopen(path: Path) -> None:
    store = SqliteStore(path)
    root(store, 1, 5)
    store.close()
    again = SqliteStore(path)
    assert again.events(1) == [event(n) for n in range(5)]
    assert again.events(1, 3) == [event(3), event(4)]
    assert again.events(1, 1, 2) == [event(1)]
    assert again.events(1, 9) == []
    assert (again.store_id, again.start) == (store.store_id, store.start + 1)
    again.close()


def test_fork_reads_inherited_events_below_its_fork_point_only(store: SqliteStore) -> None:
    root(store, 1, 6)
    fork(store, 2, 1, 4, 3)
    fork(store, 3, 2, 5, 1)
    fork(store, 4, 3, 2, 1)
    assert store.events(2) == [event(n) for n in range(4)] + [event(n, b"fork") for n in (4, 5, 6)]
    assert store.events(3) == [event(n) for n in range(4)] + [event(4, b"fork"), event(5, b"fork")]
    assert store.events(4) == [event(0), event(1), event(2, b"fork")]
    assert [row.id for row in store.children(2)] == [3]


def test_fork_chain_of_a_thousand_turns_reads_whole(store: SqliteStore) -> None:
    root(store, 1, 2)
    for session in range(2, 1001):
        fork(store, session, session - 1, session, 1)
    assert [entry.event_id for entry in store.events(1000)] == list(range(1001))


@pytest.mark.parametrize("column", ["body", "epoch", "ts_unix_ms"])
def test_damaged_record_stops_its_session_and_names_it_while_others_read(path: Path, column: str) -> None:
    store = SqliteStore(path)
    root(store, 1, 3)
    root(store, 2, 3)
    fork(store, 3, 1, 2, 1)
    store.close()
    raw = apsw.Connection(str(path))
    raw.execute(f"UPDATE event SET {column} = {'?' if column == 'body' else '77'} WHERE session = 1 AND id = 1",
                (b"bodx1",) if column == "body" else ())  # fmt: skip
    raw.close()
    again = SqliteStore(path)
    with pytest.raises(DamagedRecordError, match="session 1: the stored record of event 1 is damaged"):
        again.events(1)
    with pytest.raises(DamagedRecordError, match=r"session 3.*inherited from session 1"):
        again.events(3)
    assert len(again.events(2)) == 3
    again.close()


def test_missing_record_is_found_out(path: Path) -> None:
    store = SqliteStore(path)
    root(store, 1, 3)
    store.close()
    raw = apsw.Connection(str(path))
    raw.execute("DELETE FROM event WHERE id = 1")
    raw.close()
    again = SqliteStore(path)
    with pytest.raises(DamagedRecordError, match="event 1 is missing"):
        again.events(1)
    again.close()


def test_batches_that_wait_together_share_a_commit(store: SqliteStore) -> None:
    entered, release, count = threading.Event(), threading.Event(), 40
    all_done = threading.Event()
    answers: list[SuperfluidError | None] = []

    def block(_: Sequence[SuperfluidError | None]) -> None:
        entered.set()
        release.wait(30)

    def done(errors: Sequence[SuperfluidError | None]) -> None:
        answers.extend(errors)
        if len(answers) == count:
            all_done.set()

    store.commit([(PutSession(SessionRow(id=1)),)], block)
    assert entered.wait(30)
    for session in range(2, 2 + count):
        store.commit([(PutSession(SessionRow(id=session)),)], done)
    release.set()
    assert all_done.wait(30)
    assert answers == [None] * count
    assert store.statistics().commits_total == 2


@pytest.mark.parametrize("failure", [apsw.FullError, apsw.IOError])
@pytest.mark.parametrize("after", range(6))
def test_failing_disk_refuses_the_batch_whole_and_serving_resumes(
    path: Path, failure: type[apsw.Error], after: int
) -> None:
    disk = FaultyDisk(f"faulty-{failure.__name__}-{after}")
    store = SqliteStore(path, vfs=disk.name)
    root(store, 1, 3)
    with disk.break_with(failure, after=after):
        writes = (
            PutSession(SessionRow(id=1, events=203)),
            AddEvents(1, tuple(event(n, b"x" * 99) for n in range(3, 203))),
        )
        error = commit(store, *writes)
    if error is None:
        assert len(store.events(1)) == 203
    else:
        assert isinstance(error, StoreUnavailableError)
        assert store.events(1) == [event(n) for n in range(3)]
    before = len(store.events(1))
    assert commit(store, AddEvents(1, (event(before),))) is None
    assert len(store.events(1)) == before + 1
    store.close()
    disk.close()


def test_failing_disk_from_the_first_write_on_is_an_error_and_never_an_acknowledgement(path: Path) -> None:
    disk = FaultyDisk("faulty-always")
    store = SqliteStore(path, vfs=disk.name)
    with disk.break_with(apsw.FullError):
        assert isinstance(commit(store, PutSession(SessionRow(id=1))), StoreUnavailableError)
    assert store.row(1) is None
    assert store.statistics().failed_commits_total == 1
    store.close()
    disk.close()


def test_one_batch_that_breaks_a_rule_does_not_fail_its_neighbours(store: SqliteStore) -> None:
    entered, release, last = threading.Event(), threading.Event(), threading.Event()
    answers: list[SuperfluidError | None] = []

    def block(_: Sequence[SuperfluidError | None]) -> None:
        entered.set()
        release.wait(30)

    def done(errors: Sequence[SuperfluidError | None]) -> None:
        answers.extend(errors)
        if len(answers) == 3:
            last.set()

    root(store, 1, 3)
    store.commit([(PutSession(SessionRow(id=5)),)], block)
    assert entered.wait(30)
    for event_id in (3, 1, 4):
        store.commit([(AddEvents(1, (event(event_id),)),)], done)
    release.set()
    assert last.wait(30)
    assert (answers[0], answers[2]) == (None, None)
    assert isinstance(answers[1], StoreUnavailableError)
    assert len(store.events(1)) == 5


def test_events_that_do_not_continue_the_log_are_refused_with_all_that_follows_them(store: SqliteStore) -> None:
    root(store, 1, 3)
    assert isinstance(commit(store, AddEvents(1, (event(5),))), StoreUnavailableError)
    assert isinstance(commit(store, AddEvents(1, (event(6),))), StoreUnavailableError)
    assert commit(store, AddEvents(1, (event(3),))) is None


def test_ids_beyond_what_sqlite_counts_are_unknown_and_not_an_error(store: SqliteStore) -> None:
    root(store, 1, 3)
    assert store.row(2**64 - 1) is None
    assert store.events(2**64 - 1) == []
    assert store.events(1, 2**64 - 1) == []
    assert len(store.events(1, 0, 2**64 - 1)) == 3


def test_newer_store_is_refused_by_name(path: Path) -> None:
    SqliteStore(path).close()
    raw = apsw.Connection(str(path))
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(StoreError, match="newer superfluid"):
        SqliteStore(path)


def test_file_that_is_no_store_is_refused(path: Path) -> None:
    path.write_bytes(b"this is not a database, whatever its name says" * 100)
    with pytest.raises(StoreError, match="cannot be"):
        SqliteStore(path)


def test_second_server_in_a_directory_is_refused_by_name(tmp_path: Path) -> None:
    first = SessionsDirectory(tmp_path / "sessions")
    with pytest.raises(StoreError, match=r"another server \(process \d+\)"):
        SessionsDirectory(tmp_path / "sessions")
    first.close()
    SessionsDirectory(tmp_path / "sessions").close()


def test_longest_known_prefix_wins_and_purged_sessions_do_not_count(store: SqliteStore) -> None:
    root(store, 1, 3)
    root(store, 2, 3)
    commit(store, PutPrefix(b"a", 1, 2), PutPrefix(b"b", 2, 3))
    assert store.prefix([b"a", b"b", b"c"]) == PutPrefix(b"b", 2, 3)
    commit(store, PutSession(SessionRow(id=2, is_purged=True)))
    assert store.prefix([b"a", b"b", b"c"]) == PutPrefix(b"a", 1, 2)
    assert store.prefix([b"z"]) is None


def test_erased_session_leaves_no_byte_behind(path: Path) -> None:
    store = SqliteStore(path)
    marker = b"PLANTED-MARKER-TEXT"
    commit(store, PutSession(SessionRow(id=1, title=marker.decode())), AddEvents(1, (event(0, marker * 300),)))
    assert commit(store, EraseSession(1)) is None
    assert store.events(1) == []
    assert store.row(1) is not None
    commit(store, ForgetSession(1))
    assert store.row(1) is None
    store.close()
    assert all(marker not in file.read_bytes() for file in path.parent.iterdir())


def purged(store: SqliteStore, session: int, *, events: int, shared_events: int = 0, end: int | None = None) -> None:
    row = SessionRow(id=session, events=events, is_purged=True, title="t", parent=1, base=1)
    assert commit(store, PutSession(row), BeginErasure(session, shared_events, end)) is None


def test_erasure_that_has_begun_is_known_until_it_has_ended_also_behind_a_restart(path: Path) -> None:
    store = SqliteStore(path)
    for session in (1, 2, 3):
        root(store, session, 4)
    purged(store, 2, events=4, shared_events=2, end=3)
    purged(store, 3, events=4)
    store.close()
    again = SqliteStore(path)
    assert again.erasing() == [BeginErasure(2, 2, 3), BeginErasure(3, 0, None)]
    assert commit(again, EraseSession(2)) is None
    assert again.erasing() == [BeginErasure(3, 0, None)]
    assert again.events(2, 3) == [event(3)], "what says nothing stays"
    with pytest.raises(DamagedRecordError, match="missing"):
        again.events(2)
    assert commit(again, EraseSession(3)) is None
    assert (again.erasing(), again.events(3)) == ([], [])
    row = again.row(2)
    assert row is not None
    assert (row.is_purged, row.title, row.parent, row.base) == (True, None, None, None)
    again.close()


def test_erasure_has_not_ended_until_the_disk_has_taken_all_of_it(path: Path) -> None:
    disk = FaultyDisk("store-erasure")
    store = SqliteStore(path, vfs=disk.name)
    root(store, 1, 4)
    purged(store, 1, events=4)
    failures = 0
    error: SuperfluidError | None = StoreUnavailableError("not tried")
    while error is not None:
        with disk.break_with(apsw.IOError, after=failures):
            error = commit(store, EraseSession(1))
        if error is not None:
            failures += 1
            assert isinstance(error, StoreUnavailableError)
            assert store.erasing() == [BeginErasure(1, 0, None)]
    assert failures > 5
    assert store.erasing() == []
    store.close()
    disk.close()


def test_copies_of_what_was_inherited_stand_for_the_base(store: SqliteStore) -> None:
    root(store, 1, 6)
    fork(store, 2, 1, 4, 3)
    fork(store, 3, 2, 6, 1)
    before = {session: store.events(session) for session in (2, 3)}
    commit(store, PutPrefix(b"early", 1, 3), PutPrefix(b"late", 1, 5), PutPrefix(b"own", 2, 6))
    inherited = tuple(store.events(2, 0, 4))
    row = SessionRow(id=2, fork_at=4, events=7)
    assert commit(store, CopyInherited(2, inherited), PutSession(row), EraseSession(1)) is None
    assert {session: store.events(session) for session in (2, 3)} == before
    assert store.prefix([b"early"]) == PutPrefix(b"early", 2, 3)
    assert store.prefix([b"late"]) is None
    assert store.prefix([b"own"]) == PutPrefix(b"own", 2, 6)


def test_descendants_are_listed_behind_their_own(store: SqliteStore) -> None:
    root(store, 1, 4)
    for session, base in ((2, 1), (3, 1), (4, 2), (5, 2), (6, 3), (7, 4)):
        fork(store, session, base, 2, 1)
    root(store, 8, 1, parent=5)
    root(store, 9, 1, parent=1, is_purged=True)
    root(store, 10, 1)
    assert [row.id for row in store.descendants(1)] == [7, 4, 8, 5, 2, 6, 3]
    assert [row.id for row in store.descendants(2)] == [7, 4, 8, 5]
    assert store.descendants(10) == []


def write_first_version(path: Path) -> None:
    """A store as it was before pages were cleaned, with leftovers of what was dropped."""
    raw = apsw.Connection(str(path))
    raw.execute(STEPS[0])
    raw.execute("INSERT INTO store VALUES ('store_id', x'00112233445566778899aabbccddeeff'), ('start', 0)")
    raw.execute("PRAGMA user_version = 1")
    for session in range(1, 41):
        raw.execute("INSERT INTO event VALUES (?, 0, 1, 1, ?, 0)", (session, b"LEFTOVER-%d " % session * 40))
    raw.execute("DELETE FROM event WHERE session % 2")
    raw.close()


def test_damaged_store_of_an_earlier_version_is_brought_forward_all_the_same(path: Path) -> None:
    write_first_version(path)
    data = bytearray(path.read_bytes())
    data[data.index(b"LEFTOVER-8 ") // 4096 * 4096] = 0xFF
    path.write_bytes(data)
    store = SqliteStore(path)
    assert (store.erasing(), store.start) == ([], 1)
    with pytest.raises(DamagedRecordError):
        store.events(8)
    store.close()


def test_store_of_an_earlier_version_is_cleaned_when_it_is_brought_forward(path: Path) -> None:
    write_first_version(path)
    assert b"LEFTOVER-7 " in path.read_bytes()
    store = SqliteStore(path)
    assert (store.erasing(), store.start) == ([], 1)
    data = path.read_bytes() + path.with_name("sessions.db-wal").read_bytes()
    assert b"LEFTOVER-7 " not in data
    assert b"LEFTOVER-8 " in data
    store.close()


def test_log_is_moved_into_the_file_now_and_then_and_is_gone_behind_a_clean_end(path: Path) -> None:
    store = SqliteStore(path)
    log = path.with_name("sessions.db-wal")
    for session in range(1, 1000):
        root(store, session, 1)
        commit(store, AddEvents(session, (event(1, b"x" * 20_000),)))
    assert 0 < log.stat().st_size < 16 * 1024 * 1024
    store.close()
    assert not log.exists()
    again = SqliteStore(path)
    assert len(again.rows()) == 999
    again.close()


def test_session_ids_are_never_reused_even_after_the_last_is_forgotten(path: Path) -> None:
    store = SqliteStore(path)
    assert [store.allocate_session_id() for _ in range(3)] == [1, 2, 3]
    root(store, 3, 1)
    commit(store, ForgetSession(3))
    store.close()
    again = SqliteStore(path)
    assert again.allocate_session_id() == 4
    again.close()


def test_oldest_http_sessions_spares_named_touched_and_inherited_ones(store: SqliteStore) -> None:
    root(store, 1, 1, origin=Origin.SESSION_API, touched_unix_ms=1)
    root(store, 2, 2, origin=Origin.HTTP, touched_unix_ms=2)
    root(store, 3, 1, origin=Origin.HTTP, touched_unix_ms=3)
    root(store, 4, 1, origin=Origin.HTTP, touched_unix_ms=90)
    fork(store, 5, 2, 1, 1)
    assert [row.id for row in store.oldest_http_sessions(9, touched_before_unix_ms=50)] == [3]
    assert [row.id for row in store.oldest_http_sessions(1)] == [3]


def test_session_that_others_inherit_from_is_not_forgotten(store: SqliteStore) -> None:
    root(store, 1, 6)
    fork(store, 2, 1, 4, 3)
    assert commit(store, ForgetSession(1)) is None
    assert len(store.events(1)) == 6
    assert len(store.events(2)) == 7
    commit(store, ForgetSession(2), ForgetSession(1))
    assert store.rows() == []


def test_fork_of_a_session_that_is_gone_is_refused(store: SqliteStore) -> None:
    root(store, 1, 6)
    commit(store, ForgetSession(1))
    row = SessionRow(id=2, parent=1, base=1, fork_at=4, events=5)
    assert isinstance(commit(store, PutSession(row), AddEvents(2, (event(4),))), StoreUnavailableError)
    assert store.rows() == []


def test_log_that_was_refused_is_asked_for_anew(store: SqliteStore) -> None:
    """What the writer remembers of a log must not run ahead of a transaction that was undone."""
    root(store, 1, 3)
    broken = AddEvents(1, (event(3), event(3)))
    assert isinstance(commit(store, broken), StoreUnavailableError)
    assert commit(store, AddEvents(1, (event(3),))) is None
    assert len(store.events(1)) == 4


def test_id_of_a_forgotten_session_is_not_used_again_after_a_crash(path: Path) -> None:
    store = SqliteStore(path)
    root(store, 7, 1)
    commit(store, ForgetSession(7))
    # Nobody closes this store before it is opened again.
    copy = path.with_name("copy.db")
    source = apsw.Connection(str(path))
    source.execute("VACUUM INTO ?", (str(copy),))
    source.close()
    again = SqliteStore(copy)
    assert again.allocate_session_id() == 8
    again.close()
    store.close()


def test_batch_that_raises_something_foreign_fails_alone_and_the_writer_lives(store: SqliteStore) -> None:
    root(store, 1, 3)
    bad = StoredEvent(3, 1, 2**70, b"beyond what SQLite counts")
    assert isinstance(commit(store, AddEvents(1, (bad,))), StoreUnavailableError)
    assert commit(store, AddEvents(1, (event(3),))) is None


def test_commit_that_comes_while_the_store_closes_is_answered(store: SqliteStore) -> None:
    """It was found open, and what it queued came behind the end."""
    answered = threading.Event()
    closing = threading.Thread(target=store.close, daemon=True)
    queued = store._writer._queue

    class Late:
        """Whoever puts is held up by somebody who closes."""

        def put(self, item: Submission | None) -> None:
            if item is not None:
                closing.start()
                closing.join(0.2)
            queued.put(item)

        def __getattr__(self, name: str) -> object:
            return getattr(queued, name)

    store._writer._queue = Late()  # type: ignore[assignment]
    store.commit([()], lambda _: answered.set())
    closing.join(30)
    assert not closing.is_alive()
    assert answered.wait(30)


def test_store_is_its_owners_only(path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = SqliteStore(path)
        root(store, 1, 3)
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        store.close()
    finally:
        os.umask(before)
    assert modes == {"sessions.db": 0o600, "sessions.db-wal": 0o600, "sessions.db-shm": 0o600}


def test_statistics_tell_sizes_as_of_now(store: SqliteStore) -> None:
    root(store, 1, 1)
    before = store.statistics()
    commit(store, AddEvents(1, (event(1, b"x" * 300_000),)))
    after = store.statistics()
    assert after.file_bytes >= before.file_bytes + 300_000
    assert after.used_bytes <= after.file_bytes
    commit(store, ForgetSession(1))
    assert store.statistics().used_bytes < before.file_bytes + 100_000
    assert store.statistics().commits_total == 3


def test_sessions_that_were_generating_are_named(store: SqliteStore) -> None:
    root(store, 1, 1, is_generating=True)
    root(store, 2, 1)
    root(store, 3, 1, is_generating=True, is_purged=True)
    assert 1 in store.generating()
    assert 2 not in store.generating()
