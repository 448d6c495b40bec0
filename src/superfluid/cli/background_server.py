"""A server started for a client that found none: in the background, with a log file, watched until it is ready."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from superfluid.config import DEFAULT_HTTP_HOST, DEFAULT_HTTP_PORT
from superfluid.errors import EnvironmentFaultError

_ADDRESS = re.compile(r"^ *listening on (http://[^\s;]+)", re.MULTILINE)


class BackgroundServer:
    """The process and its log. It outlives this one unless it is told to stop."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, begins_at: int) -> None:
        self._process = process
        self._begins_at = begins_at
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Asks it to end, and does not wait for that."""
        self._process.terminate()

    def wait(self, timeout_seconds: float) -> int:
        """Its exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout_seconds)

    def check(self) -> None:
        """Raises EnvironmentFaultError, with the last words of its log, if it has ended."""
        if self._process.poll() is not None:
            raise EnvironmentFaultError(f"the server did not start: {self.last_line() or 'it said nothing'}")

    def last_line(self) -> str:
        """What it says at the moment: while it fetches a model, how far that is."""
        told = [line.strip().removeprefix("error: ") for line in self._said().splitlines() if line.strip()]
        return told[-1] if told else ""

    def address(self) -> str | None:
        """The URL of its HTTP API, once it has said that."""
        found = _ADDRESS.search(self._said())
        return None if found is None else found[1]

    def _said(self) -> str:
        with self.log.open("rb") as file:
            file.seek(self._begins_at)
            return file.read().decode(errors="replace")


def start_in_background(home: Path, arguments: Sequence[str]) -> BackgroundServer:
    """Runs ``superfluid serve`` with ``arguments``. Raises EnvironmentFaultError if its log cannot be written.

    If another program has the usual HTTP port, it gets a free one.
    """
    log = home / "logs" / "serve.log"
    command = [sys.executable, "-m", "superfluid.cli", "serve", "--no-tui", *arguments, *_port_arguments()]
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as output:
            begins_at = output.seek(0, os.SEEK_END)
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
    except OSError as error:
        raise EnvironmentFaultError(f"cannot start a server with its log at {log}: {error.strerror}") from error
    return BackgroundServer(process, log, begins_at)


def _port_arguments() -> list[str]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((DEFAULT_HTTP_HOST, DEFAULT_HTTP_PORT))
        except OSError:
            return ["--port", "0"]
    return []
