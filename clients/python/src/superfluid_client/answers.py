"""What the web listener's answers mean: statuses as exceptions, bodies as JSON. Pure."""

import json
from http import HTTPStatus
from typing import Any

from superfluid_client.errors import (
    Forbidden,
    SuperfluidError,
    Throttled,
    Unauthorized,
    UnexpectedReply,
    refusal,
)
from superfluid_client.http1 import Head

_LONGEST_ERROR_CHARACTERS = 200


def status_error(head: Head, content: bytes) -> SuperfluidError:
    """The exception for an answer whose status is not 200."""
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    message = _error_message(body)
    text = message or f"HTTP {head.status} {head.reason}: {content[:_LONGEST_ERROR_CHARACTERS]!r}"
    match head.status:
        case HTTPStatus.UNAUTHORIZED:
            return Unauthorized(text)
        case HTTPStatus.FORBIDDEN:
            return Forbidden(text)
        case HTTPStatus.TOO_MANY_REQUESTS:
            return Throttled(_retry_after_seconds(body, head.headers.get("retry-after")), message)
    # A request that the daemon cannot read is refused with 400 and a reason.
    return UnexpectedReply(text) if message is None else refusal(message)


def _error_message(body: Any) -> str | None:
    match body:
        case {"Err": {"message": str(message)}}:
            return message
    return None


def _retry_after_seconds(body: Any, header: str | None) -> float:
    match body:
        case {"Throttled": {"retry_after_ms": int(milliseconds)}}:
            return milliseconds / 1000
    return float(header) if header is not None and header.isdecimal() else 1.0


def read_json(content: bytes) -> Any:
    """Raises UnexpectedReply if it is none."""
    try:
        return json.loads(content)
    except ValueError as error:
        raise UnexpectedReply(f"the answer is no JSON: {content[:_LONGEST_ERROR_CHARACTERS]!r}") from error
