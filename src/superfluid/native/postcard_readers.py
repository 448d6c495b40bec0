"""Reads postcard by the shapes of the schema: for each shape one closure, built once. Pure."""

import struct
from collections.abc import Callable
from typing import Any, assert_never

from superfluid.domain.wire_types import FixedBytes, Float32, Unsigned
from superfluid.native import schema
from superfluid.native.schema import CodecError, Shape
from superfluid.native.varint import read_count, read_u32_list, read_varint

Reader = Callable[[bytes, int], tuple[Any, int]]

_FLOAT = struct.Struct("<f")
_U32 = Unsigned(32)


def build_reader(shape: Shape, unions: dict[Any, Reader]) -> Reader:
    """A function from (payload, position) to (value, position behind it).

    It raises CodecError, and on bad payloads also IndexError, struct.error, UnicodeDecodeError and RecursionError.
    ``unions`` is for the function's own use: pass an empty dict.
    """
    match shape:
        case Unsigned(bits):
            return _read_byte if bits == 8 else _uint_reader(bits)
        case Float32():
            return _read_float
        case schema.Boolean():
            return _read_bool
        case schema.Text():
            return _read_text
        case schema.ByteString():
            return _read_bytes
        case FixedBytes(size):
            return _fixed_reader(size)
        case schema.ListOf(item):
            return read_u32_list if item == _U32 else _list_reader(build_reader(item, unions))
        case schema.TupleOf(items):
            return _sequence_reader(lambda *values: values, [(item, build_reader(item, unions)) for item in items])
        case schema.OptionalOf(item):
            return _optional_reader(build_reader(item, unions))
        case schema.Choice(members):
            return _choice_reader(members)
        case schema.Record():
            return _record_reader(shape, unions)
        case schema.Variants(union, records):
            read = _variants_reader([_record_reader(record, unions) for record in records])
            unions[union] = read
            return read
        case schema.Deferred(union):
            return lambda data, position: unions[union](data, position)
    assert_never(shape)


def _read_byte(data: bytes, position: int) -> tuple[int, int]:
    return data[position], position + 1


def _uint_reader(bits: int) -> Reader:
    def read(data: bytes, position: int) -> tuple[int, int]:
        byte = data[position]
        if byte < 0x80:
            return byte, position + 1
        return read_varint(data, position, bits)

    return read


def _read_float(data: bytes, position: int) -> tuple[float, int]:
    (value,) = _FLOAT.unpack_from(data, position)
    return value, position + 4


def _read_bool(data: bytes, position: int) -> tuple[bool, int]:
    byte = data[position]
    if byte > 1:
        raise CodecError(f"a boolean is {byte}")
    return byte == 1, position + 1


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    size = data[position]
    position += 1
    end = position + size
    if size >= 0x80 or end > len(data):
        size, position = read_count(data, position - 1)
        end = position + size
    return data[position:end].decode(), end


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    size, position = read_count(data, position)
    end = position + size
    return data[position:end], end


def _fixed_reader(size: int) -> Reader:
    def read(data: bytes, position: int) -> tuple[bytes, int]:
        end = position + size
        if end > len(data):
            raise CodecError("the payload ends inside a value")
        return data[position:end], end

    return read


def _list_reader(read_item: Reader) -> Reader:
    def read(data: bytes, position: int) -> tuple[tuple[Any, ...], int]:
        count, position = read_count(data, position)
        values = []
        for _ in range(count):
            value, position = read_item(data, position)
            values.append(value)
        return tuple(values), position

    return read


def _optional_reader(read_item: Reader) -> Reader:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        tag = data[position]
        if tag == 0:
            return None, position + 1
        if tag == 1:
            return read_item(data, position + 1)
        raise CodecError(f"an option's tag is {tag}")

    return read


def _choice_reader(members: tuple[Any, ...]) -> Reader:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        index, position = read_varint(data, position, 32)
        if index >= len(members):
            raise CodecError(f"there is no variant {index}")
        return members[index], position

    return read


def _record_reader(record: schema.Record, unions: dict[Any, Reader]) -> Reader:
    readers = []
    for field in record.fields:
        read = build_reader(field.shape, unions)
        readers.append((field.shape, _missing_reader(read) if field.may_be_missing else read))
    return _sequence_reader(record.type, readers)


def _missing_reader(read_present: Reader) -> Reader:
    return lambda data, position: read_present(data, position) if position < len(data) else (None, position)


def _variants_reader(readers: list[Reader]) -> Reader:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        index = data[position]
        position += 1
        if index >= 0x80:
            index, position = read_varint(data, position - 1, 32)
        if index >= len(readers):
            raise CodecError(f"there is no variant {index}")
        return readers[index](data, position)

    return read


def _sequence_reader(build: Callable[..., Any], shapes: list[tuple[Shape, Reader]]) -> Reader:
    """Reads one of each and builds the whole from them.

    The function is written as source, like those of ``dataclasses``: a log is made of small records, and much of the
    time of reading one would go into calling a reader for each of its numbers.
    """
    scope: dict[str, Any] = {"build": build, "read_varint": read_varint}
    lines = ["def read(data, position):"]
    for index, (shape, reader) in enumerate(shapes):
        scope[f"read_{index}"] = reader
        if isinstance(shape, Unsigned):
            lines.append(f"    v{index} = data[position]; position += 1")
            if shape.bits > 8:
                lines.append(f"    if v{index} > 0x7F:")
                lines.append(f"        v{index}, position = read_varint(data, position - 1, {shape.bits})")
        else:
            lines.append(f"    v{index}, position = read_{index}(data, position)")
    lines.append(f"    return build({', '.join(f'v{index}' for index in range(len(shapes)))}), position")
    exec("\n".join(lines), scope)
    read: Reader = scope["read"]
    return read
