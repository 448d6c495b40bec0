"""Spans as the daemon keeps them: names, numbers, times. No text of a request fits in. Pure; lives in the daemon."""

import secrets
from collections.abc import Mapping
from typing import NamedTuple

SpanValue = bool | int | float


class SpanContext(NamedTuple):
    """Where a span is: 16 and 8 bytes as unsigned integers, neither of them 0."""

    trace_id: int
    span_id: int


class FinishedSpan(NamedTuple):
    """Times are nanoseconds since the epoch. ``attributes`` are written in their order, behind the target.

    ``model`` is the id of the model that served; it is the only text that a span carries.
    """

    name: str
    target: str
    context: SpanContext
    parent: SpanContext | None
    started_unix_ns: int
    ended_unix_ns: int
    attributes: Mapping[str, SpanValue]
    model: str
    links: tuple[SpanContext, ...] = ()


def new_trace() -> SpanContext:
    """The context of a root span in a trace of its own."""
    return SpanContext(_random_id(16), _random_id(8))


def child_of(parent: SpanContext) -> SpanContext:
    """The context of a span in its parent's trace."""
    return SpanContext(parent.trace_id, _random_id(8))


def _random_id(length: int) -> int:
    while True:
        number = int.from_bytes(secrets.token_bytes(length), "big")
        if number:
            return number
