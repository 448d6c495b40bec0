"""The worker's logging: every record becomes a frame; only the daemon writes logs. Runs in the worker."""

import logging
import re
from collections.abc import Callable
from typing import Final

from superfluid.worker.protocol import FromWorker, LogRecord

TRACE: Final = 5
_LEVELS: Final = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


def most_verbose_level(directive: str) -> int:
    """The lowest level that any part of an EnvFilter directive lets through. The daemon filters again, by target.

    A part without a level (a bare target) lets everything through; one that makes no sense counts as ``info``.
    """
    levels = [_part_level(part) for part in directive.split(",") if part.strip()]
    return min(levels, default=logging.INFO)


def _part_level(part: str) -> int:
    target, equals, level = part.strip().rpartition("=")
    name = level.strip().lower()
    if name in _LEVELS:
        return _LEVELS[name]
    is_bare_target = not equals and not target and re.fullmatch(r"[A-Za-z_][\w:.]*", part.strip())
    return TRACE if is_bare_target else logging.INFO


class FrameLogHandler(logging.Handler):
    """Sends each record. A record's ``fields`` attribute (numbers, booleans, short codes) travels with it."""

    def __init__(self, send: Callable[[FromWorker], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        fields = dict(getattr(record, "fields", None) or {})
        if record.exc_info and record.exc_info[0] is not None:
            fields["error"] = record.exc_info[0].__name__
        try:
            self._send(LogRecord(record.created, record.levelno, record.name, record.getMessage(), fields))
        except OSError:
            self.handleError(record)


def install(send: Callable[[FromWorker], None], directive: str) -> None:
    """Routes the process's root logger to ``send``."""
    root = logging.getLogger()
    root.handlers[:] = [FrameLogHandler(send)]
    set_filter(directive)


def set_filter(directive: str) -> None:
    logging.getLogger().setLevel(most_verbose_level(directive))
