"""Request bodies: read under a limit, parsed off the event loop when they are big. Runs in the daemon."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.types import Receive, Scope

from superfluid.errors import PayloadTooLargeError
from superfluid.http.responses import header_values

_T = TypeVar("_T")
OFF_LOOP_BYTES = 64 * 1024


class ClientGoneError(Exception):
    """The client hung up before its request was complete. There is nobody to answer."""


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """The whole body. Raises ClientGoneError, and PayloadTooLargeError as soon as the announced or the received length
    passes ``max_bytes``.

    There is no deadline: a client that stalls here holds its own connection and the part it has sent, and no lane.
    """
    for value in header_values(scope, b"content-length"):
        if value.isdigit() and int(value) > max_bytes:
            raise _too_large(max_bytes)
    chunks: list[bytes] = []
    received = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = message.get("body", b"")
        received += len(chunk)
        if received > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def parse_body(body: bytes, parse: Callable[[bytes], _T]) -> _T:
    """``parse(body)``, in a thread if the body is big, so that the translation of a long conversation delays nobody."""
    if len(body) > OFF_LOOP_BYTES:
        return await asyncio.to_thread(parse, body)
    return parse(body)


def _too_large(max_bytes: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the request body is larger than {max_bytes} bytes")
