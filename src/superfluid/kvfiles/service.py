"""The threads that read and write KV files beside the tick loop, and what they report to it. In the worker.

One thread writes, removes and sweeps, in the order it was asked to; another reads, so that a job does not wait behind a
sync. At most four writes wait: a caller asks ``can_write`` first.
"""

import logging
import queue
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from superfluid.clock import Clock
from superfluid.domain.job import ParkKind
from superfluid.kvfiles.directory import (
    FREE_RESERVE_BYTES,
    DamagedFileError,
    DiskFullError,
    FoundFile,
    KvDirectory,
    TooLargeError,
)
from superfluid.kvfiles.format import Bytes, KvKey, StateParts, Tokens, encode
from superfluid.kvfiles.names import KvName

MAX_WAITING_WRITES: Final = 4
MAX_WAITING_BYTES: Final = 512 << 20
PAUSE_SECONDS: Final = 30.0
"""How long nothing is written after the disk has refused something."""

_logger = logging.getLogger("superfluid_daemon::scheduler")


@dataclass(frozen=True, slots=True)
class KvOpened:
    """The directory is open; these files are of use to this model. If it cannot be used, nothing will be written."""

    files: tuple[FoundFile, ...]
    damaged: int
    is_usable: bool


@dataclass(frozen=True, slots=True)
class KvWritten:
    """``name`` is on the disk; ``removed`` had to go for it. ``cpu_seconds`` were taken from whoever else computes."""

    write_id: int
    name: str
    size_bytes: int
    seconds: float
    cpu_seconds: float
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KvNotWritten:
    write_id: int
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KvRead:
    """``state``, behind the room that was asked for, is ``None`` if the file is gone, or was damaged and removed."""

    name: str
    state: Bytes | None
    is_damaged: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class KvRemoved:
    """What was to be removed is gone."""


@dataclass(frozen=True, slots=True)
class KvErased:
    """Nothing of the sessions of ``request_id`` is left here, nor on its way here; or else the disk refused."""

    request_id: int
    removed: tuple[str, ...]
    is_complete: bool


KvEvent = KvOpened | KvWritten | KvNotWritten | KvRead | KvRemoved | KvErased


@dataclass(frozen=True, slots=True)
class KvWrite:
    """A state on its way to the disk."""

    write_id: int
    kind: ParkKind
    owner: int | None
    tokens: Tokens
    state: bytes | StateParts


@dataclass(frozen=True, slots=True)
class _Task:
    """Something that a thread is to do. It posts what came of it; ``failure`` is posted if it raises."""

    run: Callable[[], None]
    failure: KvEvent


class KvFiles:
    """The tick loop's side. ``post`` is called by the threads with what came of each request; no method here blocks,
    but for ``wait_opened`` and ``close``."""

    def __init__(
        self,
        directory: Path,
        budgets: Mapping[ParkKind, int | None],
        key: Callable[[Path], KvKey],
        post: Callable[[KvEvent], None],
        *,
        clock: Clock,
        thread_seconds: Callable[[], float],
        reserve_bytes: int = FREE_RESERVE_BYTES,
        room_bytes: int = 0,
    ) -> None:
        """``key`` is asked on the writing thread, since it may have to read the whole model; it may raise OSError.
        States are read with ``room_bytes`` before them."""
        self._directory = KvDirectory(directory, budgets, reserve_bytes=reserve_bytes)
        self._key = key
        self._room_bytes = room_bytes
        self._post = post
        self._clock = clock
        self._thread_seconds = thread_seconds
        self._writes: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._waiting = 0
        self._waiting_bytes = 0
        self._is_open = threading.Event()
        self._known_key: KvKey | None = None
        self._paused_until: float | None = None
        self._writer = threading.Thread(target=self._work, args=(self._writes,), name="kv writer", daemon=True)
        self._reader = threading.Thread(target=self._work, args=(self._reads,), name="kv reader", daemon=True)

    @property
    def can_write(self) -> bool:
        """Whether a write would be taken now."""
        # Read once: the writing thread ends the pause.
        until = self._paused_until
        is_paused = until is not None and self._clock.monotonic() < until
        has_room = self._waiting < MAX_WAITING_WRITES and self._waiting_bytes < MAX_WAITING_BYTES
        return self._known_key is not None and has_room and not is_paused

    @property
    def size_bytes(self) -> int:
        return self._directory.size_bytes

    def wait_room(self, seconds: float) -> None:
        """Until a write would be taken, or for so long."""
        with self._room:
            self._room.wait_for(lambda: self._waiting < MAX_WAITING_WRITES, seconds)

    def start(self) -> None:
        """Begins with opening the directory."""
        self._writes.put(_Task(self._open, KvOpened((), 0, is_usable=False)))
        self._writer.start()
        self._reader.start()

    def wait_opened(self, seconds: float) -> None:
        """Until the directory is open, or for so long: it takes longer when the model is new here."""
        self._is_open.wait(seconds)

    def write(self, write: KvWrite) -> None:
        """``can_write`` must be true."""
        with self._room:
            self._waiting += 1
            self._waiting_bytes += len(write.state)
        self._writes.put(_Task(partial(self._write, write), KvNotWritten(write.write_id, ())))

    def read(self, name: str, tokens: Tokens) -> None:
        failure = KvRead(name, None, is_damaged=False, seconds=0.0)
        self._reads.put(_Task(partial(self._read, name, tokens), failure))

    def remove(self, names: Collection[str]) -> None:
        self._writes.put(_Task(partial(self._remove, names), KvRemoved()))

    def erase(self, request_id: int, owners: Collection[int]) -> None:
        """Behind everything that waits to be written."""
        failure = KvErased(request_id, (), is_complete=False)
        self._writes.put(_Task(partial(self._erase, request_id, owners), failure))

    def close(self, seconds: float) -> None:
        """Writes what waits, for at most so long."""
        self._writes.put(None)
        self._reads.put(None)
        if self._writer.ident is not None:
            self._writer.join(seconds)

    # ---- on the threads

    def _work(self, todo: "queue.SimpleQueue[_Task | None]") -> None:
        while (task := todo.get()) is not None:
            self._carry_out(task)

    def _carry_out(self, task: _Task) -> None:
        try:
            task.run()
        except Exception:
            # Supervision point: a bug here costs warmth, and no reply. Nobody may wait for an answer for ever.
            _logger.exception("a KV file was not handled")
            self._post(task.failure)

    def _open(self) -> None:
        files: list[FoundFile] = []
        damaged = 0
        try:
            self._directory.open()
            key = self._key(self._directory.path)
            self._directory.sweep()
            self._directory.take_removed()
            files, damaged = self._directory.find(key.digest())
            self._known_key = key
        except (OSError, MemoryError) as error:
            _logger.warning("KV files are off: %s", _reason(error))
        finally:
            self._post(KvOpened(tuple(files), damaged, self._known_key is not None))
            self._is_open.set()

    def _write(self, write: KvWrite) -> None:
        begun, cpu_begun = self._clock.monotonic(), self._thread_seconds()
        key = self._known_key
        assert key is not None, "can_write was true"
        try:
            header, parts = encode(
                key, write.kind, write.owner, write.tokens, write.state, created_unix=self._clock.unix()
            )
            name = KvName(write.kind, key.digest(), header.token_digest.hex(), write.owner)
            size = self._directory.write(name, parts)
            self._directory.sweep()
        except TooLargeError as error:
            _logger.info("a KV file was not written: %s", error)
            self._post(KvNotWritten(write.write_id, self._directory.take_removed()))
            return
        except (OSError, DiskFullError, MemoryError) as error:
            self._pause(error)
            self._post(KvNotWritten(write.write_id, self._directory.take_removed()))
            return
        finally:
            with self._room:
                self._waiting -= 1
                self._waiting_bytes -= len(write.state)
                self._room.notify()
        self._resume()
        seconds, cpu_seconds = self._clock.monotonic() - begun, self._thread_seconds() - cpu_begun
        self._post(KvWritten(write.write_id, str(name), size, seconds, cpu_seconds, self._directory.take_removed()))

    def _read(self, name: str, tokens: Tokens) -> None:
        begun = self._clock.monotonic()
        state: Bytes | None = None
        is_damaged = False
        try:
            state = self._directory.read(name, tokens, room_bytes=self._room_bytes)
        except DamagedFileError as error:
            is_damaged = True
            _logger.warning("a KV file is damaged and was deleted: %s", error)
            self.remove([name])
        except FileNotFoundError:
            pass
        except (OSError, MemoryError) as error:
            _logger.warning("a KV file cannot be read: %s", _reason(error))
        self._post(KvRead(name, state, is_damaged, self._clock.monotonic() - begun))

    def _remove(self, names: Collection[str]) -> None:
        for name in names:
            try:
                self._directory.remove(name)
            except OSError as error:
                _logger.warning("a KV file cannot be removed: %s", error.strerror)
        self._post(KvRemoved())

    def _erase(self, request_id: int, owners: Collection[int]) -> None:
        removed: list[str] = []
        is_complete = True
        try:
            removed = self._directory.erase(owners)
        except OSError as error:
            is_complete = False
            _logger.error("KV files of erased sessions cannot be removed: %s", error.strerror)
        self._post(KvErased(request_id, tuple(removed), is_complete))

    def _pause(self, error: OSError | DiskFullError | MemoryError) -> None:
        if self._paused_until is None:
            _logger.warning("no KV files are written for now: %s", _reason(error))
        self._paused_until = self._clock.monotonic() + PAUSE_SECONDS

    def _resume(self) -> None:
        if self._paused_until is not None:
            _logger.info("KV files are written again")
            self._paused_until = None


def _reason(error: OSError | DiskFullError | MemoryError) -> str:
    """In few words, and without a path."""
    if isinstance(error, MemoryError):
        return "there is too little memory"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
