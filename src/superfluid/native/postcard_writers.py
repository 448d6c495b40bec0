"""Writes postcard by the shapes of the schema: for each shape one closure, built once. Pure."""

import struct
from collections.abc import Callable
from typing import Any, assert_never

from superfluid.domain.wire_types import FixedBytes, Float32, Unsigned
from superfluid.native import schema
from superfluid.native.schema import CodecError, Shape
from superfluid.native.varint import write_u32_list, write_varint

Writer = Callable[[bytearray, Any], None]

_FLOAT = struct.Struct("<f")
_U32 = Unsigned(32)


def build_writer(shape: Shape, unions: dict[Any, Writer]) -> Writer:
    """A function that appends a value's encoding to a bytearray.

    It raises CodecError on a number that is out of range, and whatever Python raises on a value of a wrong type.
    ``unions`` is for the function's own use: pass an empty dict.
    """
    match shape:
        case Unsigned(bits):
            return bytearray.append if bits == 8 else _uint_writer(shape.maximum)
        case Float32():
            return _write_float
        case schema.Boolean():
            return _write_bool
        case schema.Text():
            return _write_text
        case schema.ByteString():
            return _write_bytes
        case FixedBytes(size):
            return _fixed_writer(size)
        case schema.ListOf(item):
            return write_u32_list if item == _U32 else _list_writer(build_writer(item, unions))
        case schema.TupleOf(items):
            return _tuple_writer([build_writer(item, unions) for item in items])
        case schema.OptionalOf(item):
            return _optional_writer(build_writer(item, unions))
        case schema.Choice(members):
            numbers = {member: index for index, member in enumerate(members)}
            return lambda out, value: write_varint(out, numbers[value])
        case schema.Record():
            return _record_writer(shape, unions)
        case schema.Variants(union, records):
            write = _variants_writer(records, unions)
            unions[union] = write
            return write
        case schema.Deferred(union):
            return lambda out, value: unions[union](out, value)
    assert_never(shape)


def _uint_writer(maximum: int) -> Writer:
    def write(out: bytearray, value: int) -> None:
        if 0 <= value < 0x80:
            out.append(value)
        elif 0 <= value <= maximum:
            write_varint(out, value)
        else:
            raise CodecError(f"a number is not within 0 and {maximum}")

    return write


def _write_float(out: bytearray, value: float) -> None:
    out += _FLOAT.pack(value)


def _write_bool(out: bytearray, value: bool) -> None:
    out.append(1 if value else 0)


def _write_text(out: bytearray, value: str) -> None:
    raw = value.encode()
    write_varint(out, len(raw))
    out += raw


def _write_bytes(out: bytearray, value: bytes) -> None:
    write_varint(out, len(value))
    out += value


def _fixed_writer(size: int) -> Writer:
    def write(out: bytearray, value: bytes) -> None:
        if len(value) != size:
            raise CodecError(f"a value of {size} bytes has {len(value)}")
        out += value

    return write


def _list_writer(write_item: Writer) -> Writer:
    def write(out: bytearray, values: tuple[Any, ...]) -> None:
        write_varint(out, len(values))
        for value in values:
            write_item(out, value)

    return write


def _tuple_writer(writers: list[Writer]) -> Writer:
    def write(out: bytearray, values: tuple[Any, ...]) -> None:
        for write_item, value in zip(writers, values, strict=True):
            write_item(out, value)

    return write


def _optional_writer(write_item: Writer) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(1)
            write_item(out, value)

    return write


def _record_writer(record: schema.Record, unions: dict[Any, Writer]) -> Writer:
    """The function is written as source, for the reason given in ``postcard_readers``."""
    if not record.fields:
        return lambda out, value: None
    scope: dict[str, Any] = {}
    lines = ["def write(out, value):"]
    for index, field in enumerate(record.fields):
        scope[f"write_{index}"] = build_writer(field.shape, unions)
        if isinstance(field.shape, Unsigned):
            lines.append(f"    part = value.{field.attribute}")
            lines.append(f"    out.append(part) if 0 <= part < 0x80 else write_{index}(out, part)")
        else:
            lines.append(f"    write_{index}(out, value.{field.attribute})")
    exec("\n".join(lines), scope)
    write: Writer = scope["write"]
    return write


def _variants_writer(records: tuple[schema.Record, ...], unions: dict[Any, Writer]) -> Writer:
    # The numbers of all variants fit in one byte.
    members = {record.type: (index, _record_writer(record, unions)) for index, record in enumerate(records)}
    assert len(records) < 0x80

    def write(out: bytearray, value: Any) -> None:
        index, write_fields = members[type(value)]
        out.append(index)
        write_fields(out, value)

    return write
