"""The Prometheus page: a registry of our own whose one collector reads statistics records. Lives in the daemon."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from superfluid.domain.request import QOS_LABELS, QosClass
from superfluid.domain.statistics import (
    DurationHistogram,
    InfillCounters,
    ModelStatistics,
    SessionStatistics,
    SpanCounts,
)
from superfluid.sessions.interface import ServedModel
from superfluid.telemetry.model_metrics import ModelCollector
from superfluid.telemetry.satellite_metrics import SatelliteCollector

CONTENT_TYPE = "text/plain; version=0.0.4"

_PREFIX = "superfluid_"
_COUNTERS: dict[str, tuple[str, Callable[[ModelStatistics], int]]] = {
    "ticks": ("Ticks of the scheduler.", lambda s: s.ticks_total),
    "prefill_tokens": ("Prompt tokens the engine evaluated.", lambda s: s.prefill_tokens_total),
    "decode_tokens": ("Tokens generated.", lambda s: s.decode_tokens_total),
    "warm_prefix_tokens": ("Prompt tokens taken from the prefix cache.", lambda s: s.warm_prefix_tokens_total),
    "cold_admissions": ("Admissions that found nothing in the prefix cache.", lambda s: s.cold_admissions_total),
    "preemptions": (
        "Generations that lost their lane to a better class.",
        lambda s: s.preemptions_total,
    ),
    "starvation_grants": (
        "Times that a job was served ahead of a better class because it had waited long.",
        lambda s: s.starvation_grants_total,
    ),
    "resumes": ("Admissions that went on from a KV file.", lambda s: s.resumes_total),
    "park_skips": ("States that were lost before they could be written.", lambda s: s.park_skips_total),
    "kv_files_damaged": ("KV files that turned out damaged.", lambda s: s.kv_files_damaged_total),
    "admits_deferred": (
        "Jobs that waited past their turn, or lost the prefix they were to begin with, for want of memory.",
        lambda s: s.admits_deferred_total,
    ),
    "pressure_evictions": (
        "Times that prefixes were given up because memory was short.",
        lambda s: s.pressure_evictions_total,
    ),
    "pressure_bytes_evicted": ("Bytes of such prefixes.", lambda s: s.pressure_bytes_evicted_total),
    "os_pressure_events": (
        "Times that the operating system was found short of memory.",
        lambda s: s.os_pressure_events_total,
    ),
    "pins_yielded": ("Pins that gave way before their time.", lambda s: s.pins_yielded_total),
    "pins_expired": ("Pins whose time came.", lambda s: s.pins_expired_total),
    "spec_proposed": ("Tokens that were guessed ahead.", lambda s: s.spec_proposed_total),
    "spec_accepted": ("Tokens that were guessed ahead and right.", lambda s: s.spec_accepted_total),
    "worker_respawns": ("Attempts to replace a lost worker.", lambda s: s.respawns_total),
}
_GAUGES: dict[str, tuple[str, Callable[[ModelStatistics], int]]] = {
    "lanes_active": ("Lanes with a generation after the last tick.", lambda s: s.lanes_active),
    "pool_blocks_used": ("KV blocks in use.", lambda s: s.pool_blocks_used),
    "pool_blocks_total": ("KV blocks there are.", lambda s: s.pool_blocks_total),
    "kv_files": ("KV files that the model can use.", lambda s: s.kv_files),
    "kv_file_bytes": ("Size of all KV files.", lambda s: s.kv_file_bytes),
    "pins_held": ("Pins with something to hold.", lambda s: s.pins_held),
    "pinned_bytes": ("KV bytes that pins hold.", lambda s: s.pinned_bytes),
    "prefill_budget_tokens": ("Prompt tokens that a tick may evaluate now.", lambda s: s.prefill_budget_tokens),
    "decode_grant_tokens": ("Tokens that a lane may generate in a tick now.", lambda s: s.decode_grant_tokens),
}
_SESSION_COUNTERS: dict[str, tuple[str, Callable[[SessionStatistics], int]]] = {
    "store_commits": ("Transactions of the session store.", lambda s: s.commits_total),
    "store_failed_commits": ("Transactions that the disk refused.", lambda s: s.failed_commits_total),
    "store_events": ("Session records written.", lambda s: s.events_total),
}
_SESSION_GAUGES: dict[str, tuple[str, Callable[[SessionStatistics], float]]] = {
    "sessions_open": ("Sessions held in memory.", lambda s: s.sessions_open),
    "store_bytes": ("Size of the session store's files.", lambda s: s.store_bytes),
    "store_used_bytes": ("What of the session store holds something.", lambda s: s.store_used_bytes),
    "store_commit_seconds": ("How long the last transaction took.", lambda s: s.last_commit_seconds),
}


def node_name(environment: Mapping[str, str], hostname: str) -> str:
    """What the operator calls this node, else its host name, else ``unknown``."""
    return environment.get("SUPERFLUID_NODE_NAME", "").strip() or hostname.strip() or "unknown"


class MetricsPage:
    """Calling it gives the page and its content type. Cheap (well under 5 ms); does not block.

    ``statistics`` is that of the default model, ``dropped`` counts log lines that were lost. ``sessions`` gives
    ``None`` where no sessions are kept, ``spans`` where none are exported, ``served`` while no model is known.
    ``infill`` is read as it is. ``satellite`` gives name and statistics of a model of its own that fills in the middle.
    """

    def __init__(
        self,
        statistics: Callable[[], ModelStatistics],
        dropped: Callable[[], int],
        node: str,
        sessions: Callable[[], SessionStatistics | None] = lambda: None,
        spans: Callable[[], SpanCounts | None] = lambda: None,
        infill: InfillCounters | None = None,
        served: Callable[[], ServedModel | None] = lambda: None,
        satellite: Callable[[], tuple[str, ModelStatistics] | None] = lambda: None,
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        collector = _StatisticsCollector(statistics, dropped, node, sessions, spans, infill or InfillCounters())
        self.registry.register(collector)
        self.registry.register(ModelCollector(served))
        self.registry.register(SatelliteCollector(satellite))

    def __call__(self) -> tuple[bytes, str]:
        return render(self.registry), CONTENT_TYPE


class _StatisticsCollector(Collector):
    """All families from one reading, so that they agree with each other."""

    def __init__(
        self,
        statistics: Callable[[], ModelStatistics],
        dropped: Callable[[], int],
        node: str,
        sessions: Callable[[], SessionStatistics | None],
        spans: Callable[[], SpanCounts | None],
        infill: InfillCounters,
    ) -> None:
        self._statistics = statistics
        self._dropped = dropped
        self._node = node
        self._sessions = sessions
        self._spans = spans
        self._infill = infill

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not read statistics that are not there yet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        statistics = self._statistics()
        for name, (text, read) in _COUNTERS.items():
            yield CounterMetricFamily(_PREFIX + name, text, value=read(statistics))
        for name, (text, read) in _GAUGES.items():
            yield GaugeMetricFamily(_PREFIX + name, text, value=read(statistics))
        if (sessions := self._sessions()) is not None:
            yield from _session_families(sessions)
        yield _infill_family(self._infill)
        yield _parks(statistics)
        yield _queue_depth(statistics)
        yield _first_token(statistics.first_token)
        yield self._node_info()
        yield from _telemetry(self._dropped(), self._spans() or SpanCounts())

    def _node_info(self) -> Metric:
        family = GaugeMetricFamily(_PREFIX + "node_info", "Always 1; names the node.", labels=["host"])
        family.add_metric([self._node], 1)
        return family


def _session_families(sessions: SessionStatistics) -> Iterator[Metric]:
    for name, (text, count) in _SESSION_COUNTERS.items():
        yield CounterMetricFamily(_PREFIX + name, text, value=count(sessions))
    for name, (text, read) in _SESSION_GAUGES.items():
        yield GaugeMetricFamily(_PREFIX + name, text, value=read(sessions))


def _telemetry(dropped_lines: int, spans: SpanCounts) -> Iterator[Metric]:
    text = "Log lines and spans that were lost."
    yield CounterMetricFamily(_PREFIX + "telemetry_dropped", text, value=dropped_lines + spans.dropped)
    text = "Spans that the collector took."
    yield CounterMetricFamily(_PREFIX + "otlp_spans_exported", text, value=spans.exported)
    family = CounterMetricFamily(_PREFIX + "otlp_spans_dropped", "Spans that were lost.", labels=["reason"])
    for reason in ("queue_full", "export_failed", "rejected"):
        family.add_metric([reason], getattr(spans, reason))
    yield family


def _infill_family(counters: InfillCounters) -> Metric:
    text = "Requests to fill in the middle, by what became of them; failed ones are not counted."
    family = CounterMetricFamily(_PREFIX + "fim_completions", text, labels=["result"])
    for result in ("generated", "cached", "expired", "throttled"):
        family.add_metric([result], getattr(counters, result))
    return family


def _queue_depth(statistics: ModelStatistics) -> Metric:
    family = GaugeMetricFamily(_PREFIX + "queue_depth", "Jobs that wait for a lane.", labels=["class"])
    for qos, depth in zip(QosClass, statistics.queue_depth, strict=True):
        family.add_metric([QOS_LABELS[qos]], depth)
    return family


def _parks(statistics: ModelStatistics) -> Metric:
    family = CounterMetricFamily(_PREFIX + "parks", "States written to KV files.", labels=["encoding"])
    family.add_metric(["lossless"], statistics.parks_total)
    family.add_metric(["lossy"], 0)
    return family


def _first_token(histogram: DurationHistogram) -> Metric:
    text = "Seconds from the admission of a generation to its first token."
    bounds = [*(f"{bound:g}" for bound in histogram.bounds_seconds), "+Inf"]
    buckets, total = [], 0
    for bound, count in zip(bounds, histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return HistogramMetricFamily(_PREFIX + "ttft_seconds", text, buckets=buckets, sum_value=histogram.sum_seconds)


def render(registry: CollectorRegistry) -> bytes:
    """The text format, version 0.0.4. prometheus_client's own writer would print large integers as ``1e+06``."""
    lines: list[str] = []
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        lines.append(f"# HELP {name} {_escape(family.documentation)}")
        lines.append(f"# TYPE {name} {family.type}")
        lines += [f"{_series(sample)} {_number(sample.value)}" for sample in family.samples]
    return ("\n".join(lines) + "\n").encode()


def _series(sample: Sample) -> str:
    if not sample.labels:
        return str(sample.name)
    pairs = (f'{name}="{_escape(value, quote=True)}"' for name, value in sample.labels.items())
    return f"{sample.name}{{{','.join(pairs)}}}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escape(text: str, *, quote: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quote else escaped
