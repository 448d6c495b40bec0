"""Rotating log files: names, rotation, retention, and what happens when writing fails."""

import contextlib
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from superfluid.telemetry import file_sink
from superfluid.telemetry.file_sink import RotatingFileSink

NOBODY = 65534


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory), key=lambda name: int(name.split(".")[1]))


def write_lines(sink: RotatingFileSink, *lines: bytes) -> None:
    for line in lines:
        sink.put(line)
    sink.close()


def test_sink_creates_directory_and_private_file(tmp_path: Path) -> None:
    sink = RotatingFileSink(tmp_path / "a" / "b", print)
    write_lines(sink, b"one\n", b"two\n")
    assert sink.path == tmp_path / "a" / "b" / "superfluid.0.jsonl"
    assert sink.path.read_bytes() == b"one\ntwo\n"
    assert stat.S_IMODE(sink.path.stat().st_mode) == 0o600


def test_every_start_opens_a_number_above_the_highest(tmp_path: Path) -> None:
    for name in ("superfluid.2.jsonl", "superfluid.10.jsonl", "superfluid.x.jsonl", "other.99.jsonl"):
        (tmp_path / name).touch()
    sink = RotatingFileSink(tmp_path, print)
    sink.close()
    assert sink.path.name == "superfluid.11.jsonl"


def test_line_that_would_pass_the_bound_opens_the_next_file(tmp_path: Path) -> None:
    sink = RotatingFileSink(tmp_path, print, max_file_bytes=10)
    write_lines(sink, b"12345\n", b"789\n", b"x\n", b"longer than ten\n")
    contents = [(tmp_path / name).read_bytes() for name in names(tmp_path)]
    assert contents == [b"12345\n789\n", b"x\n", b"longer than ten\n"]


def test_rotation_keeps_the_newest_files(tmp_path: Path) -> None:
    write_lines(RotatingFileSink(tmp_path, print, max_file_bytes=4, kept_files=3), *[b"abc\n"] * 7)
    assert names(tmp_path) == ["superfluid.4.jsonl", "superfluid.5.jsonl", "superfluid.6.jsonl"]


@pytest.mark.parametrize("is_directory_deleted", [False, True])
def test_file_that_was_deleted_is_begun_anew(tmp_path: Path, is_directory_deleted: bool) -> None:
    notes: list[str] = []
    sink = RotatingFileSink(tmp_path / "logs", notes.append)
    sink.put(b"lost with its file\n")
    deadline = time.monotonic() + 30
    while not sink.path.stat().st_size and time.monotonic() < deadline:
        time.sleep(0.001)
    sink.path.unlink()
    if is_directory_deleted:
        (tmp_path / "logs").rmdir()
    write_lines(sink, b"kept\n")
    assert sink.path.read_bytes() == b"kept\n"
    assert (sink.dropped_lines, notes) == (0, [])


class Gate:
    """Stands in for the writing of bytes: blocks until opened, or fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self.is_open = threading.Event()
        self.error: OSError | None = None
        self.calls = threading.Semaphore(0)
        write: Callable[[int, bytes], None] = file_sink._write_all

        def gated(descriptor: int, data: bytes) -> None:
            self.entered.set()
            assert self.is_open.wait(30)
            try:
                if self.error is not None:
                    os.write(descriptor, data[:1])
                    raise self.error
                write(descriptor, data)
            finally:
                self.calls.release()

        monkeypatch.setattr(file_sink, "_write_all", gated)

    def wait_for_calls(self, count: int) -> None:
        for _ in range(count):
            assert self.calls.acquire(timeout=30)


def test_full_queue_drops_counts_and_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    sink = RotatingFileSink(tmp_path, print, queue_lines=1)
    sink.put(b"first\n")
    assert gate.entered.wait(30)
    for _ in range(20):
        sink.put(b"line\n")
    assert sink.dropped_lines == 4
    gate.is_open.set()
    sink.close()
    assert sink.path.read_bytes().count(b"\n") == 17


def test_failing_disk_drops_whole_lines_and_is_reported_once_per_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    gate.is_open.set()
    notes: list[str] = []
    sink = RotatingFileSink(tmp_path, notes.append)
    sink.put(b"good\n")
    gate.wait_for_calls(1)
    gate.error = OSError(28, "No space left on device")
    sink.put(b"lost\n")
    sink.put(b"lost\n")
    gate.wait_for_calls(2)
    gate.error = None
    write_lines(sink, b"good again\n")
    assert sink.path.read_bytes() == b"good\ngood again\n"
    assert sink.dropped_lines == 2
    assert [note.partition(":")[0] for note in notes] == [
        "the log cannot be written, lines are dropped",
        "the log is being written again",
    ]


def test_sink_after_close_counts_what_it_is_given(tmp_path: Path) -> None:
    sink = RotatingFileSink(tmp_path, print)
    sink.close()
    sink.close()
    sink.put(b"late\n")
    assert sink.dropped_lines == 1


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write anywhere: for as long as this lasts it is somebody else."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_directory_without_permission_raises() -> None:
    # Not below pytest's directories, which nobody but their owner can enter.
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o555)
        with as_nobody(), pytest.raises(PermissionError, match=re.escape(f"{directory}/superfluid.0.jsonl")):
            RotatingFileSink(Path(directory), print)


def test_path_that_is_no_directory_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="File exists"):
        RotatingFileSink(tmp_path / "file", print)
