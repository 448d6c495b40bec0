"""Long lists of varints, by numpy. Works in slices, so that a huge list takes no huge intermediate arrays."""

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from superfluid.native.schema import CodecError

_SLICE = 1 << 16
_MAX_BYTES = 5


def read_u32_array(data: bytes, position: int, count: int) -> tuple[tuple[int, ...], int]:
    """``count`` 32-bit varints from ``position`` on, and the position behind them. Raises CodecError."""
    values: list[int] = []
    while count:
        wanted = min(count, _SLICE)
        part, position = _read_slice(data, position, wanted)
        values += part
        count -= wanted
    return tuple(values), position


def _read_slice(data: bytes, position: int, count: int) -> tuple[list[int], int]:
    available = min(count * _MAX_BYTES, len(data) - position)
    raw = np.frombuffer(data, np.uint8, available, position)
    last = np.flatnonzero(raw < 0x80)[:count]
    first = np.empty_like(last)
    first[:1] = 0
    first[1:] = last[:-1] + 1
    lengths = last - first + 1
    longest = int(lengths.max(initial=0))
    if longest > _MAX_BYTES:
        raise CodecError("a number takes more bytes than one of 32 bits can")
    if len(last) < count:
        # An unfinished number of five bytes is too long; a shorter one was cut off.
        raise CodecError("the payload ends inside a list")
    values = (raw[first] & 0x7F).astype(np.uint64)
    for index in range(1, longest):
        present = lengths > index
        values[present] |= (raw[first[present] + index] & 0x7F).astype(np.uint64) << np.uint64(7 * index)
    if longest == _MAX_BYTES and bool((values >> np.uint64(32)).any()):
        raise CodecError("a number does not fit in 32 bits")
    return values.tolist(), position + int(last[-1]) + 1


def pack_u32_array(values: Sequence[int]) -> bytes:
    """The varints of ``values`` back to back, shortest forms. They must fit in 32 bits."""
    return b"".join(
        _pack_slice(np.frombuffer(array("I", values[start : start + _SLICE]), np.uint32))
        for start in range(0, len(values), _SLICE)
    )


def _pack_slice(values: NDArray[np.uint32]) -> bytes:
    lengths = np.ones(len(values), np.int64)
    for index in range(1, _MAX_BYTES):
        lengths += values >> np.uint32(7 * index) > 0
    ends = np.cumsum(lengths)
    starts = ends - lengths
    out = np.empty(int(ends[-1]), np.uint8)
    for index in range(int(lengths.max())):
        present = lengths > index
        groups = values[present] >> np.uint32(7 * index) & np.uint32(0x7F)
        more = (lengths[present] > index + 1).astype(np.uint32) << np.uint32(7)
        out[starts[present] + index] = groups | more
    return out.tobytes()
