"""The push: the page's families as OTLP, and the task that sends them."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from tests.fixtures.collector import Collector

from superfluid.telemetry.otlp_http import CollectorClient
from superfluid.telemetry.otlp_metrics import MetricsPush, encode_families

NOW, STARTED = 2_000, 1_000


def families() -> list[Metric]:
    queue = GaugeMetricFamily("superfluid_queue_depth", "Waiting.", labels=["class"])
    queue.add_metric(["interactive_chat"], 1)
    queue.add_metric(["background_agent"], 4)
    node = GaugeMetricFamily("superfluid_node_info", "Names the node.", labels=["host"])
    node.add_metric(["box"], 1)
    return [
        CounterMetricFamily("superfluid_ticks", "Ticks.", value=12_345_678_901),
        queue,
        node,
        HistogramMetricFamily(
            "superfluid_ttft_seconds", "First token.", buckets=[("0.1", 2), ("1", 2), ("+Inf", 5)], sum_value=7.5
        ),
    ]


def encoded() -> dict[str, dict[str, Any]]:
    body = json.loads(encode_families(families(), {"service.name": "s"}, started_unix_ns=STARTED, now_unix_ns=NOW))
    scope = body["resourceMetrics"][0]["scopeMetrics"][0]
    assert scope["scope"]["name"] == "superfluid"
    return {metric["name"]: metric for metric in scope["metrics"]}


def test_counter_is_a_cumulative_sum_since_the_start() -> None:
    total = encoded()["superfluid_ticks_total"]["sum"]
    assert total["isMonotonic"] is True
    assert total["aggregationTemporality"] == 2
    (point,) = total["dataPoints"]
    assert point["asInt"] == "12345678901"
    assert (point["startTimeUnixNano"], point["timeUnixNano"]) == (str(STARTED), str(NOW))


def test_labelled_gauge_has_a_point_for_each_label() -> None:
    points = encoded()["superfluid_queue_depth"]["gauge"]["dataPoints"]
    labels = {point["attributes"][0]["value"]["stringValue"]: point["asInt"] for point in points}
    assert labels == {"interactive_chat": "1", "background_agent": "4"}


def test_histogram_counts_each_bucket_by_itself() -> None:
    metric = encoded()["superfluid_ttft_seconds"]
    (point,) = metric["histogram"]["dataPoints"]
    assert metric["unit"] == "s"
    assert point["bucketCounts"] == ["2", "0", "3"]
    assert point["explicitBounds"] == [0.1, 1.0]
    assert (point["count"], point["sum"]) == ("5", 7.5)


def test_node_is_named_by_the_resource_alone() -> None:
    assert "superfluid_node_info" not in encoded()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


async def test_push_comes_again_after_a_failure(collector: Collector) -> None:
    collector.status = 500
    registry = CollectorRegistry()
    push = MetricsPush(
        registry.collect,
        lambda: CollectorClient(f"{collector.url}/v1/metrics", headers={"x-team": "blue"}, timeout_seconds=5),
        {"service.name": "s"},
        interval_seconds=0.01,
    )
    push.start()
    try:
        await asyncio.to_thread(collector.wait_for_requests, 3)
    finally:
        await push.stop()
    path, headers, body = collector.requests[0]
    assert (path, headers["x-team"]) == ("/v1/metrics", "blue")
    assert body["resourceMetrics"][0]["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "s"}}
    ]
