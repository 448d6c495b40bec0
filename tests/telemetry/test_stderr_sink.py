"""The log on standard error where that is a file on a full disk, which a limit on the size of files stands for."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import logging, os, resource, sys
from pathlib import Path
from superfluid.telemetry.logs import print_note, redirect_stderr
from superfluid.telemetry.stderr_sink import StderrSink

redirect_stderr(Path(sys.argv[1]))
sink = StderrSink()
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

def say(number):
    sink.write(logging.LogRecord("superfluid_daemon", logging.INFO, "", 0, f"line {number}", None, None))

say(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (os.fstat(2).st_size + 10, hard))
say(2)
say(3)
print_note("lost as well")
if sys.argv[2] == "recovers":
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    say(4)
    say(5)
print(sink.dropped_lines)
"""


def run(path: Path, end: str) -> tuple[str, list[str]]:
    """What it counted, and the file's lines from their first words on."""
    source = Path(__file__).parents[2] / "src"
    command = [sys.executable, "-c", PROGRAM, str(path), end]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(source)}
    )
    return done.stdout.strip(), path.read_text().splitlines()


def test_sink_on_a_full_disk_drops_lines_and_tells_once_how_many_when_there_is_room_again(tmp_path: Path) -> None:
    dropped, lines = run(tmp_path / "log", "recovers")
    assert dropped == "2"
    assert [line.rpartition(" INFO ")[2] for line in lines[:1]] == ["line 1"]
    assert len(lines[1]) == 10  # what there was room for of the second
    assert lines[2] == "superfluid: 2 lines of the log could not be written"
    assert [line.rpartition(" INFO ")[2] for line in lines[3:]] == ["line 4", "line 5"]


def test_process_that_ends_while_the_disk_is_full_ends_as_it_would_otherwise(tmp_path: Path) -> None:
    """Python makes it exit code 120 if its own stream still holds something."""
    dropped, lines = run(tmp_path / "log", "stays full")
    assert dropped == "2"
    assert len(lines) == 2
