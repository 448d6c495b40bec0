"""Turns values of the schema into plain ones that a JSON library can format. Pure."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, assert_never

from superfluid.domain.wire_types import FixedBytes, Float32, Unsigned
from superfluid.native import schema
from superfluid.native.float32 import shortest_double
from superfluid.native.schema import Shape

Maker = Callable[[Any], Any]


def build_maker(shape: Shape, unions: dict[Any, Maker]) -> Maker | None:
    """A function from a value to its plain form, or ``None`` if the value is already plain.

    ``unions`` is for the function's own use: pass an empty dict.
    """
    match shape:
        case Unsigned() | schema.Boolean() | schema.Text():
            return None
        case Float32():
            return shortest_double
        case schema.ByteString() | FixedBytes():
            return list
        case schema.ListOf(item):
            return _list_maker(build_maker(item, unions))
        case schema.TupleOf(items):
            return _tuple_maker([build_maker(item, unions) for item in items])
        case schema.OptionalOf(item):
            return _optional_maker(build_maker(item, unions))
        case schema.Choice():
            return lambda value: value.value
        case schema.Record():
            return _record_maker(shape, unions)
        case schema.Variants(union, records):
            unions[union] = _variants_maker(records, unions)
            return unions[union]
        case schema.Deferred(union):
            return lambda value: unions[union](value)
    assert_never(shape)


def _list_maker(make_item: Maker | None) -> Maker | None:
    if make_item is None:
        return None
    return lambda values: [make_item(value) for value in values]


def _tuple_maker(makers: list[Maker | None]) -> Maker | None:
    if not any(makers):
        return None
    return lambda values: [make(value) if make else value for make, value in zip(makers, values, strict=True)]


def _optional_maker(make_item: Maker | None) -> Maker | None:
    if make_item is None:
        return None
    return lambda value: None if value is None else make_item(value)


def _record_maker(record: schema.Record, unions: dict[Any, Maker]) -> Maker:
    names = [field.name for field in record.fields]
    special = [(field.name, make) for field in record.fields if (make := build_maker(field.shape, unions)) is not None]
    if len(names) == 1:
        # attrgetter gives a tuple only for two names and more.
        (name,), get_only = names, attrgetter(record.fields[0].attribute)
        make_only = special[0][1] if special else None
        return lambda value: {name: make_only(get_only(value)) if make_only else get_only(value)}
    get = attrgetter(*(field.attribute for field in record.fields))

    def make_all(value: Any) -> dict[str, Any]:
        plain = dict(zip(names, get(value), strict=True))
        for name, make_part in special:
            plain[name] = make_part(plain[name])
        return plain

    return make_all


def _variants_maker(records: tuple[schema.Record, ...], unions: dict[Any, Maker]) -> Maker:
    members = {
        record.type: (record.name, _record_maker(record, unions) if record.fields else None) for record in records
    }

    def make(value: Any) -> Any:
        name, make_fields = members[type(value)]
        return name if make_fields is None else {name: make_fields(value)}

    return make
