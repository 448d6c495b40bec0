"""Counters over several workers, and the first-token histogram."""

from typing import Any

import msgspec

from superfluid.worker.statistics import EMPTY_TICK
from superfluid.worker.totals import FIRST_TOKEN_BOUNDS_SECONDS, TickTotals


def record(**changes: Any) -> Any:
    return msgspec.structs.replace(EMPTY_TICK, **changes)


def test_counters_of_a_new_worker_add_to_those_of_the_old() -> None:
    totals = TickTotals()
    totals.add(record(ticks_total=5, decode_tokens_total=9))
    totals.worker_lost()
    assert totals.counters().ticks == 5
    totals.add(record(ticks_total=2, decode_tokens_total=1, host_restores_total=3))
    assert totals.counters()[:3] == (7, 0, 10)
    assert totals.counters().host_restores == 3


def test_duration_equal_to_a_bound_belongs_to_its_bucket() -> None:
    totals = TickTotals()
    totals.add(record(first_token_seconds=[*FIRST_TOKEN_BOUNDS_SECONDS, 0.0, 0.0051, 41.0]))
    histogram = totals.first_token()
    assert histogram.counts == (3, *[1] * 12, 1)


def test_durations_are_observed_in_whole_milliseconds() -> None:
    totals = TickTotals()
    totals.add(record(first_token_seconds=[0.0504, 0.0506]))
    assert totals.first_token().counts[3:5] == (1, 1)
    assert totals.first_token().sum_seconds == 0.101
