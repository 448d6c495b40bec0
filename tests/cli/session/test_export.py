"""``superfluid session export`` on a live daemon, and its push to a collector on loopback."""

import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.fixtures.client_commands import run_client
from tests.fixtures.live_daemon import GREEDY, LiveDaemon

from superfluid.cli.session.export import ExportSettings, exported_text, traces_url
from superfluid.domain.events import Created, Event
from superfluid.errors import UsageError
from superfluid.native import requests
from superfluid.native.responses import Cold, Inspection, SessionSummary
from superfluid.telemetry.trace_ids import event_span_id, session_trace_id, store_namespace

MARKER = "planted-märker"


@pytest.fixture(scope="module")
def session(daemon: LiveDaemon) -> int:
    """Text that must not get out is in every place that can hold some."""
    with daemon.client() as client:
        made = client.create()
        client.ask(requests.SetMeta(made, 0, MARKER, None))
        client.append(made, f"weather {MARKER} sk-{'a' * 30}")
        list(client.stream(made, 200))
        (call,) = [event.event_id for event in client.read(made) if type(event.body).__name__ == "ToolUse"]
        client.ask(requests.AppendToolResult(made, call, MARKER))
        client.ask(requests.AppendBlock(made, 1, 2, json.dumps({"title": MARKER, "content": MARKER})))
        client.ask(requests.RespondPermission(made, _permission(client, made), True))
        return made


def _permission(client: Any, session: int) -> int:
    event_id: int = client.ask(requests.RequestPermission(session, 0, MARKER)).event.event_id
    return event_id


class Collector:
    """Answers every POST with ``status`` and keeps what it was sent."""

    def __init__(self) -> None:
        self.status = 200
        self.received: list[tuple[str, str | None, Any]] = []
        self.url = ""


@contextmanager
def running_collector(status: int = 200) -> Iterator[Collector]:
    collector = Collector()
    collector.status = status

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            collector.received.append((self.path, self.headers["content-type"], body))
            self.send_response(collector.status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        collector.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def content_flag(request: Any) -> bool:
    attributes = request["resourceSpans"][0]["resource"]["attributes"]
    (flag,) = [each["value"]["boolValue"] for each in attributes if each["key"] == "superfluid.content_included"]
    return bool(flag)


def test_export_is_one_line_a_record_without_any_content(daemon: LiveDaemon, session: int) -> None:
    ended = run_client(daemon, "session", "export", session)
    assert (ended.code, ended.err) == (0, "")
    rows = [json.loads(line) for line in ended.out.splitlines()]
    assert [row["event_id"] for row in rows] == list(range(len(rows)))
    assert {row["session"] for row in rows} == {session}
    assert {row["event"]["type"] for row in rows} >= {"created", "message", "tool_use", "tool_result", "block"}
    assert MARKER not in ended.out
    assert "Paris" not in ended.out


def test_export_with_content_has_the_texts_without_credentials(daemon: LiveDaemon, session: int) -> None:
    ended = run_client(daemon, "session", "export", session, "--include-content")
    messages = [json.loads(line)["event"] for line in ended.out.splitlines() if '"message"' in line]
    assert messages[0]["text"] == f"weather {MARKER} [REDACTED]"


@pytest.mark.parametrize("content", [[], ["--include-content"]])
def test_export_as_a_trace_is_one_line_and_never_holds_text(
    daemon: LiveDaemon, session: int, content: list[str]
) -> None:
    ended = run_client(daemon, "session", "export", session, "--format=otlp-jsonl", "--model", "smol", *content)
    assert (ended.code, ended.err) == (0, "")
    (line,) = ended.out.splitlines()
    request = json.loads(line)
    spans = request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert sorted(span["name"] for span in spans) == ["generate", "session", "tool_use"]
    assert content_flag(request) == bool(content)
    assert MARKER not in line
    assert "Paris" not in line


def test_export_trace_ids_are_those_of_the_servers_store(daemon: LiveDaemon, session: int) -> None:
    with daemon.client() as client:
        namespace = store_namespace(client.inspect(session).store_id)
    ended = run_client(daemon, "session", "export", session, "--format", "otlp-jsonl")
    root = json.loads(ended.out)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert root["traceId"] == f"{session_trace_id(namespace, session):032x}"
    assert root["spanId"] == f"{event_span_id(namespace, session):016x}"


@pytest.mark.parametrize(("form", "ending"), [("jsonl", "jsonl"), ("otlp-jsonl", "traces.otlp.jsonl")])
def test_export_into_a_directory_makes_a_private_file(
    daemon: LiveDaemon, session: int, tmp_path: Path, form: str, ending: str
) -> None:
    directory = tmp_path / "new" / "place"
    path = directory / f"session-{session}.{ending}"
    directory.mkdir(parents=True)
    path.write_text("something longer than what is written now" * 1000)
    path.chmod(0o644)
    ended = run_client(daemon, "session", "export", session, "--format", form, "--out", directory)
    plain = run_client(daemon, "session", "export", session, "--format", form)
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == f"note: wrote {path}\n"
    assert path.read_text() == plain.out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_export_where_nothing_can_be_written_exits_1(daemon: LiveDaemon, session: int, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = run_client(daemon, "session", "export", session, "--out", tmp_path / "file")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"error: cannot write {tmp_path / 'file'}/session-{session}.jsonl: ")


def test_endpoint_is_sent_the_trace_whatever_the_format(daemon: LiveDaemon, session: int) -> None:
    with running_collector() as collector:
        ended = run_client(daemon, "session", "export", session, "--endpoint", collector.url + "/")
    assert ended.code == 0
    assert ended.err == f"note: {collector.url}/v1/traces answered 200\n"
    assert '"type":"created"' in ended.out
    ((path, content_type, body),) = collector.received
    assert (path, content_type) == ("/v1/traces", "application/json")
    assert body["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"] == "session"
    assert content_flag(body) is False


@pytest.mark.parametrize(("flags", "is_content_sent"), [([], False), (["--allow-content-egress"], True)])
def test_endpoint_gets_content_only_with_the_second_flag(
    daemon: LiveDaemon, session: int, flags: list[str], is_content_sent: bool
) -> None:
    with running_collector() as collector:
        ended = run_client(
            daemon, "session", "export", session, "--include-content", "--endpoint", collector.url, *flags
        )
    assert ended.code == 0
    assert MARKER in ended.out
    assert ("sends no content without --allow-content-egress" in ended.err) is not is_content_sent
    assert content_flag(collector.received[0][2]) is is_content_sent


def test_endpoint_that_refuses_fails_the_export(daemon: LiveDaemon, session: int) -> None:
    with running_collector(status=500) as collector:
        ended = run_client(daemon, "session", "export", session, "--endpoint", collector.url)
    assert ended.code == 1
    assert ended.err == f"error: {collector.url}/v1/traces answered 500\n"


def test_endpoint_that_is_not_there_fails_the_export(daemon: LiveDaemon, session: int) -> None:
    ended = run_client(daemon, "session", "export", session, "--endpoint", "http://127.0.0.1:1")
    assert ended.code == 1
    assert ended.err.startswith("error: cannot send the trace to http://127.0.0.1:1/v1/traces: Connection refused")


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318///", "http://c:4318/v1/traces"),
        ("https://c/otlp", "https://c/otlp/v1/traces"),
        ("http://c/v1/traces/", "http://c/v1/traces"),
    ],
)
def test_traces_url_ends_with_the_path_once(endpoint: str, expected: str) -> None:
    assert traces_url(endpoint) == expected


@pytest.mark.parametrize("endpoint", ["", "collector:4318", "ftp://c", "http://", "https://"])
def test_traces_url_refuses_what_is_no_http_address(endpoint: str) -> None:
    with pytest.raises(UsageError, match=r"^--endpoint must be an http:// or https:// address, got "):
        traces_url(endpoint)


def test_export_of_a_store_without_an_id_leaves_it_out_of_the_trace_ids() -> None:
    summary = SessionSummary(1, None, 0, None, False, 0, 0, 1, 0, 0)
    inspection = Inspection(
        summary=summary, params=GREEDY, epoch=1, last_finish=0, qos_class=2, batch_invariant=False,
        pin_deadline_unix_ms=0, behavior_fingerprint=None, open_tool_calls=(), tier=Cold(), tokens=(),
        events=(Event(0, 1, 0, Created(None, GREEDY)),), wal_version=2, store_id=None,
    )  # fmt: skip
    named = structs.replace(inspection, store_id=bytes(16))
    settings = ExportSettings(format="otlp-jsonl")
    assert "2fbc593564db792e828b713919ceb10f" in exported_text(inspection, settings)
    assert "2fbc593564db792e828b713919ceb10f" not in exported_text(named, settings)
