"""Reads parsed JSON by the shapes of the schema. Readers say what is wrong, and those around them say where. Pure."""

import difflib
from collections.abc import Callable, Iterable
from typing import Annotated, Any, assert_never

import msgspec
from msgspec import NODEFAULT

from superfluid.domain.wire_types import FixedBytes, Float32, Unsigned
from superfluid.native import schema
from superfluid.native.float32 import round_to_float32
from superfluid.native.json_tree import RepeatedKeys
from superfluid.native.schema import CodecError, Shape

Reader = Callable[[Any], Any]

_ABSENT = object()
_KINDS = {
    bool: "a boolean",
    int: "a whole number",
    float: "a number with a fraction or an exponent",
    str: "text",
    list: "an array",
    dict: "an object",
    RepeatedKeys: "an object",
    type(None): "null",
}


def build_reader(shape: Shape, unions: dict[Any, Reader]) -> Reader:
    """A function from a parsed value to what it means. It raises CodecError, or RecursionError on a very deep value.

    ``unions`` is for the function's own use: pass an empty dict.
    """
    match shape:
        case Unsigned():
            return _uint_reader(shape.maximum)
        case Float32():
            return _read_float
        case schema.Boolean():
            return _read_bool
        case schema.Text():
            return _read_text
        case schema.ByteString():
            return _bytes_reader()
        case FixedBytes(size):
            return _fixed_reader(size)
        case schema.ListOf(item):
            return _uint_list_reader(item) if isinstance(item, Unsigned) else _list_reader(build_reader(item, unions))
        case schema.TupleOf(items):
            return _tuple_reader([build_reader(item, unions) for item in items])
        case schema.OptionalOf(item):
            read_item = build_reader(item, unions)
            return lambda tree: None if tree is None else read_item(tree)
        case schema.Choice(members):
            return _choice_reader(members)
        case schema.Record():
            return _record_reader(shape, unions)
        case schema.Variants(union, records):
            read = _variants_reader(records, unions)
            unions[union] = read
            return read
        case schema.Deferred(union):
            return lambda tree: unions[union](tree)
    assert_never(shape)


def _wrong(expected: str, tree: Any) -> CodecError:
    return CodecError(f"expected {expected}, got {_KINDS[type(tree)]}")


def _uint_reader(maximum: int) -> Reader:
    def read(tree: Any) -> int:
        # A boolean is an int to isinstance.
        if type(tree) is not int:
            raise _wrong("a whole number", tree)
        if not 0 <= tree <= maximum:
            raise CodecError(f"expected a whole number from 0 to {maximum}")
        return tree

    return read


def _read_float(tree: Any) -> float:
    if type(tree) is not int and type(tree) is not float:
        raise _wrong("a number", tree)
    try:
        return round_to_float32(float(tree))
    except OverflowError as error:
        raise CodecError("the number is out of range") from error


def _read_bool(tree: Any) -> bool:
    if tree is not True and tree is not False:
        raise _wrong("a boolean", tree)
    return tree


def _read_text(tree: Any) -> str:
    if type(tree) is not str:
        raise _wrong("text", tree)
    if not tree.isascii():
        try:
            tree.encode()
        except UnicodeEncodeError as error:
            raise CodecError("the text holds half of a surrogate pair") from error
    return tree


def _bytes_reader() -> Reader:
    read_numbers = _uint_list_reader(Unsigned(8))
    return lambda tree: bytes(read_numbers(tree))


def _fixed_reader(size: int) -> Reader:
    read_numbers = _uint_list_reader(Unsigned(8))

    def read(tree: Any) -> bytes:
        values = read_numbers(tree)
        if len(values) != size:
            raise CodecError(f"expected {size} numbers, got {len(values)}")
        return bytes(values)

    return read


def _uint_list_reader(item: Unsigned) -> Reader:
    """All at once in C; only a list with something wrong in it is gone through again to say where."""
    if item.bits > 32:
        return _list_reader(_uint_reader(item.maximum))
    expected = tuple[Annotated[int, msgspec.Meta(ge=0, le=item.maximum)], ...]
    explain = _list_reader(_uint_reader(item.maximum))

    def read(tree: Any) -> tuple[int, ...]:
        if type(tree) is not list:
            raise _wrong("an array", tree)
        try:
            values: tuple[int, ...] = msgspec.convert(tree, expected)
        except (msgspec.ValidationError, UnicodeError):
            # The latter for half of a surrogate pair in a text, which msgspec wants to name in its message.
            values = explain(tree)
        return values

    return read


def _list_reader(read_item: Reader) -> Reader:
    def read(tree: Any) -> tuple[Any, ...]:
        if type(tree) is not list:
            raise _wrong("an array", tree)
        return tuple([_read_at(f"[{index}]", read_item, item) for index, item in enumerate(tree)])

    return read


def _read_at(place: str, read: Reader, tree: Any) -> Any:
    try:
        return read(tree)
    except CodecError as error:
        raise error.within(place) from error


def _tuple_reader(readers: list[Reader]) -> Reader:
    def read(tree: Any) -> tuple[Any, ...]:
        if type(tree) is not list:
            raise _wrong("an array", tree)
        if len(tree) != len(readers):
            raise CodecError(f"expected {len(readers)} elements, got {len(tree)}")
        return tuple([_read_at(f"[{index}]", readers[index], item) for index, item in enumerate(tree)])

    return read


def _choice_reader(members: tuple[Any, ...]) -> Reader:
    by_name = {member.value: member for member in members}

    def read(tree: Any) -> Any:
        name, content = _split_variant(tree)
        if name not in by_name:
            raise _unknown(name, by_name)
        if content is not None:
            raise CodecError("this variant has no fields", name)
        return by_name[name]

    return read


def _split_variant(tree: Any) -> tuple[str, Any]:
    """Name and content of a variant; a bare name is one whose content is ``None``."""
    if type(tree) is str:
        return tree, None
    if not isinstance(tree, dict):
        raise _wrong("a variant's name, or an object of one", tree)
    if len(tree) != 1 or isinstance(tree, RepeatedKeys):
        raise CodecError("expected an object with exactly one key, the variant's name")
    return next(iter(tree.items()))


def _unknown(name: str, known: Iterable[str]) -> CodecError:
    if not (name.isidentifier() and name.isascii() and len(name) <= 40):
        return CodecError("there is no such variant")
    capitals = {each.lower(): each for each in known}
    nearest = difflib.get_close_matches(name.lower(), capitals, n=1, cutoff=0.7)
    hint = f"; the nearest is {capitals[nearest[0]]}" if nearest else ""
    return CodecError(f"there is no variant {name}{hint}")


def _record_reader(record: schema.Record, unions: dict[Any, Reader]) -> Reader:
    fields = [(field.name, build_reader(field.shape, unions), field.default) for field in record.fields]
    known = frozenset(field.name for field in record.fields)
    build = record.type

    def read(tree: Any) -> Any:
        if not isinstance(tree, dict):
            raise _wrong("an object", tree)
        if isinstance(tree, RepeatedKeys) and (repeated := known & tree.repeated):
            raise CodecError("the key occurs more than once", min(repeated))
        values = []
        for name, read_field, default in fields:
            part = tree.get(name, _ABSENT)
            if part is not _ABSENT:
                values.append(_read_at(name, read_field, part))
            elif default is not NODEFAULT:
                values.append(default)
            else:
                raise CodecError("the key is missing", name)
        return build(*values)

    return read


def _variants_reader(records: tuple[schema.Record, ...], unions: dict[Any, Reader]) -> Reader:
    readers = {record.name: _variant_reader(record, unions) for record in records}

    def read(tree: Any) -> Any:
        name, content = _split_variant(tree)
        if name not in readers:
            raise _unknown(name, readers)
        return _read_at(name, readers[name], content)

    return read


def _variant_reader(record: schema.Record, unions: dict[Any, Reader]) -> Reader:
    if record.fields:
        return _record_reader(record, unions)
    whole = record.type()

    def read(tree: Any) -> Any:
        if tree is not None:
            raise CodecError("this variant has no fields")
        return whole

    return read
