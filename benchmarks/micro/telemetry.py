"""What watching costs: decode rate with all telemetry on against all off, in interleaved pairs; the metrics page; top.

Run with ``PYTHONPATH=src:. python -m benchmarks.micro.telemetry MODEL [PAIRS] [PART ...]``. Everything on: JSON logs, a
scrape a second, spans and metrics to a collector that takes them, the monitor open on a terminal; or only PARTs
(logs, scrape, otlp, monitor). The goals: at least 0.97 of the rate; the page under 5 ms; ``superfluid top`` under 2 %
of a core for ten nodes.
"""

import os
import pty
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.client import Address, complete_all, run
from benchmarks.process_usage import cpu_seconds
from benchmarks.prompts import Vocabulary
from benchmarks.scenarios import decode_rate
from benchmarks.servers import CHAT_PATH, free_port, stop, wait_until_ready

PARTS = frozenset({"logs", "scrape", "otlp", "monitor"})
NOTHING: frozenset[str] = frozenset()
LANES = 8
TOKENS = 200
NODES = 10
TOP_SECONDS = 20.0
PAGES = 200


def main(arguments: list[str]) -> int:
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    model, pairs = Path(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 5
    parts = frozenset(arguments[2:] or PARTS)
    ratios: list[float] = []
    with collector() as url:
        for index in range(pairs):
            order = (parts, NOTHING) if index % 2 else (NOTHING, parts)
            rates = {watched: decode(model, url, watched) for watched in order}
            off, on = rates[NOTHING], rates[parts]
            ratios.append(on / off)
            print(f"pair {index + 1}: off {off:.1f}, on {on:.1f} tokens/s, ratio {on / off:.3f}", flush=True)
    print(f"throughput with {', '.join(sorted(parts))}: median {statistics.median(ratios):.3f} of {pairs} pairs")
    if parts == PARTS:
        watch_pages()
    return 0


@contextmanager
def collector() -> Iterator[str]:
    """Takes everything and keeps nothing."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class names it so)
            """Nothing is kept."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def decode(model: Path, collector_url: str, watched: frozenset[str]) -> float:
    """Tokens a second of eight clients."""
    with tempfile.TemporaryDirectory(prefix="superfluid-bench-") as home:
        flags = ["--max-batch", str(LANES), "--max-context", "2048"]
        flags += ["--tui" if "monitor" in watched else "--no-tui"]
        flags += ["--log-dir", f"{home}/logs"] if "logs" in watched else ["--log-filter", "off"]
        if "otlp" in watched:
            flags += ["--otlp-endpoint", collector_url, "--otlp-metrics", collector_url]
        with (
            server(model, Path(home), flags, has_terminal="monitor" in watched) as (address, name),
            scraped(address) if "scrape" in watched else unwatched(),
        ):
            run(complete_all(address, CHAT_PATH, [counting_body(name, client, 16) for client in range(LANES)]))
            bodies = [counting_body(name, client, TOKENS) for client in range(LANES)]
            records = run(complete_all(address, CHAT_PATH, bodies))
    with Vocabulary(model) as vocabulary:
        return decode_rate(records, vocabulary.count)


def counting_body(model: str, client: int, tokens: int) -> dict[str, Any]:
    """A greedy stream of exactly ``tokens`` tokens, another for each client."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"Count from {client}."}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
    }


@contextmanager
def unwatched() -> Iterator[None]:
    yield


@contextmanager
def scraped(address: Address) -> Iterator[None]:
    """Fetches the metrics page every second."""
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.wait(1.0):
            page(address)

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def server(model: Path | None, home: Path, flags: list[str], *, has_terminal: bool) -> Iterator[tuple[Address, str]]:
    """A server on a pseudo terminal of 200 by 60, or on none."""
    port = free_port()
    what = ["--runtime", "fake"] if model is None else [str(model)]
    command = [sys.executable, "-m", "superfluid.cli.main", "serve", *what, "--http", f"127.0.0.1:{port}", *flags]
    environment = os.environ | {"SUPERFLUID_HOME": str(home), "TERM": "xterm-256color"}
    log = home / "server.log"
    with log.open("wb") as output:
        if has_terminal:
            controller, terminal = pty.openpty()
            ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
            threading.Thread(target=_drain, args=(controller,), daemon=True).start()
            process = subprocess.Popen(command, env=environment, stdin=terminal, stdout=terminal, stderr=output)
            os.close(terminal)
        else:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        address = Address("127.0.0.1", port)
        yield address, wait_until_ready("superfluid", process, address, log)
    finally:
        stop(process)


def _drain(descriptor: int) -> None:
    """Reads a terminal as fast as it is written."""
    try:
        while os.read(descriptor, 65536):
            pass
    except OSError:
        os.close(descriptor)


def page(address: Address) -> bytes:
    with urllib.request.urlopen(f"http://{address.host}:{address.port}/metrics", timeout=10) as answer:
        body: bytes = answer.read()
    return body


def watch_pages() -> None:
    """The page's own time, and what ``superfluid top`` takes for ten nodes (one server under ten names)."""
    with (
        tempfile.TemporaryDirectory(prefix="superfluid-bench-") as home,
        server(None, Path(home), ["--no-tui"], has_terminal=False) as (address, _),
    ):
        times: list[float] = []
        for _ in range(PAGES):
            begun = time.perf_counter()
            page(address)
            times.append(time.perf_counter() - begun)
        times.sort()
        median, high = times[PAGES // 2] * 1000, times[-PAGES // 100] * 1000
        print(f"/metrics, connection included: median {median:.2f} ms, 99 % {high:.2f} ms (goal: under 5 ms)")
        share = top_share(address)
        print(f"superfluid top, {NODES} nodes: {share:.2%} of a core (goal: under 2 %)")


def top_share(address: Address) -> float:
    controller, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    threading.Thread(target=_drain, args=(controller,), daemon=True).start()
    # Ten hosts of loopback, so that each is a node of its own.
    nodes = [f"127.0.0.1:{address.port}"] + [f"127.0.0.{host}:{address.port}" for host in range(2, NODES + 1)]
    command = [sys.executable, "-m", "superfluid.cli.main", "top", *nodes]
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=os.environ | {"TERM": "xterm-256color"}
    )
    os.close(terminal)
    try:
        time.sleep(3.0)
        begun = cpu_seconds(process.pid)
        time.sleep(TOP_SECONDS)
        return (cpu_seconds(process.pid) - begun) / TOP_SECONDS
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
