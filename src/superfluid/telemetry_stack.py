"""What pushes spans and metrics, put together from the configuration. Runs in the daemon; nothing where it is off."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from superfluid.config import OtlpConfig
from superfluid.domain.statistics import SpanCounts
from superfluid.telemetry.filter import parse_filter
from superfluid.telemetry.logs import print_note
from superfluid.telemetry.metrics import MetricsPage
from superfluid.telemetry.otlp_http import CollectorClient
from superfluid.telemetry.span_exporter import SpanExporter
from superfluid.telemetry.spans import SpanContext
from superfluid.telemetry.trace_ids import event_span_id, session_trace_id, store_namespace
from superfluid.telemetry.tracer import Tracer

if TYPE_CHECKING:
    from superfluid.telemetry.otlp_metrics import MetricsPush

_FLUSH_SECONDS = 2.0
_METRICS_TIMEOUT_SECONDS = 10.0
_LOOPBACK = ("127.", "localhost", "::1")

logger = logging.getLogger("superfluid_daemon::otlp")


class TelemetryStack:
    """Made before anything is traced; ``start`` on the event loop."""

    def __init__(self, config: OtlpConfig, *, node: str, store_id: bytes | None, model: Callable[[], str]) -> None:
        self._config = config
        self._node = node
        self._push: MetricsPush | None = None
        self._exporter: SpanExporter | None = None
        self.tracer: Tracer | None = None
        if config.traces_url is not None:
            self._exporter = self._make_exporter(config.traces_url)
            namespace = store_namespace(store_id)
            self.tracer = Tracer(
                self._exporter.put,
                parse_filter(config.span_filter),
                model=model,
                store_ns=namespace,
                session_link=lambda session: SpanContext(
                    session_trace_id(namespace, session), event_span_id(namespace, session)
                ),
            )

    def start(self, metrics: MetricsPage) -> None:
        config = self._config
        if self._exporter is not None and config.traces_url is not None:
            _say_where("spans", config.traces_url, f", filter {config.span_filter}")
            self._exporter.start()
        if config.metrics_url is not None:
            # The encoder's imports take time and memory: only where they are needed.
            from superfluid.telemetry.otlp_metrics import MetricsPush

            _say_where("metrics", config.metrics_url, f", every {config.interval_seconds:g} s")
            self._push = MetricsPush(
                metrics.registry.collect,
                self._client(config.metrics_url, _METRICS_TIMEOUT_SECONDS),
                {"service.name": config.service_name, "host.name": self._node},
                interval_seconds=config.interval_seconds,
            )
            self._push.start()

    def span_counts(self) -> SpanCounts | None:
        """``None`` where no spans are exported."""
        return None if self._exporter is None else self._exporter.counts

    async def stop(self) -> None:
        """Sends the spans that wait, for two seconds at most."""
        if self._push is not None:
            await self._push.stop()
        if self._exporter is not None:
            await asyncio.to_thread(self._exporter.close, _FLUSH_SECONDS)

    def _make_exporter(self, url: str) -> SpanExporter:
        from superfluid.telemetry.otlp_encoding import SpanEncoder

        config = self._config
        return SpanExporter(
            SpanEncoder(config.service_name, self._node).encode,
            self._client(url, config.timeout_seconds),
            queue_spans=config.queue_spans,
            batch_seconds=config.batch_seconds,
        )

    def _client(self, url: str, timeout_seconds: float) -> Callable[[], CollectorClient]:
        headers = dict(self._config.headers)
        return lambda: CollectorClient(url, headers=headers, timeout_seconds=timeout_seconds)


def _say_where(what: str, url: str, rest: str) -> None:
    host = urlsplit(url).hostname or ""
    warning = "" if host.startswith(_LOOPBACK) else "; that is not this machine"
    print_note(f"{what} go to {url}{rest}{warning}")
