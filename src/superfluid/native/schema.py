"""Reads the message classes once and says what they look like on a wire; both encodings are built from that. Pure."""

import enum
import types
import typing
from typing import Annotated, Any

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from superfluid.domain.wire_types import FixedBytes, Float32, MayBeMissing, Unsigned


class CodecError(ValueError):
    """Data that is not what it should be, or a value that cannot be written.

    ``place`` says where, as in ``Create.params.seed``; the text is one sentence and never quotes a client's content.
    """

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(f"{place}: {problem}" if place else problem)
        self.problem = problem
        self.place = place

    def within(self, outer: str) -> "CodecError":
        """The same error, seen from one level further out."""
        if not self.place:
            return CodecError(self.problem, outer)
        separator = "" if self.place.startswith("[") else "."
        return CodecError(self.problem, f"{outer}{separator}{self.place}")


class Boolean(Struct, frozen=True):
    """True or false."""


class Text(Struct, frozen=True):
    """Unicode text."""


class ByteString(Struct, frozen=True):
    """Bytes, with their count before them."""


class ListOf(Struct, frozen=True):
    """Any number of one shape; a tuple in Python."""

    item: "Shape"


class TupleOf(Struct, frozen=True):
    """One of each shape, in order."""

    items: tuple["Shape", ...]


class OptionalOf(Struct, frozen=True):
    """The shape, or ``None``."""

    item: "Shape"


class Choice(Struct, frozen=True):
    """An enum without fields. The members' values are their wire names, their order the wire numbers."""

    members: tuple[enum.Enum, ...]


class Field(Struct, frozen=True):
    """One field of a record. ``default`` is ``NODEFAULT`` if there is none; it matters in JSON only."""

    attribute: str
    name: str
    shape: "Shape"
    default: Any = NODEFAULT
    may_be_missing: bool = False


class Record(Struct, frozen=True):
    """A struct, fields in wire order."""

    type: type[Struct]
    name: str
    fields: tuple[Field, ...]


class Variants(Struct, frozen=True):
    """An enum whose members are records; their order gives the wire numbers. ``union`` is the Python type."""

    union: Any
    records: tuple[Record, ...]


class Deferred(Struct, frozen=True):
    """A union within itself: the ``Variants`` further out that has the same ``union``."""

    union: Any


Shape = (
    Unsigned
    | Float32
    | Boolean
    | Text
    | ByteString
    | FixedBytes
    | ListOf
    | TupleOf
    | OptionalOf
    | Choice
    | Record
    | Variants
    | Deferred
)

_PLAIN: dict[Any, Shape] = {bool: Boolean(), str: Text(), bytes: ByteString()}


def describe(annotation: Any, *, _outer: tuple[Any, ...] = ()) -> Shape:
    """The shape of a Python type. Raises TypeError on one the wire has no form for: a mistake in the schema."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated and isinstance(arguments[1], Unsigned | Float32 | FixedBytes):
        return arguments[1]
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return ListOf(describe(arguments[0], _outer=_outer))
    if origin is tuple:
        return TupleOf(tuple(describe(argument, _outer=_outer) for argument in arguments))
    if origin in (typing.Union, types.UnionType):
        return _describe_union(annotation, arguments, _outer)
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return _describe_record(annotation, _outer)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return Choice(tuple(annotation))
    raise TypeError(f"{annotation!r} has no wire form")


def _describe_union(union: Any, members: tuple[Any, ...], outer: tuple[Any, ...]) -> Shape:
    if types.NoneType in members:
        (item,) = (member for member in members if member is not types.NoneType)
        return OptionalOf(describe(item, _outer=outer))
    if union in outer:
        return Deferred(union)
    return Variants(union, tuple(_describe_record(member, (*outer, union)) for member in members))


def _describe_record(record: type[Struct], outer: tuple[Any, ...]) -> Record:
    hints = typing.get_type_hints(record, include_extras=True)
    described = tuple(_describe_field(info, hints[info.name], outer) for info in fields(record))
    tag = record.__struct_config__.tag
    return Record(record, tag if isinstance(tag, str) else record.__name__, described)


def _describe_field(info: FieldInfo, hint: Any, outer: tuple[Any, ...]) -> Field:
    may_be_missing = False
    if typing.get_origin(hint) is Annotated and isinstance(typing.get_args(hint)[1], MayBeMissing):
        hint, may_be_missing = typing.get_args(hint)[0], True
    shape = describe(hint, _outer=outer)
    if may_be_missing and not isinstance(shape, OptionalOf):
        raise TypeError(f"{info.name} may be missing and must therefore be optional")
    default = None if isinstance(shape, OptionalOf) else info.default
    return Field(info.name, info.encode_name, shape, default, may_be_missing)
