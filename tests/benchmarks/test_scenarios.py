"""How the scenarios count, on streams whose times are made up."""

import json

import pytest
from benchmarks.client import StreamRecord
from benchmarks.scenarios import decode_rate, gap_within, tokens_between


def stream(times: list[float], tokens: int | None = None, texts: list[str] | None = None) -> StreamRecord:
    """One word an event, unless ``texts`` say otherwise."""
    texts = texts or ["word"] * len(times)
    events = [json.dumps({"choices": [{"delta": {"content": text}}]}).encode() for text in texts]
    usage = json.dumps({"usage": {"completion_tokens": tokens if tokens is not None else len(times)}}).encode()
    return StreamRecord(sent=0.0, status=200, text_times=times, events=[*events, usage, b"[DONE]"])


def words(text: str) -> int:
    return len(text.split())


def test_decode_rate_counts_only_while_all_streams_run() -> None:
    early = stream([1.0, 2.0, 3.0, 4.0, 5.0])
    late = stream([3.0, 4.0, 5.0, 6.0, 7.0])
    assert decode_rate([early, late], words) == pytest.approx(2.0)  # 3 to 5 seconds: two tokens of each


def test_decode_rate_of_streams_that_never_overlap_covers_all_of_them() -> None:
    assert decode_rate([stream([1.0, 2.0]), stream([3.0, 5.0])], words) == pytest.approx(3 / 4)


def test_tokens_between_when_events_carry_several_tokens_counts_each_by_its_text() -> None:
    record = stream([1.0, 2.0, 3.0], tokens=9, texts=["one", "two three four five", "six seven eight nine"])
    assert tokens_between(record, 1.0, 3.0, words) == pytest.approx(8.0)
    assert tokens_between(record, 0.0, 1.0, words) == pytest.approx(1.0)


def test_tokens_between_when_texts_come_to_another_count_has_the_servers_total() -> None:
    record = stream([1.0, 2.0, 3.0, 4.0], tokens=8)
    assert tokens_between(record, 1.0, 3.0, words) == pytest.approx(4.0)


def test_tokens_between_counts_an_event_of_half_a_word_as_one() -> None:
    record = stream([1.0, 2.0], texts=["word", " "])
    assert tokens_between(record, 1.0, 2.0, words) == pytest.approx(1.0)


def test_gap_that_began_before_the_arrival_counts_whole() -> None:
    assert gap_within([0.0, 1.0, 4.0, 5.0], start=2.0, end=5.0) == pytest.approx(3.0)


def test_gap_outside_of_the_arrival_does_not_count() -> None:
    assert gap_within([0.0, 5.0, 6.0, 7.0, 17.0], start=5.5, end=7.0) == pytest.approx(1.0)


def test_gap_that_is_still_open_counts_up_to_the_end() -> None:
    assert gap_within([0.0, 1.0], start=0.5, end=9.0) == pytest.approx(8.0)
