"""Subscriptions in the encoding of the daemon's unix socket (postcard), to the same values that its JSON has. Pure.

A value has no names and no marks of its type, so the order of fields and variants here is that of the protocol. See
``docs/session-api.md``; the tests hold this against the daemon's own schema.
"""

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

_LONGEST_VARINT_BYTES = 10
_ENOUGH_FLOAT_DIGITS = 9

SUBSCRIBE: Final = 9


class MalformedFrameError(ValueError):
    """The bytes are no reply that this client knows."""


class Input:
    """Bytes, read from the front. Reading beyond their end raises MalformedFrameError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._data):
            raise MalformedFrameError("the frame ends too early")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def unsigned(self) -> int:
        """Seven bits a byte, low ones first; the highest bit says that more follow."""
        value = 0
        for number in range(_LONGEST_VARINT_BYTES):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << (7 * number)
            if byte < 0x80:
                return value
        raise MalformedFrameError("a number without end")


Read = Callable[[Input], Any]


def _unsigned(source: Input) -> int:
    return source.unsigned()


def _byte(source: Input) -> int:
    return source.take(1)[0]


def _flag(source: Input) -> bool:
    value = _byte(source)
    if value > 1:
        raise MalformedFrameError(f"{value} is neither true nor false")
    return value == 1


def _float(source: Input) -> float | None:
    """The shortest decimal that is this 32-bit float, as in JSON, which has no NaN and no infinity."""
    raw = source.take(4)
    (value,) = struct.unpack("<f", raw)
    if not math.isfinite(value):
        return None
    candidates = (float(f"{value:.{digits}g}") for digits in range(1, _ENOUGH_FLOAT_DIGITS + 1))
    return next(short for short in candidates if _is_packed_as(short, raw))


def _is_packed_as(value: float, raw: bytes) -> bool:
    try:
        return struct.pack("<f", value) == raw
    except OverflowError:
        return False


def _text(source: Input) -> str:
    try:
        return source.take(source.unsigned()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedFrameError("a text that is not UTF-8") from error


def _optional(read: Read) -> Read:
    return lambda source: read(source) if _flag(source) else None


def _list(read: Read) -> Read:
    return lambda source: [read(source) for _ in range(source.unsigned())]


def _pair(first: Read, second: Read) -> Read:
    return lambda source: [first(source), second(source)]


def _record(fields: Mapping[str, Read]) -> Read:
    return lambda source: {name: read(source) for name, read in fields.items()}


def _variants(*variants: tuple[str, Mapping[str, Read]]) -> Read:
    """``{"Name": fields}``, or ``"Name"`` if it has none."""

    def read(source: Input) -> Any:
        number = source.unsigned()
        if number >= len(variants):
            raise MalformedFrameError(f"variant {number} is unknown: is the daemon newer than this client?")
        name, fields = variants[number]
        return {name: {field: read(source) for field, read in fields.items()}} if fields else name

    return read


def _later_body(source: Input) -> Any:
    return BODY(source)


_SPAN = _list(_unsigned)
_SAMPLING = _record({"temperature": _float, "top_p": _float, "min_p": _float, "top_k": _unsigned, "seed": _unsigned})
_EDIT = _variants(
    ("Drop", {"from": _unsigned, "to": _unsigned}),
    ("Replace", {"from": _unsigned, "to": _unsigned, "role": _unsigned, "text": _text}),
)
_PURGE_MODE = _variants(("Cascade", {}), ("Reroot", {}))

BODY: Final = _variants(
    ("Created", {"parent": _optional(_unsigned), "params": _SAMPLING}),
    ("Appended", {"text": _optional(_text), "span": _SPAN}),
    ("Message", {"role": _unsigned, "text": _text, "span": _SPAN}),
    ("GenerationPrompt", {"span": _SPAN}),
    ("Generated", {"span": _SPAN, "text": _text, "channel": _unsigned, "finish": _unsigned}),
    ("ToolUse", {"name": _text, "arguments": _text}),
    ("ToolResult", {"call_id": _unsigned, "content": _text, "span": _SPAN}),
    ("EpochBump", {}),
    ("GenerationFingerprint", {"digest": _unsigned}),
    ("ToolParseFailure", {"raw": _text}),
    ("Forked", {"parent": _unsigned, "fork_at": _unsigned, "params": _SAMPLING}),
    ("MetaUpdated", {"version": _unsigned, "title": _optional(_text), "archived": _optional(_flag)}),
    ("Rebased", {"parent": _unsigned, "fork_at": _unsigned, "params": _SAMPLING, "edits": _list(_EDIT)}),
    ("ToolExpired", {"call_id": _unsigned, "reason": _text}),
    ("Purged", {"generation": _unsigned, "descendants": _PURGE_MODE}),
    ("Rerooted", {"purged_parent": _unsigned, "prefix": _list(_pair(_unsigned, _later_body))}),
    ("QosSet", {"class": _byte, "batch_invariant": _flag}),
    (
        "Block",
        {"role": _unsigned, "kind": _unsigned, "payload": _text, "span": _SPAN, "visibility_version": _unsigned},
    ),
    ("PermissionRequest", {"call_id": _unsigned, "text": _text}),
    ("PermissionResponse", {"request_id": _unsigned, "granted": _flag}),
    ("ToolCancelRequested", {"call_id": _unsigned}),
    ("ToolOutcome", {"call_id": _unsigned, "outcome": _byte, "note": _text}),
    ("ToolReconciliation", {"call_id": _unsigned, "note": _text}),
    ("ToolLease", {"call_id": _unsigned, "deadline_unix_ms": _unsigned}),
    ("Pinned", {"deadline_unix_ms": _unsigned}),
)

_EVENT = _record({"event_id": _unsigned, "epoch": _unsigned, "ts_unix_ms": _unsigned, "body": BODY})

# Of the replies, those that a connection gets which sends nothing but Subscribe.
_REPLIES: Final[Mapping[int, tuple[str, Read]]] = {
    8: ("Subscribed", _record({"sub": _unsigned})),
    9: ("SubEvent", _record({"sub": _unsigned, "event": _EVENT})),
    10: ("SubProvisional", _record({"sub": _unsigned, "channel": _unsigned, "text": _text})),
    11: ("SubEnded", _record({"sub": _unsigned, "reason": _text})),
    13: ("Err", _record({"message": _text})),
}


def decode_reply(payload: bytes) -> tuple[str, Any]:
    """A reply's name and its fields. Raises MalformedFrameError for one that no subscription gets."""
    source = Input(payload)
    number = source.unsigned()
    if number not in _REPLIES:
        raise MalformedFrameError(f"reply {number} belongs to no subscription")
    name, read = _REPLIES[number]
    return name, read(source)


def encode_subscribe(session: int, cursor: int, *, provisional: bool) -> bytes:
    """The request's payload. Raises ValueError for numbers that are no ``u64``."""
    return b"".join(map(_varint, (SUBSCRIBE, session, cursor, int(provisional))))


def _varint(value: int) -> bytes:
    if not 0 <= value < 2**64:
        raise ValueError(f"{value} is no session and no event")
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
