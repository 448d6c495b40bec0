"""The body and the frames of ``/web/stream``: one generation as server-sent JSON. Pure; runs in the daemon."""

from functools import cache
from typing import assert_never

from msgspec import Struct

from superfluid.domain.events import Event
from superfluid.domain.wire_types import U32, U64
from superfluid.native import json_codec
from superfluid.native.json_codec import JsonCodec
from superfluid.native.json_tree import format_json
from superfluid.native.schema import describe


class StreamRequest(Struct, frozen=True):
    """What to generate."""

    session: U64
    max_tokens: U32
    provisional: bool = False


class StreamCommitted(Struct, frozen=True):
    """An event that is in the log."""

    event: Event


class StreamProvisional(Struct, frozen=True):
    """Text ahead of its commit."""

    channel: U32
    text: str


class StreamDone(Struct, frozen=True):
    """The generation ended."""

    tokens_generated: U32
    finish: U32
    warm_prefix: U64


class StreamFailed(Struct, frozen=True):
    """The generation was refused, or failed."""

    message: str


StreamFrame = StreamCommitted | StreamProvisional | StreamDone | StreamFailed


@cache
def _request_codec() -> JsonCodec[StreamRequest]:
    return JsonCodec(describe(StreamRequest))


def decode_stream_request(data: bytes) -> StreamRequest:
    """Raises CodecError."""
    return _request_codec().decode(data)


def encode_stream_frame(frame: StreamFrame) -> bytes:
    """The JSON of one frame, without the ``data:`` around it. Raises CodecError."""
    match frame:
        case StreamCommitted(event):
            return format_json({"committed": json_codec.event_codec().to_plain(event)})
        case StreamProvisional(channel, text):
            return format_json({"provisional": {"channel": channel, "text": text}})
        case StreamDone(tokens_generated, finish, warm_prefix):
            content = {"tokens_generated": tokens_generated, "finish": finish, "warm_prefix": warm_prefix}
            return format_json({"done": content})
        case StreamFailed(message):
            return format_json({"error": message})
    assert_never(frame)
