"""Standard error as a pipe, mirrored to a file on a full disk, which a limit on the size of files stands for."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, resource, sys, threading
from superfluid.telemetry.stderr_capture import StderrCapture

taken = threading.Semaphore(0)
capture = StderrCapture(lambda line: taken.release(), is_mirrored=True)
capture.start()
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
for limit, line in ((0, b"lost"), (hard, b"written")):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    os.write(2, line + bytes([10]))
    taken.acquire()
capture.stop()
"""


def test_mirror_whose_disk_was_full_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "src"
    path = tmp_path / "stderr"
    with path.open("wb") as file:
        subprocess.run(
            [sys.executable, "-c", PROGRAM], stderr=file, check=True, env=os.environ | {"PYTHONPATH": str(source)}
        )
    assert path.read_text() == "written\n"
