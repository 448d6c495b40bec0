"""Bytes of the store file that change by themselves: a session reads exactly as written, or not at all and by name."""

import random
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest

from superfluid.errors import DamagedRecordError, StoreError, StoreUnavailableError, SuperfluidError
from superfluid.store.interface import AddEvents, PutPrefix, PutSession, SessionRow, StoredEvent
from superfluid.store.sqlite import SqliteStore

SESSIONS = 30
EVENTS = 40


def commit(store: SqliteStore, session: int, count: int, base: int | None = None, fork_at: int = 0) -> None:
    source = random.Random(session)
    events = tuple(StoredEvent(fork_at + n, 1, 5, source.randbytes(source.randrange(400))) for n in range(count))
    row = SessionRow(id=session, parent=base, base=base, fork_at=fork_at, events=fork_at + count, title=f"t{session}")
    done = threading.Event()
    answers: list[SuperfluidError | None] = []

    def answer(errors: Sequence[SuperfluidError | None]) -> None:
        answers.extend(errors)
        done.set()

    store.commit([(PutSession(row), AddEvents(session, events))], answer)
    assert done.wait(30)
    assert answers == [None]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "sessions.db"
    store = SqliteStore(path)
    for session in range(1, SESSIONS):
        base = session // 2 if session % 3 == 0 else None
        commit(store, session, EVENTS, base, 0 if base is None else EVENTS // 2)
    store.close()
    return path


@pytest.mark.parametrize("seed", range(60))
def test_session_reads_as_written_or_is_refused_by_name(filled: Path, tmp_path: Path, seed: int) -> None:
    store = SqliteStore(filled)
    whole = {session: store.events(session) for session in range(1, SESSIONS)}
    store.close()
    path = tmp_path / "sessions.db"
    shutil.copy(filled, path)
    source = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(source.choice([1, 1, 4, 40])):
        # The header says what kind of file it is; it has a test of its own.
        position = source.randrange(200, len(data))
        data[position] ^= 1 << source.randrange(8)
    path.write_bytes(data)
    try:
        damaged = SqliteStore(path)
    except StoreError:
        return
    for session, events in whole.items():
        try:
            row = damaged.row(session)
            read = damaged.events(session)
        except (DamagedRecordError, StoreUnavailableError):
            continue
        # A row or a tail that is gone altogether is found by comparing the two, where both are read.
        if row is not None and len(read) >= row.events == len(events):
            assert read == events
    damaged.close()


@pytest.mark.parametrize("start", [0, 16, 40, 96])
def test_damaged_header_is_refused_at_the_start_and_never_ignored(filled: Path, tmp_path: Path, start: int) -> None:
    path = tmp_path / "sessions.db"
    data = bytearray(filled.read_bytes())
    data[start : start + 4] = b"\xff\xfe\xfd\xfc"
    path.write_bytes(data)
    try:
        store = SqliteStore(path)
    except StoreError:
        return
    assert [event.event_id for event in store.events(1)] == list(range(EVENTS))
    store.close()


def test_damaged_session_that_is_written_to_does_not_hold_up_its_neighbours(filled: Path, tmp_path: Path) -> None:
    """Its page cannot be written; the batches that share its transaction are committed all the same."""
    path = tmp_path / "sessions.db"
    shutil.copy(filled, path)
    raw = apsw.Connection(str(path))
    (root,) = raw.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'prefix'").fetchone()  # type: ignore[misc]
    page = raw.execute("PRAGMA page_size").get
    raw.close()
    data = bytearray(path.read_bytes())
    data[(root - 1) * page : (root - 1) * page + 8] = b"\x00" * 8
    path.write_bytes(data)
    store = SqliteStore(path)
    entered, release, done = threading.Event(), threading.Event(), threading.Event()
    answers: list[SuperfluidError | None] = []

    def block(_: Sequence[SuperfluidError | None]) -> None:
        entered.set()
        release.wait(30)

    def answer(errors: Sequence[SuperfluidError | None]) -> None:
        answers.extend(errors)
        done.set()

    store.commit([()], block)
    assert entered.wait(30)
    event = StoredEvent(EVENTS, 1, 5, b"x")
    store.commit([(AddEvents(1, (event,)),), (PutPrefix(b"d", 1, 1),), (AddEvents(2, (event,)),)], answer)
    release.set()
    assert done.wait(30)
    assert (answers[0], answers[2]) == (None, None)
    assert isinstance(answers[1], StoreUnavailableError)
    assert len(store.events(1)) == len(store.events(2)) == EVENTS + 1
    store.close()
