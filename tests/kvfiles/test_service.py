"""The threads of the KV files: what they report, and that trouble with the disk costs warmth and nothing else."""

import logging
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.kv_files import BOTH, KEY, SteppedKvFiles, stream
from tests.fixtures.tick_loop import SteppedClock

from superfluid.clock import SystemClock
from superfluid.domain.job import ParkKind
from superfluid.kvfiles.directory import DiskFullError, KvDirectory
from superfluid.kvfiles.erasing import erase_files
from superfluid.kvfiles.format import KvKey
from superfluid.kvfiles.service import (
    MAX_WAITING_WRITES,
    PAUSE_SECONDS,
    KvErased,
    KvEvent,
    KvFiles,
    KvNotWritten,
    KvOpened,
    KvRead,
    KvRemoved,
    KvWrite,
    KvWritten,
)

SECONDS = 20.0


class Threads:
    """Real threads, and their events as they come."""

    def __init__(self, path: Path) -> None:
        self.events: queue.SimpleQueue[KvEvent] = queue.SimpleQueue()
        self.files = KvFiles(
            path,
            BOTH,
            lambda _: KEY,
            self.events.put,
            clock=SystemClock(),
            thread_seconds=lambda: 0.0,
            reserve_bytes=0,
        )
        self.files.start()

    def event(self) -> KvEvent:
        return self.events.get(timeout=SECONDS)


@pytest.fixture
def threads(tmp_path: Path) -> Iterator[Threads]:
    running = Threads(tmp_path / "kv")
    assert running.event() == KvOpened((), 0, is_usable=True)
    yield running
    running.files.close(SECONDS)


def write_of(seed: int, *, write_id: int = 1, owner: int = 1) -> KvWrite:
    return KvWrite(write_id, ParkKind.SESSION, owner, stream(seed, 300), bytes([seed]) * 5000)


def test_write_then_read_in_another_run_gives_the_state(tmp_path: Path, threads: Threads) -> None:
    threads.files.write(write_of(1))
    written = threads.event()
    assert isinstance(written, KvWritten)
    threads.files.close(SECONDS)
    again = Threads(tmp_path / "kv")
    opened = again.event()
    assert isinstance(opened, KvOpened)
    assert [(file.name, file.owner) for file in opened.files] == [(written.name, 1)]
    again.files.read(written.name, stream(1, 300))
    got = again.event()
    assert isinstance(got, KvRead)
    assert got.state is not None
    assert got.state.tobytes() == bytes([1]) * 5000
    again.files.close(SECONDS)


def test_close_waits_for_what_was_handed_over(tmp_path: Path, threads: Threads) -> None:
    for write_id in range(MAX_WAITING_WRITES):
        threads.files.write(write_of(write_id, write_id=write_id))
    threads.files.close(SECONDS)
    assert len(list((tmp_path / "kv").glob("*.kv"))) == MAX_WAITING_WRITES


def test_read_of_a_damaged_file_says_so_and_removes_it(tmp_path: Path, threads: Threads) -> None:
    threads.files.write(write_of(1))
    written = threads.event()
    assert isinstance(written, KvWritten)
    path = tmp_path / "kv" / written.name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    threads.files.read(written.name, stream(1, 300))
    events = [threads.event(), threads.event()]
    (got,) = [event for event in events if isinstance(event, KvRead)]
    assert (got.state, got.is_damaged) == (None, True)
    assert KvRemoved() in events
    assert not path.exists()


def test_read_of_a_file_that_somebody_removed_is_a_miss(tmp_path: Path, threads: Threads) -> None:
    threads.files.write(write_of(1))
    written = threads.event()
    assert isinstance(written, KvWritten)
    (tmp_path / "kv" / written.name).unlink()
    threads.files.read(written.name, stream(1, 300))
    got = threads.event()
    assert isinstance(got, KvRead)
    assert (got.state, got.is_damaged) == (None, False)


def test_erase_comes_behind_the_writes_that_wait(tmp_path: Path, threads: Threads) -> None:
    for write_id, owner in enumerate((5, 6, 5)):
        threads.files.write(write_of(write_id, write_id=write_id, owner=owner))
    threads.files.erase(9, [5])
    events = [threads.event() for _ in range(4)]
    erased = events[-1]
    assert isinstance(erased, KvErased)
    assert (erased.request_id, len(erased.removed), erased.is_complete) == (9, 2, True)
    assert [file.name.split("-")[-1] for file in (tmp_path / "kv").iterdir()] == ["6.kv"]


def test_erase_without_a_worker_removes_the_same(tmp_path: Path, threads: Threads) -> None:
    for write_id, owner in enumerate((5, 6)):
        threads.files.write(write_of(write_id, write_id=write_id, owner=owner))
        threads.event()
    erase_files(tmp_path / "kv", [5])
    assert [file.name.split("-")[-1] for file in (tmp_path / "kv").iterdir()] == ["6.kv"]
    erase_files(tmp_path / "is-not-there", [5])


def test_full_disk_pauses_writing_with_one_warning_and_goes_on_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[KvEvent] = []
    clock = SteppedClock()
    files = SteppedKvFiles(tmp_path, events.append, clock=clock, reserve_bytes=2**62)
    caplog.set_level(logging.INFO, "superfluid_daemon::scheduler")
    for write_id in range(3):
        assert files.can_write
        files.write(write_of(write_id, write_id=write_id))
        files.work()
        assert not files.can_write
        clock.now += PAUSE_SECONDS
    assert events[1:] == [KvNotWritten(write_id, ()) for write_id in range(3)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    files._directory._reserve_bytes = 0
    files.write(write_of(3, write_id=3))
    files.work()
    assert isinstance(events[-1], KvWritten)
    assert files.can_write
    assert caplog.records[-1].getMessage() == "KV files are written again"


def test_queue_that_is_full_takes_no_more_until_something_is_written(tmp_path: Path) -> None:
    files = SteppedKvFiles(tmp_path, lambda _: None, clock=SteppedClock())
    for write_id in range(MAX_WAITING_WRITES):
        assert files.can_write
        files.write(write_of(write_id, write_id=write_id))
    assert not files.can_write
    files.work()
    assert files.can_write


def test_directory_that_cannot_be_used_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("a file")
    threads = Threads(tmp_path / "kv")
    assert threads.event() == KvOpened((), 0, is_usable=False)
    assert not threads.files.can_write
    threads.files.close(SECONDS)


def test_files_wait_for_a_key_that_takes_long(tmp_path: Path) -> None:
    ready = threading.Event()
    events: queue.SimpleQueue[KvEvent] = queue.SimpleQueue()

    def key(_: Path) -> KvKey:
        assert ready.wait(SECONDS)
        return KEY

    files = KvFiles(tmp_path, BOTH, key, events.put, clock=SystemClock(), thread_seconds=lambda: 0.0, reserve_bytes=0)
    files.start()
    files.wait_opened(0.01)
    assert not files.can_write
    ready.set()
    assert isinstance(events.get(timeout=SECONDS), KvOpened)
    assert files.can_write
    files.close(SECONDS)


def test_pause_that_ends_while_it_is_asked_for_is_over(tmp_path: Path) -> None:
    class Clock(SteppedClock):
        def monotonic(self) -> float:
            # As the writing thread does, between two steps of the asking one.
            files._resume()
            return super().monotonic()

    files = SteppedKvFiles(tmp_path, lambda _: None, clock=SteppedClock())
    files._pause(DiskFullError("the disk is full"))
    files._clock = Clock()
    files.can_write  # noqa: B018  (it must not raise)
    assert files.can_write


def test_request_that_meets_a_bug_is_answered_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever purges a session waits for the answer."""
    events: list[KvEvent] = []
    files = SteppedKvFiles(tmp_path, events.append, clock=SteppedClock())
    events.clear()

    def broken(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    for method in ("write", "read", "remove", "erase"):
        monkeypatch.setattr(KvDirectory, method, broken)
    files.write(write_of(1, write_id=3))
    files.remove(["name"])
    files.erase(4, [1])
    files.read("name", stream(1, 300))
    files.work()
    assert events == [
        KvNotWritten(3, ()),
        KvRemoved(),
        KvErased(4, (), is_complete=False),
        KvRead("name", None, is_damaged=False, seconds=0.0),
    ]
    assert len(caplog.records) == 4
    assert files.can_write
