"""Makes .venv and installs superfluid into it; `make` runs it. Standard library only, any working Python 3.11+.

    bootstrap.py NAME [EXTRA ...]

installs the extras NAME and EXTRA (``serve`` is no extra) and then writes .venv/.stamps/NAME. For the tests it looks
for Chromium and Prometheus as well, which only the system's package manager has.

The stamp comes last: whatever fails or is interrupted before it is simply done again by the next run.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMPS = VENV / ".stamps"
PYTHON = VENV / "bin" / "python"
ENGINE_PACKAGE = "llama-cpp-python"
KEPT_LINES = 40
BROWSER_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER_ADVICE = (
    "the browser tests need Chromium (or Chrome), and fail without it.\n"
    "       On Debian: apt-get install chromium; on macOS: brew install --cask chromium;\n"
    "       elsewhere, set CHROMIUM to the path of the executable"
)
MONITORING = ROOT / ".cache" / "prometheus" / "usr" / "bin"
PROMETHEUS_ADVICE = (
    "the monitoring tests need prometheus and promtool, and fail without them.\n"
    "       On Debian: apt-get install prometheus; on macOS: brew install prometheus"
)
_MAC_BROWSERS = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
TICK_SECONDS = 1.0


class SetupError(Exception):
    """Something the person at the keyboard has to mend; the message says what."""


def main(arguments: list[str]) -> int:
    """Returns the exit code; prints one clear message when the set-up cannot go on."""
    if not arguments:
        say("usage: bootstrap.py NAME [EXTRA ...]")
        return 2
    try:
        ensure_environment()
        install([name for name in arguments if name != "serve"])
        if "test" in arguments:
            provide_browser()
            provide_prometheus()
        STAMPS.mkdir(exist_ok=True)
        (STAMPS / arguments[0]).touch()
    except SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; run the same command again to go on")
        return 130
    return 0


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def ensure_environment() -> None:
    """Leaves a working .venv behind, or none. Raises SetupError."""
    if is_environment_usable():
        return
    if VENV.exists():
        say("the .venv here does not work; making a new one")
        shutil.rmtree(VENV)
    else:
        say(f"making .venv with Python {sys.version_info.major}.{sys.version_info.minor}")
    with removed_on_failure(VENV):
        made = subprocess.run([sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise SetupError(
                f"{sys.executable} could not make a virtual environment:\n{made.stdout}{made.stderr}"
                "On Debian and Ubuntu this needs: apt-get install python3-venv"
            )


def is_environment_usable() -> bool:
    check = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    if not PYTHON.exists():
        return False
    return subprocess.run([str(PYTHON), "-c", check], capture_output=True, check=False).returncode == 0


@contextmanager
def removed_on_failure(path: Path) -> Iterator[None]:
    is_whole = False
    try:
        yield
        is_whole = True
    finally:
        if not is_whole:
            shutil.rmtree(path, ignore_errors=True)


def install(extras: list[str]) -> None:
    """Installs the project, editable, with ``extras``. Raises SetupError with the end of pip's own words."""
    target = f".[{','.join(extras)}]" if extras else "."
    say(f"installing superfluid{' for ' + ', '.join(extras) if extras else ''} into .venv")
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off", "-e", target]
    started = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        try:
            last_lines = follow(pip.stdout)
        except BaseException:
            pip.terminate()
            raise
    if pip.returncode != 0:
        raise SetupError("pip could not install superfluid; its last words:\n" + "".join(last_lines))
    say(f"installed in {minutes(time.monotonic() - started)}")


def follow(lines: Iterable[str]) -> list[str]:
    """Reads pip's output, shows what takes long, and returns its last lines. Raises SetupError without a compiler."""
    kept: list[str] = []
    compiling: Elapsed | None = None
    try:
        for line in lines:
            kept = [*kept, line][-KEPT_LINES:]
            if f"Building wheel for {ENGINE_PACKAGE}" in line and compiling is None:
                require_compiler()
                say("llama.cpp is compiled for this machine: 4 to 12 minutes on two cores, once (pip keeps it)")
                compiling = Elapsed("compiling llama.cpp")
            elif line.lstrip().startswith("Downloading") and " MB)" in line:
                say(line.strip())
            elif compiling is not None and "still running" not in line:
                compiling.stop()
    finally:
        if compiling is not None:
            compiling.stop()
    return kept


def require_compiler() -> None:
    """Raises SetupError if there is no C++ compiler: pip's own message about that is a page long."""
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    if not any(name and shutil.which(name.split()[0]) for name in names):
        raise SetupError(
            "llama.cpp has to be compiled here and there is no C++ compiler.\n"
            "       On Debian and Ubuntu: apt-get install build-essential; on macOS: xcode-select --install"
        )


def find_browser() -> Path | None:
    """The Chromium or Chrome to test with: ``$CHROMIUM``, or one that is installed."""
    named = os.environ.get("CHROMIUM", "")
    found = [shutil.which(name) for name in ((named,) if named else (*BROWSER_NAMES, *_MAC_BROWSERS))]
    return next((Path(path) for path in found if path), None)


def provide_browser() -> None:
    """Installs Chromium where that asks nobody for anything (as root on Debian, as containers are); elsewhere only says
    how. Its absence does not stop the other tests, and fails the browser's: a green run has run them."""
    if find_browser() is not None:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say("installing Chromium for the browser tests")
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in ("apt-get update -qq", "apt-get install -y -qq --no-install-recommends chromium"):
            subprocess.run(command.split(), env=environment, capture_output=True, check=False)
    if find_browser() is None:
        say(BROWSER_ADVICE)


def find_prometheus() -> Path | None:
    """The directory of ``prometheus`` and ``promtool``: unpacked by this script, or the system's."""
    if all((MONITORING / name).is_file() for name in ("prometheus", "promtool")):
        return MONITORING
    found = shutil.which("prometheus"), shutil.which("promtool")
    return Path(found[0]).parent if found[0] and found[1] else None


def provide_prometheus() -> None:
    """Unpacks Debian's package into the project, which needs no rights and starts no service; elsewhere says what is
    missing. Its absence fails the monitoring tests and no others."""
    if find_prometheus() is None and shutil.which("apt-get") and shutil.which("dpkg-deb"):
        say("fetching Prometheus for the monitoring tests")
        MONITORING.mkdir(parents=True, exist_ok=True)
        root = MONITORING.parent.parent
        if os.geteuid() == 0:
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=False)
        subprocess.run(["apt-get", "download", "-qq", "prometheus"], cwd=root, capture_output=True, check=False)
        for package in root.glob("prometheus_*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(root)], capture_output=True, check=False)
            package.unlink()
    if find_prometheus() is None:
        say(PROMETHEUS_ADVICE)


class Elapsed:
    """A line that counts the time of a long step; only where somebody is looking (stderr is a terminal)."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._started = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if sys.stderr.isatty():
            self._thread.start()

    def stop(self) -> None:
        """Ends the line and says how long the step took. Later calls do nothing."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
            sys.stderr.write("\r\033[K")
        say(f"{self._label} took {minutes(time.monotonic() - self._started)}")

    def _run(self) -> None:
        while not self._is_over.wait(TICK_SECONDS):
            sys.stderr.write(f"\r\033[Ksetup: {self._label} ... {minutes(time.monotonic() - self._started)}")
            sys.stderr.flush()


def minutes(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
