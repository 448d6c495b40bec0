"""The worker's logging: every record becomes a frame; only the daemon writes logs. Runs in the worker."""

import logging
from collections.abc import Callable
from typing import Final

from superfluid.worker.protocol import FromWorker, LogRecord

_LEVELS: Final = {"off": 100, "error": 40, "warn": 30, "info": 20, "debug": 10, "trace": 5}
_NUMBERS: Final = {str(number): level for number, level in enumerate(_LEVELS.values())}


def most_verbose_level(directive: str) -> int:
    """A level below which no part of a log filter directive lets anything through.

    Only the daemon knows the whole grammar, and filters again by target: what is not plainly a level counts as one that
    lets everything through.
    """
    levels = [_part_level(part) for part in directive.split(",") if part.strip()]
    return min(levels, default=_LEVELS["error"])


def _part_level(part: str) -> int:
    name = part.rpartition("=")[2].strip().lower()
    return _LEVELS.get(name, _NUMBERS.get(name, _LEVELS["trace"]))


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
