"""The index of host entries."""

import numpy as np
import pytest

from superfluid.scheduling.prefix import PrefixIndex
from superfluid.scheduling.token_tree import Tokens


def _tokens(*values: int) -> Tokens:
    return np.array(values, np.int32)


def test_matches_are_the_entries_within_the_stream_and_the_shortest_that_shares_most() -> None:
    index = PrefixIndex(limit_bytes=100, is_nesting=True)
    for tokens in ((1,), (1, 2, 3, 4, 5), (1, 2, 3, 6), (1, 9), (7, 8)):
        index.add(_tokens(*tokens), tick=1, is_transient=False)
    found = [(entry.tokens.tolist(), shared) for entry, shared in index.matches(_tokens(1, 2, 3, 7))]
    assert found == [([1], 1), ([1, 2, 3, 6], 3)]
    assert index.matches(_tokens(8)) == []


def test_tidy_over_the_bound_drops_the_least_recently_used() -> None:
    index = PrefixIndex(limit_bytes=25, is_nesting=True)
    entries = [index.add(_tokens(seed, 1, 2), tick=seed, is_transient=False) for seed in range(3)]
    for entry in entries:
        index.record_size(entry.entry_id, 10)
    entries[0].last_used_tick = 9
    assert index.tidy() == [1]
    assert index.size_bytes == 20
    index.check_integrity()


def test_tidy_transient_entry_lives_for_one_plan() -> None:
    index = PrefixIndex(limit_bytes=0, is_nesting=True)
    entry = index.add(_tokens(1, 2), tick=1, is_transient=True)
    assert [held.entry_id for held in index] == [entry.entry_id]
    assert index.tidy() == [entry.entry_id]
    assert index.tidy() == []


@pytest.mark.parametrize(("is_nesting", "dropped"), [(True, [0]), (False, [])])
def test_tidy_prefix_of_another_entry_is_redundant_if_states_can_be_cut(is_nesting: bool, dropped: list[int]) -> None:
    index = PrefixIndex(limit_bytes=100, is_nesting=is_nesting)
    index.add(_tokens(1, 2), tick=1, is_transient=False)
    index.tidy()
    index.add(_tokens(1, 2, 3), tick=2, is_transient=False)
    assert index.tidy() == dropped
    index.check_integrity()


def test_tidy_equal_entries_leave_one() -> None:
    index = PrefixIndex(limit_bytes=100, is_nesting=True)
    index.add(_tokens(1, 2), tick=1, is_transient=False)
    index.add(_tokens(1, 2), tick=1, is_transient=False)
    assert len(index.tidy()) == 1
    assert len(index) == 1


def test_covered_tokens_counts_part_of_an_entry_only_if_states_can_be_cut() -> None:
    for is_nesting, covered in ((True, 2), (False, 0)):
        index = PrefixIndex(limit_bytes=100, is_nesting=is_nesting)
        index.add(_tokens(1, 2, 3), tick=1, is_transient=False)
        assert index.coverage(_tokens(1, 2, 9))[0] == covered
        assert index.coverage(_tokens(1, 2, 3, 4)) == (3, False)


def test_add_tokens_are_copied() -> None:
    index = PrefixIndex(limit_bytes=100, is_nesting=True)
    tokens = _tokens(1, 2)
    entry = index.add(tokens, tick=1, is_transient=False)
    tokens[0] = 7
    assert entry.tokens.tolist() == [1, 2]
