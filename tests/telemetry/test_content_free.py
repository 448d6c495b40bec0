"""A marker stands in every text that a client can send or a model can say; nothing that operators see may hold it.

Prompts, replies, reasoning, tool declarations and arguments, tool results, titles, permissions, blocks, bad requests;
against the log at its lowest level, the access log, metrics, status pages, spans and the monitor's screen.
"""

import contextlib
import json
import re
import shutil
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Protocol

from tests.fixtures.collector import Collector
from tests.fixtures.live_daemon import GREEDY, LiveDaemon, RefusedError, SocketClient
from tests.fixtures.terminal_server import TerminalServer

from superfluid.domain.events import PurgeMode
from superfluid.native import requests, responses

MARKER = "xyzzyplover"
# As it would look in a log of token ids or bytes of it.
PIECES = (MARKER, MARKER.upper(), MARKER.encode().hex(), ", ".join(str(byte) for byte in MARKER.encode()))
CALL = f'<tool_call>{{"name": "look", "arguments": {{"where": "{MARKER}"}}}}</tool_call>'
REPLY = f"<think>{MARKER} hm</think>{MARKER} indeed.{CALL}"
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": MARKER, "parameters": {"type": "object", "properties": {}}},
}

_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\\\)|P[^\x1b]*\x1b\\\\|[ -/]*[0-~])")
_PAGE_UP = b"\x1b[5~"


class Daemon(Protocol):
    """One that can be kept busy."""

    @property
    def http_port(self) -> int: ...

    def client(self) -> SocketClient: ...


class WatchedDaemon:
    """One whose monitor somebody looks at."""

    def __init__(self, server: TerminalServer, socket: Path) -> None:
        self._socket = socket
        self.http_port = int(server.url.rpartition(":")[2])

    def client(self) -> SocketClient:
        return SocketClient(self._socket)


def use_sessions(running: Daemon) -> None:
    with running.client() as client:
        created = client.ask(requests.Create(None, GREEDY))
        assert isinstance(created, responses.Created)
        session = created.session
        client.ask(requests.AppendSystem(session, MARKER, (json.dumps(TOOL),)))
        client.ask(requests.SetMeta(session, 0, MARKER, None))
        client.ask(requests.AppendMessage(session, 1, MARKER))
        events = list(client.stream(session, 400))
        assert MARKER in str(events), "the model has not said it: nothing is tested"
        calls = client.ask(requests.OpenToolCalls(session))
        assert isinstance(calls, responses.ToolCalls)
        for call_id, _, arguments in calls.calls:
            assert MARKER in arguments
            client.ask(requests.RequestPermission(session, call_id, MARKER))
            client.ask(requests.AppendToolResult(session, call_id, MARKER))
        client.ask(requests.AppendBlock(session, 1, 2, json.dumps({"title": MARKER, "content": MARKER})))
        client.ask(requests.Append(session, MARKER, ()))
        refused: tuple[Any, ...] = (
            requests.AppendMessage(session, 9, MARKER),
            requests.AppendSystem(session, MARKER, (MARKER,)),
            requests.AppendImage(session, 1, MARKER, MARKER, MARKER),
            requests.SetLogLevel(f"{MARKER}=="),
            requests.Complete(MARKER, MARKER, 0, 4),
        )
        for request in refused:
            with contextlib.suppress(RefusedError):
                client.ask(request)
        client.ask(requests.PutMedia(MARKER.encode(), MARKER))
        client.ask(requests.GcMedia())
        client.ask(requests.Purge(session, 0, PurgeMode.CASCADE))


def post(running: Daemon, path: str, body: Any) -> int:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{running.http_port}{path}", data, {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            response.read()
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def use_http(running: Daemon) -> None:
    messages = [{"role": "user", "content": MARKER}]
    chat = {"model": "fake", "messages": messages, "max_tokens": 400}
    assert post(running, "/v1/chat/completions", chat) == 200
    assert post(running, "/v1/chat/completions", {**chat, "stream": True, "tools": [TOOL], "user": MARKER}) == 200
    assert post(running, "/v1/completions", {"model": "fake", "prompt": MARKER, "max_tokens": 4, "stream": True}) == 200
    marked = {"type": "text", "text": MARKER, "cache_control": {"type": "ephemeral"}}
    message = {"model": "fake", "max_tokens": 400, "system": [marked], "messages": messages}
    assert post(running, "/v1/messages", message) == 200
    assert post(running, "/v1/messages", {**message, "stream": True, "stop_sequences": [MARKER]}) == 200
    assert post(running, "/v1/messages/count_tokens", message) == 200
    for path, body in (
        ("/v1/messages", {**message, "thinking": {"type": MARKER}}),
        ("/v1/messages", {**message, "tools": [{"name": MARKER, "type": MARKER}]}),
        ("/v1/chat/completions", b'{"model": "' + MARKER.encode()),
        ("/v1/chat/completions", {**chat, "model": MARKER}),
        ("/v1/chat/completions", {**chat, "tool_choice": {"type": "function", "function": {"name": MARKER}}}),
        ("/v1/chat/completions", {**chat, "messages": [{"role": "user", "content": {MARKER: MARKER}}]}),
        ("/v1/completions", {"model": "fake", "prompt": {"text": MARKER}}),
        (f"/{MARKER}", {}),
    ):
        assert post(running, path, body) >= 400


def fetch(running: LiveDaemon, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{running.http_port}{path}", timeout=60) as response:
        text: str = response.read().decode()
    return text


def test_no_log_metric_span_or_page_holds_a_word_of_what_was_said(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": [{"when": MARKER, "text": REPLY}]}))
    logs = tmp_path / "logs"
    with Collector() as collector:
        options = (
            "--log-filter", "trace", "--log-dir", str(logs),
            "--otlp-endpoint", collector.url, "--otlp-metrics", collector.url,
            "--otlp-filter", "trace", "--otlp-batch-ms", "20", "--otlp-interval-ms", "50",
        )  # fmt: skip
        with LiveDaemon(tmp_path, script, *options) as running:
            use_sessions(running)
            use_http(running)
            pages = "".join(fetch(running, path) for path in ("/metrics", "/slots", "/props", "/health"))
            running.kill_worker()
            use_http(running)
            collector.wait_for_requests(3)
        pushed = json.dumps(collector.requests)
    logged = "".join(path.read_text() for path in logs.iterdir())
    for name, text in (("pages", pages), ("spans", pushed), ("log", logged), ("stderr", running.log)):
        assert text, name
        for piece in PIECES:
            assert piece not in text, name
    assert logged.count("<-- 200 POST /v1/chat/completions") == 4
    assert logged.count("<-- 200 POST /v1/completions") == 2
    assert logged.count("<-- 200 POST /v1/messages") == 4
    for line in ("a session's generation ended", "sessions were purged", "media that no session shows was deleted"):
        assert logged.count(line) == 1, line


def test_no_screen_of_the_monitor_holds_a_word_of_what_was_said(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": [{"when": MARKER, "text": REPLY}], "step_seconds": 0.005}))
    runtime = Path(tempfile.mkdtemp(prefix="sf-"))
    try:
        socket = runtime / "s.sock"
        with TerminalServer(tmp_path, str(script), "--log-filter", "trace", "--socket", str(socket)) as server:
            server.resize(60, 250)
            running = WatchedDaemon(server, socket)
            use_sessions(running)
            use_http(running)
            server.wait_for(lambda: b"/v1/completions (stream)" in server.output)
            look_at_everything(server)
            server.press(b"q")
            assert server.wait_for_exit() == 0
    finally:
        shutil.rmtree(runtime)
    shown = _ESCAPES.sub(b"", server.output).decode("utf-8", "replace")
    for piece in PIECES:
        assert piece not in shown
    for line in logged_before_the_end(tmp_path):
        assert line in shown, "not all of the log was looked at"


def logged_before_the_end(home: Path) -> list[str]:
    """The messages of the log that the server writes beside its monitor, up to the end of the last request."""
    (path,) = home.rglob("logs/superfluid.*.jsonl")
    messages = [json.loads(line)["fields"]["message"] for line in path.read_text().splitlines()]
    last = max(index for index, message in enumerate(messages) if message.startswith("<-- "))
    assert last >= 5
    return [message.partition("\n")[0][:60].rstrip() for message in messages[: last + 1]]


def look_at_everything(server: TerminalServer) -> None:
    """Goes up through the log, from one page to the next, and calls the help."""
    for keys in (b"?", b"?", b"p", *[_PAGE_UP] * 40, b"g"):
        before = len(server.output)
        server.press(keys)
        server.wait_for(lambda before=before: len(server.output) > before)  # type: ignore[misc]
