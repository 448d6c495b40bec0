"""A whole daemon that pushes to a collector: what arrives, and that nobody waits when nothing can."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.collector import Collector, attributes_of
from tests.fixtures.live_daemon import GREEDY, LiveDaemon

from superfluid.native import requests, responses

MARKER = "xyzzy-plover"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def daemon(home: Path, collector: Collector) -> LiveDaemon:
    return LiveDaemon(
        home, None, "--otlp-endpoint", collector.url, "--otlp-metrics", collector.url,
        "--otlp-batch-ms", "20", "--otlp-interval-ms", "50", "--otlp-header", "x-team=blue",
        "--otlp-service-name", "lab", "--otlp-timeout-ms", "500",
    )  # fmt: skip


def generate(running: LiveDaemon) -> int:
    """A session whose every text holds the marker, and a reply on it."""
    with running.client() as client:
        created = client.ask(requests.Create(None, GREEDY))
        assert isinstance(created, responses.Created)
        session = created.session
        client.ask(requests.SetMeta(session, 0, MARKER, None))
        client.ask(requests.AppendMessage(session, 1, MARKER))
        assert list(client.stream(session, 8))
    return session


def wait_for_generate(collector: Collector) -> None:
    for count in range(1, 200):
        if any(span["name"] == "generate" for span in collector.spans()):
            return
        collector.wait_for_requests(count)
    raise AssertionError("no generate span came")


def test_collector_gets_spans_and_metrics_without_a_word_of_what_was_said(tmp_path: Path, collector: Collector) -> None:
    with daemon(tmp_path, collector) as running:
        session = generate(running)
    spans = collector.spans()
    (generated,) = [span for span in spans if span["name"] == "generate"]
    ticks = [span for span in spans if span["name"] == "tick"]
    assert attributes_of(generated)["superfluid.session_id"] == session
    assert attributes_of(generated)["superfluid.max_tokens"] == 8
    assert len(generated["links"]) == 1
    assert ticks
    assert all(link["spanId"] == generated["spanId"] for tick in ticks for link in tick["links"])
    assert collector.metrics()["superfluid_decode_tokens_total"]["sum"]["dataPoints"][0]["asInt"] != "0"
    for _, headers, body in collector.requests:
        assert headers["x-team"] == "blue"
        text = json.dumps(body)
        assert MARKER not in text
        assert '"stringValue": "lab"' in text


@pytest.mark.parametrize("trouble", ["refuses", "hangs"])
def test_collector_in_trouble_costs_spans_and_nothing_else(tmp_path: Path, collector: Collector, trouble: str) -> None:
    if trouble == "hangs":
        collector.hang()
    collector.status = 500
    with daemon(tmp_path, collector) as running:
        for _ in range(3):
            generate(running)
        collector.wait_for_requests(1)
        assert running.log.count("spans are not getting through") <= 1
        collector.status = 200
        collector.release()
        wait_for_generate(collector)
        generate(running)


def spans_named(collector: Collector, name: str) -> list[dict[str, Any]]:
    return [span for span in collector.spans() if span["name"] == name]


def wait_for_span(collector: Collector, name: str) -> dict[str, Any]:
    for count in range(1, 2000):
        found = spans_named(collector, name)
        if found:
            return found[-1]
        collector.wait_for_requests(count)
    raise AssertionError(f"no {name} span came")


def test_state_that_is_parked_and_restored_after_a_kill_has_spans(tmp_path: Path, collector: Collector) -> None:
    with daemon(tmp_path, collector) as running:
        with running.client() as client:
            created = client.ask(requests.Create(None, GREEDY))
            assert isinstance(created, responses.Created)
            client.ask(requests.AppendMessage(created.session, 1, MARKER * 100))
            assert list(client.stream(created.session, 8))
        parked = attributes_of(wait_for_span(collector, "park"))
        assert parked["superfluid.session_id"] == created.session
        assert parked["superfluid.covered"] > 1000
        assert parked["superfluid.lossy"] is False
        wait_for_file(tmp_path)
        running.kill()
        running.start()
        with running.client() as client:
            assert list(client.stream(created.session, 8))
        restore = wait_for_span(collector, "restore")
        assert attributes_of(restore)["superfluid.session_id"] == created.session
        assert attributes_of(restore)["superfluid.bytes"] > 0
        collector.wait_for_requests(len(collector.requests) + 1)
    assert restore["parentSpanId"] in {tick["spanId"] for tick in spans_named(collector, "tick")}
    assert MARKER not in json.dumps(collector.requests)


def wait_for_file(home: Path) -> None:
    """A state is on the disk under its own name."""
    deadline = time.monotonic() + 30
    while not any(path.stat().st_size > 1000 and path.suffix == ".kv" for path in home.rglob("*") if path.is_file()):
        assert time.monotonic() < deadline, [str(path) for path in home.rglob("*")]
        time.sleep(0.02)
