"""Log records as text: the compact line for people and the JSON line for files. Pure.

Neither ever shows the message of a foreign exception: it may quote what a client wrote.
"""

import logging
import re
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from superfluid.errors import SuperfluidError
from superfluid.telemetry.filter import DEBUG, ERROR, INFO, WARN

FieldValue = str | int | float | bool | None

_encoder = msgspec.json.Encoder()
_BARE_VALUE = re.compile(r"[\w./:@+%-]+")
# Control characters could move a terminal's cursor or forge a line.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    0x0A: "\\n",
    0x0D: "\\r",
    0x09: "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def level_name(level: int) -> str:
    if level >= ERROR:
        return "ERROR"
    if level >= WARN:
        return "WARN"
    if level >= INFO:
        return "INFO"
    return "DEBUG" if level >= DEBUG else "TRACE"


def timestamp(unix_seconds: float) -> str:
    """RFC 3339 in UTC, with microseconds."""
    moment = datetime.fromtimestamp(unix_seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def compact_line(record: logging.LogRecord) -> str:
    """``time LEVEL message name=value ...`` without a line end; the lines of a traceback follow, indented."""
    parts = [timestamp(record.created), f"{level_name(record.levelno):>5}", record.getMessage().translate(_ESCAPES)]
    parts += [f"{name}={_value_text(value)}" for name, value in _fields(record).items()]
    lines = [" ".join(parts)]
    lines += [f"    {line.translate(_ESCAPES)}" for line in _exception_lines(record)]
    return "\n".join(lines)


def screen_line(record: logging.LogRecord) -> str:
    """As ``compact_line``, with the time of day alone: for a screen that is looked at while it happens."""
    compact = compact_line(record)
    return compact[len("2000-01-01T") : len("2000-01-01T00:00:00")] + compact[len("2000-01-01T00:00:00.000000Z") :]


def json_line(record: logging.LogRecord) -> bytes:
    """One JSON object and a line end."""
    fields: dict[str, FieldValue] = {"message": record.getMessage(), **_fields(record)}
    exception = _exception_lines(record)
    if exception:
        fields["exception"] = "\n".join(exception)
    entry = {
        "timestamp": timestamp(record.created),
        "level": level_name(record.levelno),
        "fields": fields,
        "target": record.name,
    }
    return _encoder.encode(entry) + b"\n"


def _fields(record: logging.LogRecord) -> Mapping[str, FieldValue]:
    """What was logged with ``extra={"fields": {...}}``."""
    fields: Mapping[str, FieldValue] | None = getattr(record, "fields", None)
    return fields or {}


def _value_text(value: FieldValue) -> str:
    if isinstance(value, str):
        if _BARE_VALUE.fullmatch(value):
            return value
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').translate(_ESCAPES) + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value is None else str(value)


def _exception_lines(record: logging.LogRecord) -> list[str]:
    error = record.exc_info[1] if record.exc_info else None
    lines: list[str] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        described = f"{type(error).__qualname__}"
        if isinstance(error, SuperfluidError | OSError):
            described += f": {error}"
        for entry in traceback.format_list(traceback.extract_tb(error.__traceback__)):
            lines += entry.splitlines()
        lines.append(described)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return lines
