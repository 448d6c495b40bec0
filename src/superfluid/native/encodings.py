"""The two languages a connection can speak, and where long messages are translated: not on the event loop."""

import asyncio
from collections.abc import Callable
from functools import cache

from msgspec import Struct

from superfluid.native import json_codec, postcard, responses
from superfluid.native.frames import MAX_FRAME_BYTES
from superfluid.native.requests import Request
from superfluid.native.responses import Response

OFF_LOOP_BYTES = 64 * 1024
OFF_LOOP_EVENTS = 256


class Encoding(Struct, frozen=True):
    """``is_garbage_answered``: whether something that is no request gets an ``Err``, or ends the connection in silence.

    A reply of more than ``max_reply_bytes`` would be refused by its reader, and is not sent.
    """

    decode: Callable[[bytes], Request]
    encode: Callable[[Response], bytes]
    is_garbage_answered: bool
    max_reply_bytes: int | None = None


@cache
def socket_encoding() -> Encoding:
    """Postcard, as on the unix socket."""
    return Encoding(
        decode=postcard.request_codec().decode,
        encode=postcard.response_codec().encode,
        is_garbage_answered=False,
        max_reply_bytes=MAX_FRAME_BYTES,
    )


@cache
def web_encoding() -> Encoding:
    """JSON, as on a WebSocket."""
    return Encoding(
        decode=json_codec.request_codec().decode,
        encode=json_codec.response_codec().encode,
        is_garbage_answered=True,
    )


async def decode_request(encoding: Encoding, payload: bytes) -> Request:
    """Raises CodecError."""
    if len(payload) > OFF_LOOP_BYTES:
        return await asyncio.to_thread(encoding.decode, payload)
    return encoding.decode(payload)


async def encode_response(encoding: Encoding, response: Response) -> bytes:
    """Raises CodecError."""
    if _is_long(response):
        payload = await asyncio.to_thread(encoding.encode, response)
    else:
        payload = encoding.encode(response)
    limit = encoding.max_reply_bytes
    if limit is None or len(payload) <= limit:
        return payload
    problem = f"the reply would take {len(payload)} bytes, and a frame holds {limit}: read the session in parts"
    return encoding.encode(responses.Err(problem))


def _is_long(response: Response) -> bool:
    match response:
        case responses.Events(events) | responses.Generated(events):
            return len(events) > OFF_LOOP_EVENTS
        case responses.Inspected(inspection):
            return len(inspection.events) > OFF_LOOP_EVENTS
        case responses.SessionList(sessions):
            return len(sessions) > OFF_LOOP_EVENTS
        case responses.Tree(nodes):
            return len(nodes) > OFF_LOOP_EVENTS
        case _:
            return False
