"""The servers under comparison as child processes on loopback: start, wait until they answer, ask, stop."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.client import Address, BenchmarkError
from benchmarks.prompts import chat_text
from benchmarks.settings import BenchSettings, Contender

START_SECONDS = 120.0
STOP_SECONDS = 20.0
CHAT_PATH = "/v1/chat/completions"
TEXT_PATH = "/v1/completions"
_PREFILL_SERIES = {
    "superfluid": "superfluid_prefill_tokens_total",
    "llama-server": "llamacpp:prompt_tokens_total",
}
_LANES_SERIES = {
    "superfluid": "superfluid_lanes_active",
    "llama-server": "llamacpp:requests_processing",
}


@dataclass(frozen=True)
class RunningServer:
    """A server that answers. ``pid`` is the process that was started: superfluid's daemon, or all of another one.
    ``run_on_fields`` are what makes it go on behind an end of turn. ``restart`` kills it without a warning and starts
    it again on the same ``home``; the old record is of no use then.
    """

    contender: Contender
    address: Address
    pid: int
    model_name: str
    run_on_fields: dict[str, Any]
    is_one_at_a_time: bool
    home: Path
    restart: Callable[[], "RunningServer"]
    has_template: bool = True

    @property
    def path(self) -> str:
        """Where requests go: a model that has no chat template is sent its conversations as text."""
        return CHAT_PATH if self.has_template else TEXT_PATH

    def request(self, messages: list[dict[str, str]], max_tokens: int, **fields: Any) -> dict[str, Any]:
        """A streaming chat completion that runs to ``max_tokens`` unless a field says otherwise."""
        body: dict[str, Any] = {
            "model": self.model_name,
            **({"messages": messages} if self.has_template else {"prompt": chat_text(messages)}),
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return body | self.run_on_fields | fields

    def prefilled_tokens(self) -> float | None:
        """Prompt tokens that the engine has run since the start, or None if the server does not tell."""
        return self._metric(_PREFILL_SERIES)

    def active_lanes(self) -> float | None:
        """Lanes with a request, or None if the server does not tell."""
        return self._metric(_LANES_SERIES)

    def _metric(self, names: dict[str, str]) -> float | None:
        series = names.get(self.contender)
        if series is None:
            return None
        page = _get(self.address, "/metrics")
        match = re.search(rf"^{re.escape(series)}(?:\{{[^}}]*\}})? ([0-9.eE+]+)$", page, re.MULTILINE)
        if match is None:
            raise BenchmarkError(f"{self.contender} has no {series} on its metrics page")
        return float(match.group(1))


def command_of(contender: Contender, settings: BenchSettings, port: int) -> list[str]:
    """The command line that serves the model with these settings."""
    lanes, window, threads = str(settings.lanes), str(settings.window_tokens), str(settings.threads)
    model = str(settings.model)
    match contender:
        case "superfluid":
            flags = ["--http", f"127.0.0.1:{port}", "--max-batch", lanes, "--max-context", window, "--threads", threads]
            return [sys.executable, "-m", "superfluid.cli.main", "serve", model, *flags, "--no-tui"]
        case "llama-server":
            flags = ["--port", str(port), "--lanes", lanes, "--window", window, "--threads", threads]
            return [sys.executable, "-m", "benchmarks.llama_server_process", "--model", model, *flags]
        case "llama-cpp-python":
            flags = ["--host", "127.0.0.1", "--port", str(port), "--n_ctx", window, "--n_threads", threads]
            more = ["--n_threads_batch", threads, "--interrupt_requests", "False", "--flash_attn", "True"]
            return [sys.executable, "-m", "llama_cpp.server", "--model", model, *flags, *more]
        case "bare loop":
            raise ValueError("the bare loop is no server")


@contextmanager
def running(
    contender: Contender, settings: BenchSettings, end_tokens: list[int], *, has_template: bool = True
) -> Iterator[RunningServer]:
    """Starts the server, yields it when it answers, and ends it. Raises BenchmarkError with its output otherwise."""
    with tempfile.TemporaryDirectory(prefix="superfluid-bench-") as home:
        launcher = _Launcher(contender, settings, end_tokens, Path(home), has_template=has_template)
        try:
            yield launcher.start()
        finally:
            if launcher.process is not None:
                stop(launcher.process)


class _Launcher:
    """Starts one contender, more than once if asked to, on the same port and directory."""

    def __init__(
        self, contender: Contender, settings: BenchSettings, end_tokens: list[int], home: Path, *, has_template: bool
    ) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._contender = contender
        self._settings = settings
        self._home = home
        self._has_template = has_template
        self._port = free_port()
        # llama-cpp-python's server does not know ignore_eos, but a bias comes to the same.
        banned = {"logit_bias": dict.fromkeys(map(str, end_tokens), -100.0)}
        self._is_one_at_a_time = contender == "llama-cpp-python"
        self._run_on_fields = banned if self._is_one_at_a_time else {"ignore_eos": True}

    def start(self) -> RunningServer:
        log = self._home / "server.log"
        environment = os.environ | {"SUPERFLUID_HOME": str(self._home), "PYTHONUNBUFFERED": "1"}
        with log.open("ab") as output:
            command = command_of(self._contender, self._settings, self._port)
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        address = Address("127.0.0.1", self._port)
        return RunningServer(
            self._contender,
            address,
            self.process.pid,
            wait_until_ready(self._contender, self.process, address, log),
            self._run_on_fields,
            self._is_one_at_a_time,
            self._home,
            self._restart,
            self._has_template,
        )

    def _restart(self) -> RunningServer:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        return self.start()


def wait_until_ready(contender: Contender, process: "subprocess.Popen[bytes]", address: Address, log: Path) -> str:
    """Polls until the server names its model and, if it has a health page, says that it is well. Returns the name."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if contender != "llama-cpp-python":
                _get(address, "/health")
            models = json.loads(_get(address, "/v1/models"))
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
            continue
        return str(models["data"][0]["id"])
    raise BenchmarkError(f"{contender} did not start; its last words:\n{log.read_text(errors='replace')[-2000:]}")


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Ends the server politely, then for certain."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A loopback port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _get(address: Address, path: str) -> str:
    with urllib.request.urlopen(f"http://{address.host}:{address.port}{path}", timeout=10) as reply:
        text: str = reply.read().decode()
        return text
