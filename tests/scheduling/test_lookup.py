"""Where the end of a stream was before, and what is guessed from that."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.scheduling.lookup import MAX_MATCH_TOKENS, MIN_MATCH_TOKENS, Match, continuation, find_match


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
    ],
)
def test_match_is_the_longest_and_of_those_the_last(stream: list[int], match: Match | None) -> None:
    assert find_match(np.array(stream, np.int32)) == match


@given(st.lists(st.integers(0, 3), max_size=60))
def test_match_is_where_a_search_by_hand_finds_it(stream: list[int]) -> None:
    places = []
    for end in range(1, len(stream)):
        length = 0
        while length < min(end, MAX_MATCH_TOKENS) and stream[end - 1 - length] == stream[-1 - length]:
            length += 1
        places.append((length, end))
    length, end = max(places, default=(0, 0))
    expected = Match(end, length) if length >= MIN_MATCH_TOKENS else None
    assert find_match(np.array(stream, np.int32)) == expected


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
    tokens = np.array(stream, np.int32)
    match = find_match(tokens)
    assert match is not None
    assert continuation(tokens, match, count) == guess
