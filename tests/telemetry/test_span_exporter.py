"""The exporter against a collector that works, and against all the ways in which one does not."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.fixtures.collector import Collector

from superfluid.domain.statistics import SpanCounts
from superfluid.telemetry.otlp_encoding import SpanEncoder
from superfluid.telemetry.otlp_http import CollectorClient
from superfluid.telemetry.span_exporter import MAX_BATCH_SPANS, SpanExporter
from superfluid.telemetry.spans import FinishedSpan, new_trace

NOBODY_LISTENS = "http://127.0.0.1:9"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def span(number: int = 0) -> FinishedSpan:
    return FinishedSpan("tick", "superfluid_daemon::scheduler", new_trace(), None, 1, 2, {"tick_seq": number}, "m")


@contextmanager
def exporter(
    url: str, *, queue: int = 8192, batch_seconds: float = 0.01, timeout_seconds: float = 5.0
) -> Iterator[SpanExporter]:
    running = SpanExporter(
        SpanEncoder("superfluid", "box").encode,
        lambda: CollectorClient(f"{url}/v1/traces", headers={"x-team": "blue"}, timeout_seconds=timeout_seconds),
        queue_spans=queue,
        batch_seconds=batch_seconds,
    )
    running.start()
    try:
        yield running
    finally:
        running.close(10.0)


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def test_exporter_with_a_working_collector_sends_all_spans_with_its_headers(collector: Collector) -> None:
    with exporter(collector.url) as running:
        for number in range(3):
            running.put(span(number))
    assert running.counts == SpanCounts(exported=3)
    assert len(collector.spans()) == 3
    _, headers, _ = collector.requests[0]
    assert headers["x-team"] == "blue"
    assert headers["content-type"] == "application/json"


def test_exporter_sends_batches_of_bounded_size(collector: Collector) -> None:
    with exporter(collector.url, batch_seconds=60) as running:
        for number in range(MAX_BATCH_SPANS + 1):
            running.put(span(number))
    assert [len(body["resourceSpans"][0]["scopeSpans"][0]["spans"]) for _, _, body in collector.requests] == [
        MAX_BATCH_SPANS,
        1,
    ]


def test_exporter_without_spans_sends_nothing(collector: Collector) -> None:
    with exporter(collector.url):
        pass
    assert collector.requests == []


def test_exporter_whose_collector_rejects_spans_counts_them(collector: Collector) -> None:
    collector.answer = b'{"partialSuccess": {"rejectedSpans": "2"}}'
    with exporter(collector.url, batch_seconds=60) as running:
        for number in range(5):
            running.put(span(number))
    assert running.counts == SpanCounts(exported=3, rejected=2)


@pytest.mark.parametrize("status", [301, 400, 429, 500, 503])
def test_exporter_whose_collector_refuses_tries_once_and_counts(collector: Collector, status: int) -> None:
    collector.status = status
    with exporter(collector.url, batch_seconds=60) as running:
        running.put(span())
    assert running.counts == SpanCounts(export_failed=1)
    assert len(collector.requests) == 1


def test_exporter_without_a_collector_counts_and_says_so_once_an_outage(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "superfluid_daemon::otlp")
    collector.status = 500
    with exporter(collector.url) as running:
        for number in range(3):
            running.put(span(number))
            wait_until(lambda number=number: running.counts.export_failed == number + 1)  # type: ignore[misc]
        collector.status = 200
        running.put(span())
        wait_until(lambda: running.counts.exported == 1)
        collector.status = 500
        running.put(span())
        wait_until(lambda: running.counts.export_failed == 4)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]


def test_exporter_with_nobody_listening_counts() -> None:
    with exporter(NOBODY_LISTENS, batch_seconds=60) as running:
        running.put(span())
    assert running.counts == SpanCounts(export_failed=1)


@pytest.mark.parametrize("kind", ["hanging", "dribbling"])
def test_exporter_with_a_slow_collector_gives_up_after_its_timeout(collector: Collector, kind: str) -> None:
    if kind == "hanging":
        collector.hang()
    collector.is_dribbling = kind == "dribbling"
    with exporter(collector.url, timeout_seconds=0.2) as running:
        running.put(span())
        wait_until(lambda: running.counts.export_failed == 1)


def test_exporter_with_a_hanging_collector_drops_what_the_queue_cannot_hold_and_never_waits(
    collector: Collector,
) -> None:
    collector.hang()
    with exporter(collector.url, queue=4) as running:
        running.put(span())
        collector.wait_for_requests(1)
        for number in range(10):
            running.put(span(number))
        assert running.counts.queue_full == 6
        collector.release()
    assert running.counts == SpanCounts(exported=5, queue_full=6)


def test_exporter_that_is_closed_drops_and_counts_later_spans(collector: Collector) -> None:
    with exporter(collector.url) as running:
        pass
    running.put(span())
    assert running.counts == SpanCounts(queue_full=1)


def test_close_with_a_hanging_collector_ends_within_its_time(collector: Collector) -> None:
    collector.hang()
    with exporter(collector.url) as running:
        running.put(span())
        collector.wait_for_requests(1)
        running.close(0.05)  # returns although the collector never answers
        collector.release()
