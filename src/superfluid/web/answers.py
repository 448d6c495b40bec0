"""Whole JSON answers of the web listener. Runs in the daemon."""

import math

from starlette.types import Send

from superfluid.errors import SuperfluidError
from superfluid.http.errors import error_row, retry_headers
from superfluid.http.responses import Header, send_response
from superfluid.native.json_codec import response_codec
from superfluid.native.responses import Err, Response, Throttled


async def send_reply(send: Send, reply: Response, body: bytes) -> None:
    """``body`` is the encoded ``reply``. What the daemon answers is 200, an ``Err`` too; only the meter is not."""
    if isinstance(reply, Throttled):
        seconds = max(1, math.ceil(reply.retry_after_ms / 1000))
        await send_response(send, 429, body, headers=[(b"retry-after", b"%d" % seconds)])
    else:
        await send_response(send, 200, body)


def refusal_body(error: SuperfluidError) -> bytes:
    return response_codec().encode(Err(error.message))


async def send_refusal(send: Send, error: SuperfluidError, *, over_websocket: bool, headers: list[Header]) -> None:
    """For a request that did not get as far as the session API. It never asks for credentials: a browser would show a
    password box."""
    status, body = error_row(error).status, refusal_body(error)
    headers = [*retry_headers(error), *headers]
    if over_websocket:
        await send(
            {
                "type": "websocket.http.response.start",
                "status": status,
                "headers": [(b"content-type", b"application/json"), *headers],
            }
        )
        await send({"type": "websocket.http.response.body", "body": body})
    else:
        await send_response(send, status, body, headers=headers)
