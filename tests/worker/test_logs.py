"""Log records on their way to the daemon."""

import logging
import sys

import pytest

from superfluid.telemetry.filter import OFF, TRACE, parse_filter
from superfluid.worker.logs import FrameLogHandler, most_verbose_level
from superfluid.worker.protocol import FromWorker, LogRecord


@pytest.mark.parametrize(
    ("directive", "level"),
    [
        ("info", logging.INFO),
        ("", logging.ERROR),
        ("warn,superfluid_daemon::engine=debug", logging.DEBUG),
        ("error,superfluid_daemon", TRACE),
        ("error,superfluid_daemon[span{a=1}]", TRACE),
        ("off", OFF),
        ("4", logging.DEBUG),
        (" WARN ", logging.WARNING),
    ],
)
def test_most_verbose_level_is_the_lowest_of_all_parts(directive: str, level: int) -> None:
    assert most_verbose_level(directive) == level
    assert parse_filter(directive).lowest_level >= level


def test_handler_sends_target_level_message_and_fields() -> None:
    sent: list[FromWorker] = []
    record = logging.LogRecord("superfluid_daemon::engine", logging.WARNING, "", 0, "lane %d", (3,), None)
    record.fields = {"lane": 3}
    FrameLogHandler(sent.append).handle(record)
    assert sent == [LogRecord(record.created, logging.WARNING, "superfluid_daemon::engine", "lane 3", {"lane": 3})]


def test_handler_exception_travels_as_its_name_only() -> None:
    sent: list[FromWorker] = []
    try:
        raise ValueError("somebody's text")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    FrameLogHandler(sent.append).handle(record)
    (message,) = sent
    assert isinstance(message, LogRecord)
    assert (message.message, message.fields) == ("failed", {"error": "ValueError"})
