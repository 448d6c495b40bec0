"""The stored form of an exported llama.cpp lane: one stream, wherever it came from. Pure; runs in the worker.

llama.cpp writes (little-endian u32): a model word, the sequence id, the count of streams, and for each stream its count
of cells, followed, if that is not 0, by the cells and their data. It refuses a count of streams other than its own, so
the stored form has exactly one stream, and the empty ones are put back for the importing context.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
from numpy.typing import NDArray

from superfluid.errors import EngineFaultError

WORD: Final = 4
HEADER_BYTES: Final = 3 * WORD
CELL_BYTES: Final = 3 * WORD

ROOM_BYTES: Final = 1024
"""More than the empty streams of any context take."""

Bytes = NDArray[np.uint8]


class RoomyState:
    """A stored state behind ``ROOM_BYTES`` of no meaning, where the empty streams can be put without copying the rest:
    fresh memory for a large state takes longer than importing it."""

    def __init__(self, buffer: Bytes) -> None:
        """Owns ``buffer`` from now on."""
        self._buffer = buffer

    def __len__(self) -> int:
        return len(self._buffer) - ROOM_BYTES

    def __bytes__(self) -> bytes:
        return self._buffer[ROOM_BYTES:].tobytes()

    def stored(self) -> Bytes:
        """The stored form: a view."""
        return self._buffer[ROOM_BYTES:]

    @contextmanager
    def in_form(self, lane: int, streams: int) -> Iterator[Bytes]:
        """As ``from_stored``; a view, which is of no use any more when the context ends."""
        padding = WORD * (streams - 1)
        assert padding <= ROOM_BYTES
        header = self._buffer[ROOM_BYTES : ROOM_BYTES + HEADER_BYTES].copy()
        form = self._buffer[ROOM_BYTES - padding :]
        form[HEADER_BYTES : HEADER_BYTES + padding] = 0
        form[:HEADER_BYTES] = header
        form[WORD:HEADER_BYTES] = np.array([lane, streams], "<u4").view(np.uint8)
        try:
            yield form
        finally:
            self._buffer[ROOM_BYTES : ROOM_BYTES + HEADER_BYTES] = header


def to_stored(exported: Bytes, lane: int, streams: int) -> bytes:
    """What ``llama_state_seq_get_data`` wrote, with only the stream that has cells. Scribbles over ``exported``.

    Raises EngineFaultError if it is not laid out as expected: another build of llama.cpp, whose states cannot be kept.
    """
    tail = WORD * (streams - 1 - lane)
    empty_before = exported[HEADER_BYTES : HEADER_BYTES + WORD * lane]
    empty_behind = exported[len(exported) - tail :]
    header = exported[:HEADER_BYTES].copy().view("<u4")
    if header[2] != streams or empty_before.any() or empty_behind.any():
        raise EngineFaultError("llama.cpp writes lane states in a form that this version does not know")
    start = WORD * lane
    exported[start : start + HEADER_BYTES] = np.array([header[0], 0, 1], "<u4").view(np.uint8)
    return exported[start : len(exported) - tail].tobytes()


def from_stored(stored: bytes, lane: int, streams: int) -> Bytes:
    """The form that a context of ``streams`` streams reads into ``lane``; the cells follow the empty streams."""
    padding = WORD * (streams - 1)
    restored = np.empty(len(stored) + padding, np.uint8)
    source = np.frombuffer(stored, np.uint8)
    restored[:HEADER_BYTES] = source[:HEADER_BYTES]
    restored[WORD:HEADER_BYTES] = np.array([lane, streams], "<u4").view(np.uint8)
    restored[HEADER_BYTES : HEADER_BYTES + padding] = 0
    restored[HEADER_BYTES + padding :] = source[HEADER_BYTES:]
    return restored


def cell_count(stored: bytes | Bytes) -> int | None:
    """Cells that a stored state claims to hold; ``None`` if it cannot be one."""
    if len(stored) < HEADER_BYTES + WORD:
        return None
    words = np.frombuffer(stored, "<u4", 4)
    return int(words[3]) if words[2] == 1 else None


def has_transposed_values(state: bytes) -> bool | None:
    """Whether the V cache is transposed, as it is without flash attention: the word behind the first stream's cells.

    ``state`` is a stored one, or lane 0's as it was exported. ``None`` if it does not tell.
    """
    if len(state) < HEADER_BYTES + WORD:
        return None
    offset = HEADER_BYTES + WORD + CELL_BYTES * int(np.frombuffer(state, "<u4", 4)[3])
    word = int.from_bytes(state[offset : offset + WORD], "little") if len(state) >= offset + WORD else -1
    return bool(word) if word in (0, 1) else None
