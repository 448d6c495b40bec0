"""The stored form of an exported llama.cpp lane: one stream, wherever it came from. Pure; runs in the worker.

llama.cpp writes (little-endian u32): a model word, the sequence id, the count of streams, and for each stream its count
of cells, followed, if that is not 0, by the cells and their data. It refuses a count of streams other than its own, so
the stored form has exactly one stream, and the empty ones are put back for the importing context.
"""

from typing import Final

import numpy as np

from superfluid.engine.spare_buffers import Bytes, SpareBuffers
from superfluid.errors import EngineFaultError

WORD: Final = 4
HEADER_BYTES: Final = 3 * WORD
CELL_BYTES: Final = 3 * WORD

ROOM_BYTES: Final = 1024
"""More than the empty streams of any context take."""


class LaneState:
    """A stored state in a buffer with ``ROOM_BYTES`` before it, so that it can be given the form that a context reads
    without being copied: fresh memory for a large state takes longer than exporting or importing it.

    The header is kept apart, since the form puts another in its place; what is behind it never changes. Whoever has
    views of the buffer keeps the state as well: the buffer may be used for another one when the state is gone.
    """

    def __init__(self, buffer: Bytes, size_bytes: int | None = None, spares: SpareBuffers | None = None) -> None:
        """Owns ``buffer`` from now on; ``spares`` gets it in the end. The stored state has ``size_bytes`` behind the
        room: without it, all there are."""
        self._spares = spares
        self._buffer = buffer
        self._size_bytes = len(buffer) - ROOM_BYTES if size_bytes is None else size_bytes
        self._header = buffer[ROOM_BYTES : ROOM_BYTES + min(HEADER_BYTES, self._size_bytes)].tobytes()

    def __del__(self) -> None:
        if self._spares is not None:
            self._spares.put_back(self._buffer)

    def __len__(self) -> int:
        return self._size_bytes

    def __bytes__(self) -> bytes:
        return b"".join(self.parts())

    def parts(self) -> tuple[bytes, memoryview]:
        """The stored form, in two parts. The second is a view."""
        rest = self._buffer[ROOM_BYTES + len(self._header) : ROOM_BYTES + self._size_bytes]
        return self._header, rest.data

    def as_exported(self) -> Bytes:
        """The stored form in one piece: a view, until another form is asked for."""
        self._buffer[ROOM_BYTES : ROOM_BYTES + len(self._header)] = np.frombuffer(self._header, np.uint8)
        return self._buffer[ROOM_BYTES : ROOM_BYTES + self._size_bytes]

    def in_form(self, lane: int, streams: int) -> Bytes:
        """What a context of ``streams`` streams reads into ``lane``, the cells behind the empty streams: a view, until
        another form is asked for. There must be a whole header."""
        padding = WORD * (streams - 1)
        assert padding <= ROOM_BYTES
        form = self._buffer[ROOM_BYTES - padding : ROOM_BYTES + self._size_bytes]
        form[:HEADER_BYTES] = np.frombuffer(self._header, np.uint8)
        form[WORD:HEADER_BYTES] = np.array([lane, streams], "<u4").view(np.uint8)
        form[HEADER_BYTES : HEADER_BYTES + padding] = 0
        return form


State = bytes | LaneState


def begin_of_export(lane: int) -> int:
    """Where in a buffer llama.cpp is to write what it exports of ``lane``, so that the cells come to lie where those of
    a stored state do."""
    return ROOM_BYTES - WORD * lane


def stored_bytes(exported_bytes: int, streams: int) -> int:
    """The size of a stored state that was exported in so many."""
    return exported_bytes - WORD * (streams - 1)


def make_stored(buffer: Bytes, lane: int, streams: int, exported_bytes: int) -> None:
    """Turns what ``llama_state_seq_get_data`` wrote at ``begin_of_export`` into a stored state, with only the stream
    that has cells, behind ``ROOM_BYTES``.

    Raises EngineFaultError if it is not laid out as expected: another build of llama.cpp, whose states cannot be kept.
    """
    begin = begin_of_export(lane)
    header = buffer[begin : begin + HEADER_BYTES].copy().view("<u4")
    empty_before = buffer[begin + HEADER_BYTES : ROOM_BYTES + HEADER_BYTES]
    end = begin + exported_bytes
    empty_behind = buffer[end - WORD * (streams - 1 - lane) : end]
    if header[2] != streams or empty_before.any() or empty_behind.any():
        raise EngineFaultError("llama.cpp writes lane states in a form that this version does not know")
    buffer[ROOM_BYTES : ROOM_BYTES + HEADER_BYTES] = np.array([header[0], 0, 1], "<u4").view(np.uint8)


def with_room(stored: bytes) -> LaneState:
    """A copy of a stored state."""
    return LaneState(np.frombuffer(bytes(ROOM_BYTES) + stored, np.uint8).copy())


def cell_count(state: LaneState) -> int | None:
    """Cells that a stored state claims to hold; ``None`` if it cannot be one."""
    header, rest = state.parts()
    if len(header) < HEADER_BYTES or len(rest) < WORD:
        return None
    is_one_stream = int.from_bytes(header[2 * WORD :], "little") == 1
    return int.from_bytes(rest[:WORD], "little") if is_one_stream else None


def has_transposed_values(state: bytes) -> bool | None:
    """Whether the V cache is transposed, as it is without flash attention: the word behind the first stream's cells.

    ``state`` is a stored one, or lane 0's as it was exported. ``None`` if it does not tell.
    """
    if len(state) < HEADER_BYTES + WORD:
        return None
    offset = HEADER_BYTES + WORD + CELL_BYTES * int(np.frombuffer(state, "<u4", 4)[3])
    word = int.from_bytes(state[offset : offset + WORD], "little") if len(state) >= offset + WORD else -1
    return bool(word) if word in (0, 1) else None
