"""The metrics page, read by prometheus_client's own parser."""

import time
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from superfluid.domain.statistics import (
    DurationHistogram,
    InfillCounters,
    ModelStatistics,
    SessionStatistics,
    SpanCounts,
)
from superfluid.telemetry.metrics import MetricsPage, node_name

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)
STATISTICS = ModelStatistics(
    is_ready=True,
    jobs_running=1,
    jobs_queued=2,
    failures=0,
    respawns_total=1,
    ticks_total=12_345_678,
    prefill_tokens_total=2,
    decode_tokens_total=3,
    warm_prefix_tokens_total=4,
    cold_admissions_total=5,
    host_saves_total=6,
    host_restores_total=7,
    preemptions_total=2,
    starvation_grants_total=9,
    lanes_active=8,
    queue_depth=(1, 0, 2, 0),
    pool_blocks_used=9,
    pool_blocks_total=10,
    prefill_budget_tokens=11,
    decode_grant_tokens=1,
    host_cache_bytes=0,
    host_cache_entries=0,
    tick_wall_seconds=0.1,
    first_token=DurationHistogram(BOUNDS, (1, 0, 0, 2, *[0] * 9, 1), 41.0805),
    parks_total=12,
    resumes_total=13,
    park_skips_total=14,
    kv_files_damaged_total=15,
    kv_files=16,
    kv_file_bytes=17,
    admits_deferred_total=18,
    pressure_evictions_total=19,
    pressure_bytes_evicted_total=20,
    os_pressure_events_total=21,
    pins_yielded_total=22,
    pins_expired_total=23,
    pins_held=24,
    pinned_bytes=25,
    spec_proposed_total=26,
    spec_accepted_total=27,
)
SCALARS = {
    "superfluid_ticks_total": ("counter", 12_345_678),
    "superfluid_prefill_tokens_total": ("counter", 2),
    "superfluid_decode_tokens_total": ("counter", 3),
    "superfluid_warm_prefix_tokens_total": ("counter", 4),
    "superfluid_cold_admissions_total": ("counter", 5),
    "superfluid_preemptions_total": ("counter", 2),
    "superfluid_starvation_grants_total": ("counter", 9),
    "superfluid_admits_deferred_total": ("counter", 18),
    "superfluid_pressure_evictions_total": ("counter", 19),
    "superfluid_pressure_bytes_evicted_total": ("counter", 20),
    "superfluid_os_pressure_events_total": ("counter", 21),
    "superfluid_pins_yielded_total": ("counter", 22),
    "superfluid_pins_expired_total": ("counter", 23),
    "superfluid_pins_held": ("gauge", 24),
    "superfluid_pinned_bytes": ("gauge", 25),
    "superfluid_resumes_total": ("counter", 13),
    "superfluid_park_skips_total": ("counter", 14),
    "superfluid_kv_files_damaged_total": ("counter", 15),
    "superfluid_spec_proposed_total": ("counter", 26),
    "superfluid_spec_accepted_total": ("counter", 27),
    "superfluid_worker_respawns_total": ("counter", 1),
    "superfluid_lanes_active": ("gauge", 8),
    "superfluid_pool_blocks_used": ("gauge", 9),
    "superfluid_pool_blocks_total": ("gauge", 10),
    "superfluid_kv_files": ("gauge", 16),
    "superfluid_kv_file_bytes": ("gauge", 17),
    "superfluid_prefill_budget_tokens": ("gauge", 11),
    "superfluid_decode_grant_tokens": ("gauge", 1),
    "superfluid_telemetry_dropped_total": ("counter", 6),
    "superfluid_otlp_spans_exported_total": ("counter", 0),
}
LABELLED = {
    "superfluid_parks_total",
    "superfluid_queue_depth",
    "superfluid_ttft_seconds",
    "superfluid_node_info",
    "superfluid_otlp_spans_dropped_total",
    "superfluid_fim_completions_total",
}


def page(node: str = "box", **changes: Any) -> str:
    statistics = msgspec.structs.replace(STATISTICS, **changes)
    infill = InfillCounters(generated=3, cached=2, expired=1, throttled=4)
    body, content_type = MetricsPage(lambda: statistics, lambda: 6, node, infill=infill)()
    assert content_type == "text/plain; version=0.0.4"
    return body.decode()


def test_every_family_has_help_and_type_and_parses() -> None:
    text = page()
    families = list(text_string_to_metric_families(text))
    assert len(families) == len(SCALARS) + len(LABELLED)
    assert all(family.documentation for family in families)
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(set(names)) == len(names) == text.count("# HELP")
    assert set(names) == {*SCALARS, *LABELLED}


def test_parks_have_both_encodings() -> None:
    lines = page().splitlines()
    assert 'superfluid_parks_total{encoding="lossless"} 12' in lines
    assert 'superfluid_parks_total{encoding="lossy"} 0' in lines


@pytest.mark.parametrize(("name", "kind", "value"), [(name, *rest) for name, rest in SCALARS.items()])
def test_scalar_has_its_type_and_is_printed_as_an_integer(name: str, kind: str, value: int) -> None:
    lines = page().splitlines()
    assert f"# TYPE {name} {kind}" in lines
    assert f"{name} {value}" in lines


def test_page_counts_lost_spans_by_reason_and_among_all_that_telemetry_lost() -> None:
    counts = SpanCounts(exported=20, queue_full=1, export_failed=2, rejected=3)
    lines = MetricsPage(lambda: STATISTICS, lambda: 6, "box", spans=lambda: counts)()[0].decode().splitlines()
    assert "superfluid_otlp_spans_exported_total 20" in lines
    assert 'superfluid_otlp_spans_dropped_total{reason="queue_full"} 1' in lines
    assert 'superfluid_otlp_spans_dropped_total{reason="export_failed"} 2' in lines
    assert 'superfluid_otlp_spans_dropped_total{reason="rejected"} 3' in lines
    assert "superfluid_telemetry_dropped_total 12" in lines


def test_page_tells_the_session_stores_size_and_work_if_there_is_one() -> None:
    sessions = SessionStatistics(
        sessions_open=3,
        store_bytes=8192,
        store_used_bytes=4096,
        commits_total=7,
        failed_commits_total=1,
        events_total=20,
        last_commit_seconds=0.25,
    )
    lines = MetricsPage(lambda: STATISTICS, lambda: 6, "box", lambda: sessions)()[0].decode().splitlines()
    told = [line for line in lines if line.startswith(("superfluid_store", "superfluid_sessions"))]
    assert told == [
        "superfluid_store_commits_total 7",
        "superfluid_store_failed_commits_total 1",
        "superfluid_store_events_total 20",
        "superfluid_sessions_open 3",
        "superfluid_store_bytes 8192",
        "superfluid_store_used_bytes 4096",
        "superfluid_store_commit_seconds 0.25",
    ]
    assert "superfluid_store" not in page()


def test_queue_depth_has_all_four_classes() -> None:
    assert [line for line in page().splitlines() if line.startswith("superfluid_queue_depth")] == [
        'superfluid_queue_depth{class="interactive_chat"} 1',
        'superfluid_queue_depth{class="inline_completion"} 0',
        'superfluid_queue_depth{class="foreground_agent"} 2',
        'superfluid_queue_depth{class="background_agent"} 0',
    ]


def test_ttft_histogram_is_cumulative_over_the_exact_bounds() -> None:
    lines = [line for line in page().splitlines() if line.startswith("superfluid_ttft_seconds")]
    expected = {"0.005": 1, "0.01": 1, "0.025": 1, "0.05": 3, "0.1": 3, "0.25": 3, "0.5": 3, "1": 3, "2.5": 3, "5": 3}
    expected |= {"10": 3, "20": 3, "40": 3, "+Inf": 4}
    assert lines == [
        *(f'superfluid_ttft_seconds_bucket{{le="{bound}"}} {count}' for bound, count in expected.items()),
        "superfluid_ttft_seconds_count 4",
        "superfluid_ttft_seconds_sum 41.0805",
    ]


def test_node_label_is_escaped() -> None:
    text = page(node='a"b\\c\nd')
    assert 'superfluid_node_info{host="a\\"b\\\\c\\nd"} 1' in text.splitlines()
    (family,) = [f for f in text_string_to_metric_families(text) if f.name == "superfluid_node_info"]
    assert family.samples[0].labels == {"host": 'a"b\\c\nd'}


def test_page_has_no_created_and_no_process_series() -> None:
    text = page()
    assert "_created" not in text
    assert all(line.startswith(("#", "superfluid_")) for line in text.splitlines())


def test_page_is_rendered_in_under_five_milliseconds() -> None:
    metrics = MetricsPage(lambda: STATISTICS, lambda: 0, "box")
    durations = []
    for _ in range(20):
        started = time.process_time()
        metrics()
        durations.append(time.process_time() - started)
    assert min(durations) < 0.005


@pytest.mark.parametrize(
    ("environment", "hostname", "expected"),
    [
        ({"SUPERFLUID_NODE_NAME": "rack 4"}, "box", "rack 4"),
        ({"SUPERFLUID_NODE_NAME": "  "}, "box", "box"),
        ({}, "box", "box"),
        ({}, "", "unknown"),
    ],
)
def test_node_name_is_the_operators_else_the_hosts(environment: dict[str, str], hostname: str, expected: str) -> None:
    assert node_name(environment, hostname) == expected


def test_completions_that_fill_in_are_counted_by_what_became_of_them() -> None:
    (family,) = [f for f in text_string_to_metric_families(page()) if f.name == "superfluid_fim_completions"]
    assert family.type == "counter"
    counts = {sample.labels["result"]: sample.value for sample in family.samples}
    assert counts == {"generated": 3, "cached": 2, "expired": 1, "throttled": 4}
