"""A real daemon on the fake engine, as a process that tests may kill and start again."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from superfluid_client import Client

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "clients" / "python" / "examples"
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0


class RealServer:
    """``script`` is what the fake engine says; see ``superfluid.engine.fake_script``."""

    def __init__(self, home: Path, script: dict[str, Any]) -> None:
        self.home = home
        self._script = home / "script.json"
        self._script.write_text(json.dumps(script))
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.client = Client(f"http://127.0.0.1:{self._port}", token_file=home / "sessions" / "web-token")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
                raise

    def start(self) -> None:
        addresses = ("--http", "127.0.0.1:0", "--web", f"127.0.0.1:{self._port}")
        options = ("--runtime", "fake", "--no-tui", "--drain-timeout", "1", *addresses)
        command = [sys.executable, "-m", "superfluid.cli.main", "serve", str(self._script), *options]
        with (self.home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=environment(self.home), stdout=log, stderr=log)
        self.client.wait_until_healthy(_START_SECONDS)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None


def environment(home: Path) -> dict[str, str]:
    """For a process that runs the daemon and the client out of the checkout."""
    paths = [str(ROOT / "src"), str(ROOT / "clients" / "python" / "src")]
    return {**os.environ, "SUPERFLUID_HOME": str(home), "PYTHONPATH": os.pathsep.join(paths)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
