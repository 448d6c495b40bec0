"""Token buckets: what one client may ask for, and what those have in common that share a caller."""

import pytest

from superfluid.config import CompletionConfig
from superfluid.domain.statistics import InfillCounters
from superfluid.errors import CompletionRateLimitedError
from superfluid.sessions.metering import MAX_CALLERS, CompletionBucket, CompletionMeter, TokenBucket


class Meter:
    """A meter and its clock, in seconds."""

    def __init__(self, rate: float = 10.0, burst: int = 20) -> None:
        self.now = 100.0
        self.counters = InfillCounters()
        self.meter = CompletionMeter(CompletionConfig(rate=rate, burst=burst), lambda: self.now, self.counters)


def wait_of(bucket: CompletionBucket) -> int:
    """Milliseconds to wait; 0 if a token was there."""
    try:
        bucket.take()
    except CompletionRateLimitedError as error:
        return error.retry_after_ms
    return 0


def test_bucket_gives_its_burst_at_once_and_then_a_token_each_tenth_of_a_second() -> None:
    meter = Meter()
    bucket = meter.meter.bucket()
    assert [wait_of(bucket) for _ in range(20)] == [0] * 20
    assert wait_of(bucket) == 100
    meter.now += 0.1
    assert wait_of(bucket) == 0
    assert wait_of(bucket) > 0
    assert meter.counters.throttled == 2


@pytest.mark.parametrize(("rate", "milliseconds"), [(0.001, 1_000_000), (3.0, 334), (5000.0, 1)])
def test_wait_is_until_a_whole_token_is_there_rounded_up_and_at_least_1(rate: float, milliseconds: int) -> None:
    bucket = Meter(rate, 1).meter.bucket()
    assert wait_of(bucket) == 0
    assert wait_of(bucket) == milliseconds


def test_refused_request_costs_no_token() -> None:
    meter = Meter(1.0, 1)
    bucket = meter.meter.bucket()
    assert [wait_of(bucket) for _ in range(5)] == [0, 1000, 1000, 1000, 1000]
    meter.now += 1.0
    assert wait_of(bucket) == 0


def test_bucket_never_holds_more_than_its_burst_and_survives_a_clock_that_stands() -> None:
    bucket = TokenBucket(1000.0, 3, 0.0)
    assert [bucket.take(1e6) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert bucket.take(1e6) > 0
    assert bucket.take(0.0) > 0


def test_rate_of_0_is_without_limit() -> None:
    meter = Meter(0.0, 1)
    bucket = meter.meter.bucket()
    assert [wait_of(bucket) for _ in range(1000)] == [0] * 1000
    meter.meter.take(b"a")
    meter.meter.take(b"a")


def test_buckets_are_separate_and_a_callers_is_the_same_each_time() -> None:
    meter = Meter(1.0, 1)
    assert wait_of(meter.meter.bucket()) == wait_of(meter.meter.bucket()) == 0
    meter.meter.take(b"a")
    meter.meter.take(b"b")
    with pytest.raises(CompletionRateLimitedError):
        meter.meter.take(b"a")


def test_callers_are_remembered_up_to_a_bound_the_last_ones_longest() -> None:
    meter = Meter(1.0, 1)
    meter.meter.take(b"first")
    for number in range(MAX_CALLERS - 1):
        meter.meter.take(b"%d" % number)
    with pytest.raises(CompletionRateLimitedError):
        meter.meter.take(b"first")
    meter.meter.take(b"one more")
    meter.meter.take(b"0")  # forgotten, so its bucket is full again
    with pytest.raises(CompletionRateLimitedError):
        meter.meter.take(b"first")
