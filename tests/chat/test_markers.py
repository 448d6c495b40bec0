"""Markers in text, and their look-alikes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.chat.markers import (
    Marker,
    MarkerSplitter,
    break_look_alikes,
    encode_with_markers,
    is_marker_text,
    marker_pattern,
)

_alphabet = st.text(alphabet="<|>ab", max_size=12)
_markers = st.lists(st.text(alphabet="<|>ab", min_size=1, max_size=5), min_size=1, max_size=8, unique=True)


@given(_markers, _alphabet)
def test_pattern_equals_plain_alternation_longest_first(markers: list[str], text: str) -> None:
    plain = re.compile("|".join(re.escape(marker) for marker in sorted(markers, key=len, reverse=True)))
    pattern = marker_pattern(markers)
    assert pattern is not None
    assert pattern.findall(text) == plain.findall(text)


def test_pattern_of_no_markers_is_none() -> None:
    assert marker_pattern([]) is None


def test_pattern_of_thousands_of_like_markers_compiles_and_matches() -> None:
    pattern = marker_pattern(f"<unused{number}>" for number in range(5000))
    assert pattern is not None
    assert pattern.findall("a <unused4999> b <unused5000> <unused7>") == ["<unused4999>", "<unused7>"]


@given(_markers, _alphabet)
def test_broken_look_alikes_hold_no_marker_and_lose_nothing(markers: list[str], text: str) -> None:
    markers = [marker for marker in markers if len(marker) > 1]
    parts = list(break_look_alikes(marker_pattern(markers), text))
    assert "".join(parts) == text
    assert not any(marker in part for marker in markers for part in parts)


def test_splitter_with_a_swallowing_marker_drops_the_whitespace_beside_it() -> None:
    splitter = MarkerSplitter({"<u>": 1, "<v>": 2}, strips_text_before=frozenset({2}), strips_text_after=frozenset({1}))
    assert list(splitter.split("a <u>\n b \t<v> c")) == ["a ", Marker(1), "b", Marker(2), " c"]


def test_encoding_with_markers_tells_each_text_whether_it_follows_one() -> None:
    seen: list[tuple[str, bool]] = []

    def encode(text: str, follows_marker: bool) -> list[int]:
        seen.append((text, follows_marker))
        return [0]

    tokens = encode_with_markers("a<u>b", MarkerSplitter({"<u>": 7}), encode, follows_marker=False)
    assert tokens == [0, 7, 0]
    assert seen == [("a", False), ("b", True)]


@pytest.mark.parametrize("text", ["<think>", "[PAD1]", "<|x|>", "ab"])
def test_user_defined_token_with_a_name_is_a_marker(text: str) -> None:
    assert is_marker_text(text)


@pytest.mark.parametrize("text", ["    ", "\n\n", "▁▁", "þ", ""])
def test_user_defined_token_of_blanks_or_one_character_is_text(text: str) -> None:
    assert not is_marker_text(text)
