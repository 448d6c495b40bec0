"""The binary encoding: postcard 1.x, as it is on the socket and in the store. Pure.

A value has no tags and no padding, so the schema must be known to read it. For each shape one closure is built that
reads it and one that writes it; that happens once, at the first use of a codec.
"""

import struct
from functools import cache
from typing import Generic, TypeVar

from superfluid.domain.events import Body, Event
from superfluid.native.postcard_readers import build_reader
from superfluid.native.postcard_writers import build_writer
from superfluid.native.requests import Request
from superfluid.native.responses import Response
from superfluid.native.schema import CodecError, Shape, describe

T = TypeVar("T")


class PostcardCodec(Generic[T]):
    """Encodes and decodes one type."""

    def __init__(self, shape: Shape) -> None:
        self._read = build_reader(shape, {})
        self._write = build_writer(shape, {})

    def encode(self, value: T) -> bytes:
        """Raises CodecError if a field is not of its type or out of range."""
        out = bytearray()
        try:
            self._write(out, value)
        except CodecError:
            raise
        except (TypeError, AttributeError, KeyError, ValueError, OverflowError, struct.error) as error:
            raise CodecError(f"a field cannot be encoded ({type(error).__name__})") from error
        except RecursionError as error:
            raise CodecError("the value is nested too deeply") from error
        return bytes(out)

    def decode(self, data: bytes) -> T:
        """Bytes behind the value are ignored, as on the socket. Raises CodecError, and nothing else."""
        return self._decode(data)[0]

    def decode_exact(self, data: bytes) -> T:
        """Like ``decode``, but bytes behind the value are an error."""
        value, end = self._decode(data)
        if end != len(data):
            raise CodecError(f"{len(data) - end} bytes follow the value")
        return value

    def _decode(self, data: bytes) -> tuple[T, int]:
        try:
            return self._read(data, 0)
        except CodecError:
            raise
        except (IndexError, struct.error) as error:
            raise CodecError("the payload ends inside a value") from error
        except UnicodeDecodeError as error:
            raise CodecError("a text is not UTF-8") from error
        except RecursionError as error:
            raise CodecError("the payload is nested too deeply") from error


class ExactPostcardCodec(PostcardCodec[T]):
    """For the store, where bytes behind a value can only be damage."""

    def decode(self, data: bytes) -> T:
        """Raises CodecError, and nothing else."""
        return self.decode_exact(data)


@cache
def request_codec() -> PostcardCodec[Request]:
    return PostcardCodec(describe(Request))


@cache
def response_codec() -> PostcardCodec[Response]:
    return PostcardCodec(describe(Response))


@cache
def event_codec() -> PostcardCodec[Event]:
    return PostcardCodec(describe(Event))


@cache
def body_codec() -> ExactPostcardCodec[Body]:
    """What the session log stores bodies with."""
    return ExactPostcardCodec(describe(Body))
