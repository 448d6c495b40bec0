"""Puts the daemon's log in place: targets, the filter, and the sinks behind it. Built on Python's logging.

Modules log with ``logging.getLogger(TARGET)`` and ``extra={"fields": {...}}``. A target is the logger's name; the
``::`` in it means nothing to Python's hierarchy, so all of ours hang at the root, and the filter alone decides.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from superfluid.config import LogConfig
from superfluid.errors import EnvironmentFaultError, InvalidValueError
from superfluid.telemetry.file_sink import RotatingFileSink
from superfluid.telemetry.filter import INFO, WARN, LogFilter, parse_filter
from superfluid.telemetry.line_format import FieldValue, json_line
from superfluid.telemetry.stderr_sink import StderrSink, write_stderr

DAEMON = "superfluid_daemon"
SCHEDULER = "superfluid_daemon::scheduler"
INFERENCE = "superfluid_daemon::inference"
WORKER = "superfluid_daemon::worker"
OTLP = "superfluid_daemon::otlp"

_OUR_PREFIX = "superfluid"
_DEFAULT_FILTER = "info"
# uvicorn looks at this logger's level to decide whether to trace every message, bodies included.
_UVICORN = "uvicorn"


class RemoteRecord(Protocol):
    """A record of another process's logger (see ``worker.protocol.LogRecord``)."""

    @property
    def unix(self) -> float: ...

    @property
    def level(self) -> int: ...

    @property
    def target(self) -> str: ...

    @property
    def message(self) -> str: ...

    @property
    def fields(self) -> Mapping[str, FieldValue]: ...


class Sink(Protocol):
    """Where records go that passed the filter. ``write`` is serialized by the log; it must not raise."""

    @property
    def dropped_lines(self) -> int: ...

    def write(self, record: logging.LogRecord) -> None: ...

    def close(self) -> None: ...


def emit_remote(record: RemoteRecord) -> None:
    """Logs another process's record as if it were ours: same filter, same sinks, its own time and target."""
    logger = logging.getLogger(record.target)
    if logger.isEnabledFor(record.level):
        ours = logger.makeRecord(
            record.target, record.level, "", 0, "%s", (record.message,), None, extra={"fields": dict(record.fields)}
        )
        ours.created = record.unix
        logger.handle(ours)


class DaemonLog(logging.Handler):
    """The one handler at the root. ``close`` takes it away again and restores the root's level.

    Logs of foreign libraries pass from warning on; one that is named in the directive from info on, never lower: their
    debug records quote what goes over the wire.
    """

    def __init__(self, log_filter: LogFilter, *sinks: Sink) -> None:
        super().__init__()
        self._filter = log_filter
        self._level_for = _cached(log_filter)
        self._sinks = sinks
        self._unwritable = 0
        root = logging.getLogger()
        self._root_level = root.level
        self._apply_level()
        root.addHandler(self)

    @property
    def dropped_lines(self) -> int:
        """Lines that no sink could take, for ``superfluid_telemetry_dropped_total``."""
        return self._unwritable + sum(sink.dropped_lines for sink in self._sinks)

    def add_sink(self, sink: Sink) -> None:
        self._sinks = (*self._sinks, sink)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        return self._sinks

    def replace_sinks(self, *sinks: Sink) -> None:
        """At once. Those that are no longer among them are closed, and what they dropped stays counted."""
        gone = [sink for sink in self._sinks if sink not in sinks]
        self._sinks = sinks
        for sink in gone:
            sink.close()
            self._unwritable += sink.dropped_lines

    def replace_filter(self, directive: str) -> None:
        """At once and for all sinks. Raises InvalidValueError, keeping the old filter, if it does not parse."""
        self._filter = parse_filter(directive)
        self._level_for = _cached(self._filter)
        self._apply_level()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= self._level_for(record.name)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            for sink in self._sinks:
                sink.write(record)
        except Exception as error:  # noqa: BLE001 - cannot be logged, see below
            # Supervision point: a record that cannot be put into words must not fail the code that logged it.
            self._unwritable += 1
            if self._unwritable == 1:
                print_note(f"a record of {record.name} could not be logged: {type(error).__name__}")

    def close(self) -> None:
        root = logging.getLogger()
        if self in root.handlers:
            root.removeHandler(self)
            root.setLevel(self._root_level)
            for sink in self._sinks:
                sink.close()
        super().close()

    def _apply_level(self) -> None:
        logging.getLogger().setLevel(min(self._filter.lowest_level, WARN))
        logging.getLogger(_UVICORN).setLevel(_level_for(self._filter, _UVICORN))


def _cached(log_filter: LogFilter) -> Callable[[str], int]:
    return lru_cache(maxsize=256)(lambda target: _level_for(log_filter, target))


def _level_for(log_filter: LogFilter, target: str) -> int:
    level = log_filter.level_for(target)
    if target.startswith(_OUR_PREFIX):
        return level
    return max(level, INFO if log_filter.has_directive_for(target) else WARN)


class JsonFileSink:
    """JSON lines in rotating files."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError if no file can be opened there."""
        self._file = RotatingFileSink(directory, print_note)

    @property
    def dropped_lines(self) -> int:
        return self._file.dropped_lines

    @property
    def path(self) -> Path:
        return self._file.path

    def write(self, record: logging.LogRecord) -> None:
        self._file.put(json_line(record))

    def close(self) -> None:
        self._file.close()


def set_up_logging(config: LogConfig) -> DaemonLog:
    """Installs the log that the settings ask for. What is wrong with them is said on stderr, and serving goes on.

    Raises EnvironmentFaultError if ``config.file`` cannot be opened.
    """
    if config.file is not None:
        redirect_stderr(config.file)
    return DaemonLog(_filter_or_default(config.filter), _first_sink(config.directory))


def _filter_or_default(directive: str) -> LogFilter:
    try:
        return parse_filter(directive)
    except InvalidValueError as error:
        print_note(f"{error.message}; logging at '{_DEFAULT_FILTER}'")
        return parse_filter(_DEFAULT_FILTER)


def _first_sink(directory: Path | None) -> Sink:
    if directory is None:
        return StderrSink()
    try:
        return JsonFileSink(directory)
    except OSError as error:
        print_note(f"cannot log into {directory}: {error.strerror}; logging to stderr")
        return StderrSink()


def redirect_stderr(path: Path) -> None:
    """Puts the file, opened for append, in the place of descriptor 2. Raises EnvironmentFaultError if it cannot."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EnvironmentFaultError(f"cannot open the log file {path}: {error.strerror}", param="--log-file") from error
    sys.stderr.flush()
    os.dup2(descriptor, 2)
    os.close(descriptor)


def print_note(message: str) -> None:
    """A line on stderr about the log itself."""
    try:
        write_stderr(f"superfluid: {message}\n")
    except (OSError, ValueError):
        return  # nobody is there to be told
