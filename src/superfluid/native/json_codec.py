"""The JSON encoding of the session API: ``{"Name": {fields}}`` for a variant, ``"Name"`` for one without fields. Pure.

For each shape one closure reads a parsed value and one makes a value to be formatted; they are built at the first use
of a codec.
"""

from functools import cache
from typing import Any, Generic, TypeVar

from superfluid.domain.events import Body, Event
from superfluid.native.json_makers import build_maker
from superfluid.native.json_readers import build_reader
from superfluid.native.json_tree import format_json, parse_json
from superfluid.native.requests import Request
from superfluid.native.responses import Response
from superfluid.native.schema import CodecError, Shape, describe

T = TypeVar("T")


class JsonCodec(Generic[T]):
    """Encodes and decodes one type."""

    def __init__(self, shape: Shape) -> None:
        self._read = build_reader(shape, {})
        self._make = build_maker(shape, {})

    def encode(self, value: T) -> bytes:
        """Compact UTF-8. Raises CodecError if it cannot be expressed."""
        return format_json(self.to_plain(value))

    def decode(self, data: bytes | str) -> T:
        """Raises CodecError, and nothing else."""
        return self.from_plain(parse_json(data))

    def to_plain(self, value: T) -> Any:
        """What ``encode`` formats: for frames that hold a value among other things. Raises CodecError."""
        if self._make is None:
            return value
        try:
            return self._make(value)
        except (TypeError, AttributeError, KeyError, ValueError, OverflowError) as error:
            raise CodecError(f"a field cannot be encoded ({type(error).__name__})") from error
        except RecursionError as error:
            raise CodecError("the value is nested too deeply") from error

    def from_plain(self, tree: Any) -> T:
        """Reads what ``parse_json`` gave. Raises CodecError."""
        try:
            value: T = self._read(tree)
        except RecursionError as error:
            raise CodecError("the JSON is nested too deeply") from error
        return value


@cache
def request_codec() -> JsonCodec[Request]:
    return JsonCodec(describe(Request))


@cache
def response_codec() -> JsonCodec[Response]:
    return JsonCodec(describe(Response))


@cache
def event_codec() -> JsonCodec[Event]:
    return JsonCodec(describe(Event))


@cache
def body_codec() -> JsonCodec[Body]:
    return JsonCodec(describe(Body))
