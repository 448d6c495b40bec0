"""Whole answers and request headers over plain ASGI. Runs in the daemon."""

from collections.abc import Iterable, Sequence

from starlette.types import Scope, Send

from superfluid.errors import SuperfluidError
from superfluid.http.errors import error_row, retry_headers

Header = tuple[bytes, bytes]
JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    """Every value of a header, ``name`` in lower case, in the order sent."""
    headers: Iterable[Header] = scope["headers"]
    return [value for key, value in headers if key == name]


async def send_response(
    send: Send, status: int, body: bytes, content_type: bytes = JSON, headers: Sequence[Header] = ()
) -> None:
    """Sends one whole response with its length."""
    head = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: SuperfluidError, body: bytes, headers: Sequence[Header] = ()) -> None:
    """Sends ``body``, an error written in some dialect, under the status that the error table gives it."""
    status = error_row(error).status
    challenge = [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send_response(send, status, body, JSON, [*retry_headers(error), *challenge, *headers])
