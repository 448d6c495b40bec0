"""The log as a whole: filter, sinks, run-time changes, foreign loggers."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from superfluid.config import LogConfig
from superfluid.errors import EnvironmentFaultError, InvalidValueError
from superfluid.telemetry.logs import DAEMON, INFERENCE, SCHEDULER, WORKER, DaemonLog, emit_remote, set_up_logging
from superfluid.worker.protocol import LogRecord


@pytest.fixture
def installed() -> Iterator[Callable[[LogConfig], DaemonLog]]:
    logs: list[DaemonLog] = []

    def install(config: LogConfig) -> DaemonLog:
        logs.append(set_up_logging(config))
        return logs[-1]

    yield install
    for log in logs:
        log.close()


Install = Callable[[LogConfig], DaemonLog]


def messages(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.split(" ", 1)[1].strip() for line in capsys.readouterr().err.splitlines()]


def test_stderr_gets_what_the_filter_lets_through(installed: Install, capsys: pytest.CaptureFixture[str]) -> None:
    installed(LogConfig(filter="warn,superfluid_daemon::scheduler=debug"))
    logging.getLogger(SCHEDULER).debug("tick %d", 7, extra={"fields": {"lanes": 2}})
    logging.getLogger(INFERENCE).info("hidden")
    logging.getLogger(DAEMON).error("shown")
    assert messages(capsys) == ["DEBUG tick 7 lanes=2", "ERROR shown"]


def test_replaced_filter_counts_at_once(installed: Install, capsys: pytest.CaptureFixture[str]) -> None:
    log = installed(LogConfig(filter="error"))
    logger = logging.getLogger(SCHEDULER)
    logger.debug("one")
    log.replace_filter("debug")
    logger.debug("two")
    log.replace_filter("off")
    logger.error("three")
    assert messages(capsys) == ["DEBUG two"]


def test_filter_that_does_not_parse_keeps_the_old_one(installed: Install, capsys: pytest.CaptureFixture[str]) -> None:
    log = installed(LogConfig(filter="info"))
    with pytest.raises(InvalidValueError):
        log.replace_filter("a=loud")
    logging.getLogger(DAEMON).info("still")
    assert messages(capsys) == ["INFO still"]


def test_filter_that_does_not_parse_at_the_start_is_info_and_said(
    installed: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(LogConfig(filter="a=loud"))
    logging.getLogger(DAEMON).debug("hidden")
    logging.getLogger(DAEMON).info("shown")
    note, line = messages(capsys)
    assert note == "'a=loud' is not a log filter directive; logging at 'info'"
    assert line == "INFO shown"


@pytest.mark.parametrize(
    ("directive", "expected"),
    [("trace", ["WARN w"]), ("uvicorn=trace", ["INFO i", "WARN w"]), ("off", []), ("error", [])],
)
def test_foreign_loggers_never_show_what_goes_over_the_wire(
    installed: Install, capsys: pytest.CaptureFixture[str], directive: str, expected: list[str]
) -> None:
    installed(LogConfig(filter=directive))
    logger = logging.getLogger("uvicorn.error")
    logger.debug("d")
    logger.info("i")
    logger.warning("w")
    assert messages(capsys) == expected
    assert not logger.isEnabledFor(logging.DEBUG)


def test_directory_gets_json_lines(installed: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = installed(LogConfig(directory=tmp_path))
    logging.getLogger(SCHEDULER).info("parked", extra={"fields": {"lane": 1}})
    log.close()
    entry = json.loads((tmp_path / "superfluid.0.jsonl").read_text())
    assert (entry["target"], entry["fields"]) == (SCHEDULER, {"message": "parked", "lane": 1})
    assert capsys.readouterr().err == ""
    assert log.dropped_lines == 0


def test_directory_that_cannot_be_used_falls_back_to_stderr(
    installed: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    installed(LogConfig(directory=tmp_path / "file"))
    logging.getLogger(DAEMON).info("here")
    note, line = messages(capsys)
    assert note.startswith("cannot log into")
    assert line == "INFO here"


def test_remote_record_keeps_its_time_target_and_fields(
    installed: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(LogConfig(filter="off,superfluid_daemon::worker=info"))
    emit_remote(LogRecord(1_700_000_000.5, 20, WORKER, "100 % loaded", {"lanes": 8}))
    emit_remote(LogRecord(1_700_000_000.5, 10, WORKER, "hidden"))
    assert capsys.readouterr().err == "2023-11-14T22:13:20.500000Z  INFO 100 % loaded lanes=8\n"


def test_record_that_cannot_be_written_is_counted_and_said_once(
    installed: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    class BrokenSink:
        dropped_lines = 0

        def write(self, record: logging.LogRecord) -> None:
            raise TypeError("secret")

        def close(self) -> None: ...

    log = installed(LogConfig())
    log.add_sink(BrokenSink())
    for _ in range(2):
        logging.getLogger(DAEMON).info("fine")
    assert log.dropped_lines == 2
    assert [text for text in messages(capsys) if "INFO" not in text] == [
        "a record of superfluid_daemon could not be logged: TypeError"
    ]


def test_close_leaves_the_root_logger_as_it_was() -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    set_up_logging(LogConfig(filter="trace")).close()
    assert (root.level, list(root.handlers)) == before


def test_log_file_takes_the_place_of_stderr_for_children_too(tmp_path: Path) -> None:
    path = tmp_path / "err"
    path.write_text("before\n")
    program = (
        "import os, sys; from pathlib import Path; from superfluid.telemetry.logs import redirect_stderr;"
        "redirect_stderr(Path(sys.argv[1])); os.system('echo child >&2'); print('parent', file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, env=environment, timeout=30)
    assert path.read_text() == "before\nchild\nparent\n"


def test_log_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFaultError, match="cannot open the log file"):
        set_up_logging(LogConfig(file=tmp_path / "no" / "such" / "file"))
