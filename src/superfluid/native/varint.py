"""Unsigned LEB128 numbers, alone and in lists: 7 bits a byte, low group first, the high bit says that more follows.

Readers take the payload and a position and give the value and the position behind it. They may raise IndexError where
the payload ends; the codec turns that into its own error.
"""

from collections.abc import Sequence

from superfluid.native.schema import CodecError

# From this many elements on, numpy's fixed costs (about 20 us) are less than a Python loop's.
_LONG_LIST = 160
_SHIFTS = {bits: range(0, bits, 7) for bits in (32, 64)}


def read_varint(data: bytes, position: int, bits: int) -> tuple[int, int]:
    """The shortest form is not insisted on; a value or a length beyond ``bits`` raises CodecError."""
    value = 0
    for shift in _SHIFTS[bits]:
        byte = data[position]
        position += 1
        if byte < 0x80:
            if byte >> bits - shift:
                raise CodecError(f"a number does not fit in {bits} bits")
            return value | byte << shift, position
        value |= (byte & 0x7F) << shift
    raise CodecError(f"a number takes more bytes than one of {bits} bits can")


def read_count(data: bytes, position: int) -> tuple[int, int]:
    """A length or a count: no more than the bytes left, since whatever is counted takes at least one each."""
    count = data[position]
    position += 1
    if count >= 0x80:
        count, position = read_varint(data, position - 1, 64)
    if count > len(data) - position:
        raise CodecError(f"a length of {count} exceeds the {len(data) - position} bytes that are left")
    return count, position


def write_varint(out: bytearray, value: int) -> None:
    """``value`` must not be negative."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_u32_list(data: bytes, position: int) -> tuple[tuple[int, ...], int]:
    """A counted list of 32-bit numbers."""
    count = data[position]
    position += 1
    if count >= 0x80 or count > len(data) - position:
        count, position = read_count(data, position - 1)
    if count >= _LONG_LIST:
        # Imported here because only long lists need it, and clients start without.
        from superfluid.native.varint_arrays import read_u32_array

        return read_u32_array(data, position, count)
    values = []
    for _ in range(count):
        # Token ids take one to three bytes; these are read without a call.
        first = data[position]
        if first < 0x80:
            values.append(first)
            position += 1
            continue
        second = data[position + 1]
        if second < 0x80:
            values.append(first - 0x80 + (second << 7))
            position += 2
            continue
        third = data[position + 2]
        if third < 0x80:
            values.append(first - 0x80 + (second - 0x80 << 7) + (third << 14))
            position += 3
            continue
        value, position = read_varint(data, position, 32)
        values.append(value)
    return tuple(values), position


def write_u32_list(out: bytearray, values: Sequence[int]) -> None:
    """A counted list of 32-bit numbers. Raises CodecError on one that is not."""
    write_varint(out, len(values))
    if not values:
        return
    if min(values) < 0 or max(values) >> 32:
        raise CodecError("a list holds a number that does not fit in 32 bits")
    if len(values) >= _LONG_LIST:
        from superfluid.native.varint_arrays import pack_u32_array

        out += pack_u32_array(values)
        return
    append = out.append
    for value in values:
        if value < 0x80:
            append(value)
        elif value < 0x4000:
            append(value & 0x7F | 0x80)
            append(value >> 7)
        elif value < 0x200000:
            append(value & 0x7F | 0x80)
            append(value >> 7 & 0x7F | 0x80)
            append(value >> 14)
        else:
            write_varint(out, value)
