"""Lines into numbered files that rotate, through a bounded queue and one writer thread. Lives in the daemon."""

import contextlib
import os
import queue
import re
import threading
from collections.abc import Callable
from pathlib import Path

MAX_FILE_BYTES = 64 * 1024 * 1024
KEPT_FILES = 8
QUEUE_LINES = 8192
_MIN_QUEUE_LINES = 16
_NAME = re.compile(r"superfluid\.(\d+)\.jsonl")


class RotatingFileSink:
    """``superfluid.<n>.jsonl`` in ``directory``; every start and every rotation opens the next number.

    A line is dropped and counted when the queue is full, the writer is gone, or it cannot be written. ``on_fault``
    hears of the first failure of an outage and of its end, on the writer's thread. Raises OSError if the first file
    cannot be opened.
    """

    def __init__(
        self,
        directory: Path,
        on_fault: Callable[[str], None],
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        kept_files: int = KEPT_FILES,
        queue_lines: int = QUEUE_LINES,
    ) -> None:
        self._files = _NumberedFiles(directory, max_file_bytes, kept_files)
        self._on_fault = on_fault
        self._is_failing = False
        self._dropped_full = 0
        self._dropped_unwritten = 0
        self._queue: queue.Queue[bytes | None] = queue.Queue(max(queue_lines, _MIN_QUEUE_LINES))
        self._writer = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._writer.start()

    @property
    def dropped_lines(self) -> int:
        # Two counters, since each is written by one side only.
        return self._dropped_full + self._dropped_unwritten

    @property
    def path(self) -> Path:
        """The file being written."""
        return self._files.path

    def put(self, line: bytes) -> None:
        """Queues a line, its end included. Never blocks, never raises. Not to be called from two threads at once."""
        if not self._writer.is_alive():
            self._dropped_full += 1
            return
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._dropped_full += 1

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Writes what is queued, as far as the time suffices. Idempotent."""
        if self._writer.is_alive():
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=timeout_seconds)
            self._writer.join(timeout_seconds)

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                self._files.write(line)
            except OSError as error:
                self._dropped_unwritten += 1
                self._note(f"the log cannot be written, lines are dropped: {error.strerror}", is_failing=True)
            else:
                self._note("the log is being written again", is_failing=False)
        self._files.close()

    def _note(self, message: str, *, is_failing: bool) -> None:
        if self._is_failing != is_failing:
            self._is_failing = is_failing
            self._on_fault(message)


class _NumberedFiles:
    """The files themselves. Belongs to one thread; every method may raise OSError."""

    def __init__(self, directory: Path, max_file_bytes: int, kept_files: int) -> None:
        self._directory = directory
        self._max_file_bytes = max_file_bytes
        self._kept_files = kept_files
        self._size = 0
        directory.mkdir(parents=True, exist_ok=True)
        self._descriptor, self.path = self._open_next()
        self._delete_oldest()

    def write(self, line: bytes) -> None:
        """Writes the whole line or, raising, none of it. A file that somebody has deleted is begun anew."""
        if os.fstat(self._descriptor).st_nlink == 0:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._rotate()
        if self._size + len(line) > self._max_file_bytes and self._size > 0:
            self._rotate()
        try:
            _write_all(self._descriptor, line)
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to report
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        os.close(self._descriptor)

    def _rotate(self) -> None:
        descriptor, self.path = self._open_next()
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._size = 0
        self._delete_oldest()

    def _numbers(self) -> list[int]:
        return sorted(int(match[1]) for name in os.listdir(self._directory) if (match := _NAME.fullmatch(name)))

    def _open_next(self) -> tuple[int, Path]:
        numbers = self._numbers()
        number = numbers[-1] + 1 if numbers else 0
        while True:
            path = self._directory / f"superfluid.{number}.jsonl"
            try:
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600), path
            except FileExistsError:
                number += 1  # another server logs into the same directory

    def _delete_oldest(self) -> None:
        for number in self._numbers()[: -self._kept_files]:
            (self._directory / f"superfluid.{number}.jsonl").unlink(missing_ok=True)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
