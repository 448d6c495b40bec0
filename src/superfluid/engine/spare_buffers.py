"""Memory for lane states that is in use already, so that an export need not wait for it. Runs in the worker.

Memory that was never touched takes up to fifty times as long as the export itself, in a virtual machine above all.
"""

import contextlib
import mmap
import threading
from typing import Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

LEAST_BYTES: Final = 1 << 20
"""Smaller buffers are ordinary memory, and none of them is kept."""
REST_BYTES: Final = 64 << 20
"""What may be kept for states to come whatever is in use, and is made ready while nothing runs."""
PREPARED_BYTES: Final = 2 << 20
"""Made ready at a time: some milliseconds at most."""
_SIZE_STEPS: Final = 16
_LOOSE: Final = 2
"""A buffer this many times too large is left for another."""
_TIGHT: Final = 1.25
"""One that is this many times too large is cut."""
_HUGE_PAGES_FROM: Final = 4 << 20
_PAGE_BYTES: Final = 4096


class SpareBuffers:
    """Buffers of states that are gone, for the next ones: as they are, made longer, or cut.

    Those that are kept and those in use take no more than ``limit_bytes`` together; but ``REST_BYTES`` may be kept
    always. The oldest go first. ``put_back`` may be called by any thread.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.RLock()
        self._spares: list[mmap.mmap] = []
        self._used_bytes = 0
        self.new_bytes_total = 0
        """Of what was taken, as much had never been used before."""
        self._wanted_bytes = 0
        self._unready: tuple[mmap.mmap, int] | None = None
        """A buffer that is being made ready, and how much of it is."""

    @property
    def ready_bytes(self) -> int:
        """Of the next state as much goes to memory that was in use before."""
        with self._lock:
            return max(map(len, self._spares), default=0)

    @property
    def spare_bytes(self) -> int:
        """All that is kept."""
        with self._lock:
            return sum(map(len, self._spares)) + (0 if self._unready is None else len(self._unready[0]))

    @property
    def has_excess(self) -> bool:
        """Whether ``trim`` would give something back."""
        return self.spare_bytes > REST_BYTES

    def take(self, size_bytes: int) -> Bytes:
        """At least so long; what is in it has no meaning. Whoever takes it puts it back. Raises MemoryError."""
        if size_bytes < LEAST_BYTES:
            return np.empty(size_bytes, np.uint8)
        mapping = self._fitted(size_bytes)
        if mapping is None:
            mapping = _new_mapping(_with_room(size_bytes))
            self.new_bytes_total += size_bytes
        with self._lock:
            self._wanted_bytes = size_bytes
            self._used_bytes += len(mapping)
            shed = self._shed()
        del shed
        return np.frombuffer(mapping, np.uint8)

    def put_back(self, buffer: Bytes) -> None:
        """Nobody may have a view of it any more."""
        mapping = _mapping_of(buffer)
        if mapping is None:
            return
        with self._lock:
            self._used_bytes -= len(mapping)
            self._spares.append(mapping)
            shed = self._shed()
        del shed

    def clear(self) -> None:
        """Gives the memory back; nothing is made ready before the next ``take``."""
        with self._lock:
            shed, self._spares = self._spares, []
            self._unready = None
            self._wanted_bytes = 0
        shed.clear()

    def prepare(self) -> bool:
        """Makes a piece of memory ready for a state like the last one. False if there is nothing to do: ``REST_BYTES``
        are kept. By the thread that takes."""
        if self._unready is None and not self._begin_to_prepare():
            return False
        assert self._unready is not None
        mapping, begin = self._unready
        end = min(begin + PREPARED_BYTES, len(mapping))
        np.frombuffer(mapping, np.uint8)[begin:end:_PAGE_BYTES] = 0
        self._unready = (mapping, end)
        if end == len(mapping):
            self._finish_preparing()
        return True

    def trim(self) -> None:
        """Gives back what is beyond ``REST_BYTES``."""
        with self._lock:
            shed = self._shed(REST_BYTES)
        del shed

    def _fitted(self, size_bytes: int) -> mmap.mmap | None:
        """The smallest that is long enough, else the longest, made longer."""
        self._finish_preparing()
        with self._lock:
            fitting = [spare for spare in self._spares if size_bytes <= len(spare) <= _LOOSE * size_bytes]
            short = [spare for spare in self._spares if len(spare) < size_bytes]
            if not (fitting or short):
                return None
            found = min(fitting, key=len) if fitting else max(short, key=len)
            self._spares.remove(found)
        held_bytes = len(found)
        if size_bytes <= held_bytes <= _TIGHT * size_bytes:
            return found
        if not _resize(found, _with_room(size_bytes)):
            return found if held_bytes >= size_bytes else None
        self.new_bytes_total += max(0, size_bytes - held_bytes)
        return found

    def _shed(self, limit_bytes: int | None = None) -> list[mmap.mmap]:
        """Takes out what must go, the oldest first. To be let go of without the lock."""
        if limit_bytes is None:
            limit_bytes = max(REST_BYTES, self._limit_bytes - self._used_bytes)
        excess = sum(map(len, self._spares)) - limit_bytes
        shed: list[mmap.mmap] = []
        while excess > 0:
            shed.append(self._spares.pop(0))
            excess -= len(shed[-1])
        return shed

    def _begin_to_prepare(self) -> bool:
        size_bytes = _with_room(self._wanted_bytes)
        if not (self._limit_bytes and self._wanted_bytes) or self.spare_bytes + size_bytes > REST_BYTES:
            return False
        try:
            self._unready = (_new_mapping(size_bytes), 0)
        except MemoryError:
            self._wanted_bytes = 0
        return self._unready is not None

    def _finish_preparing(self) -> None:
        """What is ready of it counts, and the rest of it becomes so when it is used."""
        if self._unready is None:
            return
        mapping, ready = self._unready
        self._unready = None
        if ready == len(mapping) or (ready and _resize(mapping, ready)):
            with self._lock:
                self._spares.append(mapping)


def _with_room(size_bytes: int) -> int:
    """For a conversation that grows: rounded up to a sixteenth of the next power of two."""
    step = max(1, (1 << size_bytes.bit_length()) // _SIZE_STEPS)
    return -(-size_bytes // step) * step


def _new_mapping(size_bytes: int) -> mmap.mmap:
    """Apart from all other memory, so that the system has it back when it is let go of. Raises MemoryError."""
    try:
        mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for a state of {size_bytes} bytes") from error
    if size_bytes >= _HUGE_PAGES_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # A kernel without them.
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


def _resize(mapping: mmap.mmap, size_bytes: int) -> bool:
    """Without touching what it has. False where the system cannot, or somebody has a view of it."""
    try:
        mapping.resize(size_bytes)
    except (OSError, SystemError, BufferError):
        return False
    return True


def _mapping_of(buffer: Bytes) -> mmap.mmap | None:
    base = buffer.base
    mapping = base.obj if isinstance(base, memoryview) else None
    return mapping if isinstance(mapping, mmap.mmap) else None
