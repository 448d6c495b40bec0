"""The span bookkeeping of the access log."""

import pytest

from superfluid.domain.reply import Channel, Finish, ReplyFinished, ReplyStarted, TextDelta
from superfluid.http.timing import DeliverySpan, GenerationMeter


def _finish(meter: GenerationMeter, tokens: int, warm_tokens: int = 0) -> DeliverySpan:
    progress, span = meter.add_reply(0.0)
    progress.note([ReplyStarted(10, warm_tokens), TextDelta(Channel.TEXT, "x", tokens)])
    progress.note([ReplyFinished(Finish.END_OF_TURN, 10, warm_tokens, tokens)])
    return span


def test_span_leaves_the_first_deliverys_tokens_out_of_the_decode_rate() -> None:
    span = DeliverySpan()
    for now, tokens in [(1.0, 3), (2.0, 4), (3.0, 8)]:
        span.stamp(now, tokens)
    assert (span.first_seconds, span.decode_tokens, span.decode_seconds) == (1.0, 5, 2.0)


def test_span_ignores_deliveries_that_carry_no_tokens() -> None:
    span = DeliverySpan()
    for now, tokens in [(1.0, 0), (2.0, 2), (9.0, 2)]:
        span.stamp(now, tokens)
    assert (span.first_seconds, span.decode_tokens, span.decode_seconds) == (2.0, 0, 0.0)


def test_meter_of_one_reply_measures_from_the_start() -> None:
    meter = GenerationMeter(100.0)
    span = _finish(meter, tokens=5, warm_tokens=4)
    span.stamp(100.5, 1)
    span.stamp(101.5, 5)
    timing = meter.timing(route="POST /x", model="m", prompt_tokens=10, now=102.0)
    assert (timing.route, timing.model, timing.finish) == ("POST /x", "m", "stop")
    assert (timing.prompt_tokens, timing.cached_tokens, timing.completion_tokens) == (10, 4, 5)
    assert (timing.first_token_seconds, timing.decode_tokens, timing.decode_seconds) == (0.5, 4, 1.0)
    assert timing.total_seconds == 2.0


def test_meter_of_several_replies_sums_tokens_and_times_without_the_gaps() -> None:
    meter = GenerationMeter(0.0)
    first, second = _finish(meter, tokens=3, warm_tokens=1), _finish(meter, tokens=4, warm_tokens=9)
    for now, tokens in [(1.0, 1), (2.0, 3)]:
        first.stamp(now, tokens)
    for now, tokens in [(5.0, 1), (7.0, 4)]:
        second.stamp(now, tokens)
    timing = meter.timing(route="r", model="m", prompt_tokens=10, now=8.0)
    assert (timing.completion_tokens, timing.cached_tokens, timing.first_token_seconds) == (7, 1, 1.0)
    assert timing.decode_tokens == 5
    assert timing.decode_seconds == pytest.approx(3.0)


def test_meter_with_nothing_delivered_leaves_the_rates_unknown() -> None:
    meter = GenerationMeter(0.0)
    _finish(meter, tokens=0)
    timing = meter.timing(route="r", model="m", prompt_tokens=10, now=1.0)
    assert (timing.first_token_seconds, timing.decode_seconds) == (None, None)
