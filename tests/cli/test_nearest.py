import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.cli.nearest import edit_distance, nearest

FLAGS = ["host", "port", "max-batch", "max-batch-size", "max-tokens", "model", "temperature", "help", "h"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("prot", "port"),
        ("max-bach", "max-batch"),
        ("max-b", "max-batch"),
        ("max_batch_size", "max-batch-size"),
        ("temprature", "temperature"),
        ("mdoel", "model"),
        ("te", "temperature"),
        ("max-context-tokens", None),
        ("nothing-like-it", None),
        ("x", None),
        ("", "h"),
    ],
)
def test_nearest_flag_is_a_completion_or_close_enough(word: str, expected: str | None) -> None:
    assert nearest(word, FLAGS) == expected


def test_nearest_of_nothing_is_nothing() -> None:
    assert nearest("word", []) is None


def test_nearest_long_word_may_differ_by_a_third() -> None:
    assert nearest("a" * 9 + "bbb", ["a" * 12]) == "a" * 12
    assert nearest("a" * 8 + "bbbb", ["a" * 12]) == "a" * 12
    assert nearest("a" * 7 + "bbbbb", ["a" * 12]) is None


@given(st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_edit_distance_is_symmetric_and_zero_only_for_equals(left: str, right: str) -> None:
    distance = edit_distance(left, right)
    assert distance == edit_distance(right, left)
    assert (distance == 0) == (left == right)
    assert abs(len(left) - len(right)) <= distance <= max(len(left), len(right))
