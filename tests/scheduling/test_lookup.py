"""Where the end of a stream was before, and what is guessed from that."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.scheduling.lookup import (
    COMPARED_PLACES,
    INDEXED_TOKENS,
    MAX_MATCH_TOKENS,
    MIN_MATCH_TOKENS,
    Match,
    StreamIndex,
    continuation,
)


def _match(stream: list[int]) -> Match | None:
    return StreamIndex().match(np.array(stream, np.int32))


def _longest_by_hand(stream: list[int]) -> tuple[int, int]:
    """The longest agreement that an earlier place has with the stream's end, and the last such place."""
    places = []
    for end in range(1, len(stream)):
        length = 0
        while length < min(end, MAX_MATCH_TOKENS) and stream[end - 1 - length] == stream[-1 - length] >= 0:
            length += 1
        places.append((length, end))
    return max(places, default=(0, 0))


@pytest.mark.parametrize(
    ("stream", "match"),
    [
        ([], None),
        ([1], None),
        ([1, 1], None),
        ([1, 2, 3, 4], None),
        ([1, 2, 9, 2], None),
        ([1, 2, 9, 1, 2], Match(2, 2)),
        ([1, 2, 3, 9, 1, 2, 3], Match(3, 3)),
        ([7, 2, 3, 1, 2, 3, 2, 3, 5, 1, 2, 3], Match(6, 3)),
        ([1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 3], Match(7, 3)),
        ([5, 1, 2, 3, 8, 1, 2, 3, 9, 5, 1, 2, 3], Match(4, 4)),
        ([4, 4, 4], Match(2, 2)),
        ([*range(20), 99, *range(20)], Match(20, MAX_MATCH_TOKENS)),
        ([-8, -9, 5, 6, 3, -8, -9, 5, 6], Match(4, 2)),
        ([-8, -9, 3, -8, -9], None),
        ([5, -9, 3, 5, -9], None),
        ([-9, 5, 3, -9, 5], None),
    ],
)
def test_first_match_is_the_longest_and_of_those_the_last(stream: list[int], match: Match | None) -> None:
    assert _match(stream) == match


@given(st.lists(st.integers(-1, 3), max_size=60))
def test_first_match_is_where_a_search_by_hand_finds_it(stream: list[int]) -> None:
    length, end = _longest_by_hand(stream)
    assert _match(stream) == (Match(end, length) if length >= MIN_MATCH_TOKENS else None)


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=80), st.lists(st.integers(1, 9), min_size=1))
def test_any_match_of_a_growing_stream_is_true(stream: list[int], steps: list[int]) -> None:
    index, tokens, count = StreamIndex(), np.array(stream, np.int32), 0
    for step in steps:
        count = min(len(stream), count + step)
        match = index.match(tokens[:count])
        longest, _ = _longest_by_hand(stream[:count])
        assert (match is None) == (longest < MIN_MATCH_TOKENS)
        if match is not None:
            said = stream[match.end - match.length : match.end]
            assert said == stream[count - match.length : count]
            assert match.length == longest or match.is_continued or longest == MAX_MATCH_TOKENS


def test_match_goes_on_where_the_last_one_was_though_others_agree_as_long() -> None:
    """The copy of the first function comes to a line that each function has."""
    functions = [token for name in (100, 200, 300) for token in (name, name + 1, 7, 8, 9, name + 2, name + 3)]
    index = StreamIndex()
    reply = [100, 101, 7, 8, 9]
    matches = [index.match(np.array(functions + reply[:count], np.int32)) for count in (2, 3, 4, 5)]
    assert matches == [Match(2, 2), Match(3, 3, True), Match(4, 4, True), Match(5, 5, True)]
    changed = [100, 101, 50, 8, 9]
    after = StreamIndex()
    assert after.match(np.array(functions + changed[:2], np.int32)) == Match(2, 2)
    assert after.match(np.array(functions + changed, np.int32)) == Match(5, 2, True)


def test_match_that_does_not_go_on_is_the_nearest_of_the_longest() -> None:
    """A line was left out: the copy goes on a little further down, and that line is elsewhere, too."""
    line = [7, 8, 9]
    source = [1, 2, 3, 40, 41, *line, 4, *range(500, 600), *line, 5]
    index = StreamIndex()
    assert index.match(np.array([*source, 1, 2, 3], np.int32)) == Match(3, 3)
    assert index.match(np.array([*source, 1, 2, 3, *line], np.int32)) == Match(8, 3)


def test_much_longer_match_elsewhere_ends_a_copy() -> None:
    block = list(range(50, 70))
    source = [1, 2, 60, 61, 3, *block, 99]
    index = StreamIndex()
    assert index.match(np.array([*source, 8, 1, 2], np.int32)) == Match(2, 2)
    assert index.match(np.array([*source, 8, 1, 2, 60, 61], np.int32)) == Match(4, 4, True)
    assert index.match(np.array([*source, 8, 1, 2, *block[:14]], np.int32)) == Match(19, 14)


def test_of_many_places_the_latest_are_compared() -> None:
    stream = [9, 1, 2, *[1, 2] * (COMPARED_PLACES + 5), 9, 1, 2]
    found = _match(stream)
    assert found is not None
    assert (found.length, found.end > 3) == (2, True)


def test_long_prompt_is_indexed_bit_by_bit() -> None:
    """The place stands in the last part of it."""
    stream = np.arange(3 * INDEXED_TOKENS, dtype=np.int32)
    stream[-2:] = stream[-12:-10]
    index = StreamIndex()
    assert [index.match(stream) for _ in range(3)] == [None, None, Match(len(stream) - 10, 2)]


@pytest.mark.parametrize(
    ("stream", "count", "guess"),
    [
        ([1, 2, 3, 4, 5, 1, 2], 2, (3, 4)),
        ([1, 2, 3, 4, 5, 1, 2], 5, (3, 4, 5, 1, 2)),
        ([1, 2, 1, 2], 5, (1, 2, 1, 2, 1)),
        ([6, 6, 6], 3, (6, 6, 6)),
        ([1, 2, 3, -5, -6, 1, 2], 4, (3,)),
        ([1, 2, -5, -6, 1, 2], 4, ()),
    ],
)
def test_guess_is_what_followed_and_repeats_but_ends_at_an_image(
    stream: list[int], count: int, guess: tuple[int, ...]
) -> None:
    match = _match(stream)
    assert match is not None
    assert continuation(np.array(stream, np.int32), match, count) == guess
