"""How the scenarios count, on streams whose times are made up."""

import json

import pytest
from benchmarks.client import StreamRecord
from benchmarks.scenarios import decode_rate, gap_within, tokens_between


def stream(times: list[float], tokens: int | None = None) -> StreamRecord:
    usage = json.dumps({"usage": {"completion_tokens": tokens if tokens is not None else len(times)}}).encode()
    return StreamRecord(sent=0.0, status=200, text_times=times, events=[usage, b"[DONE]"])


def test_decode_rate_counts_only_while_all_streams_run() -> None:
    early = stream([1.0, 2.0, 3.0, 4.0, 5.0])
    late = stream([3.0, 4.0, 5.0, 6.0, 7.0])
    assert decode_rate([early, late]) == pytest.approx(2.0)  # 3 to 5 seconds: two tokens of each


def test_decode_rate_of_streams_that_never_overlap_covers_all_of_them() -> None:
    assert decode_rate([stream([1.0, 2.0]), stream([3.0, 5.0])]) == pytest.approx(3 / 4)


def test_tokens_between_when_events_carry_several_tokens_uses_the_streams_own_count() -> None:
    assert tokens_between(stream([1.0, 2.0, 3.0, 4.0], tokens=8), 1.0, 3.0) == pytest.approx(4.0)


def test_gap_that_began_before_the_arrival_counts_whole() -> None:
    assert gap_within([0.0, 1.0, 4.0, 5.0], start=2.0, end=5.0) == pytest.approx(3.0)


def test_gap_outside_of_the_arrival_does_not_count() -> None:
    assert gap_within([0.0, 5.0, 6.0, 7.0, 17.0], start=5.5, end=7.0) == pytest.approx(1.0)


def test_gap_that_is_still_open_counts_up_to_the_end() -> None:
    assert gap_within([0.0, 1.0], start=0.5, end=9.0) == pytest.approx(8.0)
