"""The radix tree against looking at every stream."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from superfluid.scheduling.token_tree import Tokens, TokenTree, common_prefix

_streams = st.lists(st.integers(0, 2), min_size=1, max_size=8)


def _tokens(values: list[int]) -> Tokens:
    return np.array(values, np.int32)


@given(st.integers(0, 200), st.integers(0, 90), st.integers(0, 90))
def test_common_prefix_counts_the_equal_tokens(shared: int, left: int, right: int) -> None:
    prefix = list(range(shared))
    streams = [_tokens([*prefix, *([1000 + side] * length)]) for side, length in ((0, left), (1, right))]
    assert common_prefix(*streams) == shared


@given(st.lists(_streams, max_size=12), st.sets(st.integers(0, 11)), _streams)
def test_walk_finds_what_a_look_at_every_stream_finds(
    streams: list[list[int]], gone: set[int], query: list[int]
) -> None:
    tree = TokenTree()
    for key, stream in enumerate(streams):
        tree.insert(_tokens(stream), key)
        tree.check_integrity()
    for key in gone & set(range(len(streams))):
        tree.remove(key)
        tree.check_integrity()
    left = {key: stream for key, stream in enumerate(streams) if key not in gone}
    shared = {key: common_prefix(_tokens(stream), _tokens(query)) for key, stream in left.items()}
    longest = max(shared.values(), default=0)
    passed, length, reaching = tree.walk(_tokens(query))
    assert length == longest
    assert sorted(passed) == sorted(key for key, stream in left.items() if shared[key] == len(stream))
    assert sorted(reaching) == sorted(key for key in left if shared[key] == longest)


@given(st.lists(_streams, min_size=1, max_size=8))
def test_extensions_are_other_streams_that_begin_with_this_one(streams: list[list[int]]) -> None:
    tree = TokenTree()
    for key, stream in enumerate(streams):
        tree.insert(_tokens(stream), key)
    for key, stream in enumerate(streams):
        others = streams[:key] + streams[key + 1 :]
        assert tree.extensions(key) == any(other[: len(stream)] == stream for other in others)
