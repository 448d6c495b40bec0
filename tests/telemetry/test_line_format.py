"""Records as text."""

import json
import logging
import sys
from typing import Any

import pytest

from superfluid.errors import ModelFileError
from superfluid.telemetry.line_format import compact_line, json_line


def record(message: str = "a message", level: int = logging.INFO, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("superfluid_daemon", level, "", 0, message, None, None)
    made.created = 1_700_000_000.25
    made.fields = fields
    return made


def record_of(error: Exception) -> logging.LogRecord:
    made = record()
    try:
        raise error
    except type(error):
        made.exc_info = sys.exc_info()
    return made


def test_compact_line_has_time_level_message_and_fields_but_no_target() -> None:
    line = compact_line(record(lane=3, ok=True, rate=1.5, why="two words", code='say "x"', none=None))
    assert line == (
        '2023-11-14T22:13:20.250000Z  INFO a message lane=3 ok=true rate=1.5 why="two words" code="say \\"x\\"" none=-'
    )


def test_compact_line_escapes_what_could_forge_a_line() -> None:
    line = compact_line(record("a\nb\x1b[31m\u2028", name="x\ny"))
    assert line.endswith('a\\nb\\x1b[31m\\u2028 name="x\\ny"')


def test_json_line_is_one_object_with_the_four_keys() -> None:
    line = json_line(record("a\nb", logging.WARNING, lane=3, ok=True))
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "timestamp": "2023-11-14T22:13:20.250000Z",
        "level": "WARN",
        "fields": {"message": "a\nb", "lane": 3, "ok": True},
        "target": "superfluid_daemon",
    }


@pytest.mark.parametrize(
    ("level", "name"), [(5, "TRACE"), (10, "DEBUG"), (20, "INFO"), (30, "WARN"), (40, "ERROR"), (50, "ERROR")]
)
def test_levels_have_the_names_operators_filter_by(level: int, name: str) -> None:
    assert json.loads(json_line(record(level=level)))["level"] == name


def test_foreign_exception_is_logged_without_its_message() -> None:
    made = record_of(ValueError("secret text of a prompt"))
    for text in (compact_line(made), json_line(made).decode()):
        assert "ValueError" in text
        assert "test_line_format.py" in text
        assert "secret" not in text


def test_our_own_exception_is_logged_with_its_message_and_cause() -> None:
    error = ModelFileError("the file is damaged")
    error.__cause__ = ValueError("secret")
    text = compact_line(record_of(error))
    assert "ModelFileError: the file is damaged" in text
    assert text.endswith("    ValueError")
