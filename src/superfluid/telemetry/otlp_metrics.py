"""The metrics page as OTLP/HTTP JSON, and the task that pushes it. Lives on the daemon's event loop.

The families are the page's own, so that a series means the same in both. Imported only where the push is on.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from opentelemetry.exporter.otlp.json.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import Metric as Family
from prometheus_client.samples import Sample

from superfluid.telemetry.otlp_http import CollectorClient, CollectorError
from superfluid.version import __version__

# The resource says which node it is; the sum's end is what a backend makes of an answer's bucket.
_LEFT_OUT: Final = frozenset({"superfluid_node_info"})
_SCOPE = InstrumentationScope("superfluid", __version__)

_logger = logging.getLogger("superfluid_daemon::otlp")


def encode_families(
    families: Iterable[Family], resource: Mapping[str, str], *, started_unix_ns: int, now_unix_ns: int
) -> bytes:
    """A body for ``/v1/metrics``: counters as cumulative sums since ``started_unix_ns``, names as on the page."""
    metrics = [
        metric
        for family in families
        if family.name not in _LEFT_OUT and (metric := _metric(family, started_unix_ns, now_unix_ns)) is not None
    ]
    scope = ScopeMetrics(scope=_SCOPE, metrics=metrics, schema_url="")
    whole = ResourceMetrics(resource=Resource(dict(resource)), scope_metrics=[scope], schema_url="")
    return str(encode_metrics(MetricsData(resource_metrics=[whole])).to_json()).encode()


def _metric(family: Family, started_ns: int, now_ns: int) -> Metric | None:
    points = [
        NumberDataPoint(
            attributes=dict(sample.labels),
            start_time_unix_nano=started_ns if family.type == "counter" else now_ns,
            time_unix_nano=now_ns,
            value=_number(sample.value),
        )
        for sample in family.samples
    ]
    match family.type:
        case "counter":
            total = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
            return Metric(family.name + "_total", family.documentation, "1", total)
        case "gauge":
            return Metric(family.name, family.documentation, "1", Gauge(points))
        case "histogram":
            histogram = Histogram([_histogram(family.samples, started_ns, now_ns)], AggregationTemporality.CUMULATIVE)
            return Metric(family.name, family.documentation, "s", histogram)
        case _:
            return None


def _histogram(samples: Sequence[Sample], started_ns: int, now_ns: int) -> HistogramDataPoint:
    """Buckets on the page add up; here each has its own count."""
    buckets = [sample for sample in samples if sample.name.endswith("_bucket")]
    counts = list(_differences(int(sample.value) for sample in buckets))
    total = next(sample.value for sample in samples if sample.name.endswith("_sum"))
    return HistogramDataPoint(
        attributes={},
        start_time_unix_nano=started_ns,
        time_unix_nano=now_ns,
        count=sum(counts),
        sum=total,
        bucket_counts=counts,
        explicit_bounds=[float(sample.labels["le"]) for sample in buckets[:-1]],
        min=None,  # type: ignore[arg-type]  # the data model allows what the class does not: not measured
        max=None,  # type: ignore[arg-type]
    )


def _differences(cumulative: Iterator[int]) -> Iterator[int]:
    before = 0
    for count in cumulative:
        yield count - before
        before = count


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value


class MetricsPush:
    """Posts the families every ``interval_seconds``, one try each; the first time one interval after the start."""

    def __init__(
        self,
        collect: Callable[[], Iterable[Family]],
        client: Callable[[], CollectorClient],
        resource: Mapping[str, str],
        *,
        interval_seconds: float,
    ) -> None:
        self._collect = collect
        self._client = client
        self._resource = resource
        self._interval_seconds = interval_seconds
        self._started_unix_ns = time.time_ns()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="metrics push")

    async def stop(self) -> None:
        """Without a last push: what counts since the last one is small, and the collector may be slow. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        client = self._client()
        try:
            while True:
                await asyncio.sleep(self._interval_seconds)
                await self._push(client)
        finally:
            await client.close()

    async def _push(self, client: CollectorClient) -> None:
        families = list(self._collect())
        body = await asyncio.to_thread(
            encode_families,
            families,
            self._resource,
            started_unix_ns=self._started_unix_ns,
            now_unix_ns=time.time_ns(),
        )
        try:
            await client.post(body)
        except CollectorError as error:
            _logger.debug("the metrics push failed: %s", error)
