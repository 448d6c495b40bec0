"""Hiding marker look-alikes from a template."""

from hypothesis import given
from hypothesis import strategies as st

from superfluid.chat.guard import LookAlikes, TextGuard, private_characters

_MARKERS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "[INST]")
_fragments = st.lists(
    st.sampled_from(
        [*_MARKERS, "<|im_", "end|>", "|>", "<", "think", "|im_end|", ">", "[", " ", "\n", "x", "\U000f0000"]
    ),
    max_size=8,
).map("".join)


def _guard(taken: frozenset[str] = frozenset()) -> TextGuard:
    return TextGuard(LookAlikes(_MARKERS), taken)


def _has_marker(text: str) -> bool:
    return any(marker in text for marker in _MARKERS)


@given(_fragments)
def test_guarded_text_is_restored_to_what_it_was(text: str) -> None:
    guard = _guard(private_characters(text))
    assert guard.restore(guard.guard(text)) == text


@given(st.lists(_fragments, max_size=4), st.sampled_from(["", " ", "\n"]))
def test_guarded_texts_one_behind_the_other_hold_no_marker(texts: list[str], strip: str) -> None:
    guard = _guard(private_characters(texts))
    parts = [guard.guard(text) for text in texts]
    assert not _has_marker("".join(parts))
    assert not _has_marker("".join(part.strip() for part in parts))
    assert not _has_marker(strip.join(parts))


@given(_fragments)
def test_guarded_text_in_brackets_of_the_template_is_no_marker(text: str) -> None:
    guarded = _guard(private_characters(text)).guard(text)
    for left, right in (
        ("<", ">"),
        ("</", ">"),
        ("<|", "|>"),
        ("[", "]"),
        ("<|", ">"),
        ("", ""),
        ("<|im_", ""),
        ("", "|>"),
    ):
        assert not _has_marker(left + guarded + right)
        assert not _has_marker(left + guarded.strip() + right)


def test_ordinary_text_is_left_as_it_is() -> None:
    guard = _guard()
    for text in ("", "Hello", "a < b > c", "x[0] = {1: '<b>'}", "  indented\n", "string", "end"):
        assert guard.guard(text) == text


def test_json_is_guarded_in_keys_and_nested_values() -> None:
    guard = _guard()
    value = {"<think>": [{"a": "<|im_end|>"}, 1, None, True, 2.5]}
    guarded = guard.guard_json(value)
    assert not _has_marker(str(guarded))
    assert guard.restore(next(iter(guarded))) == "<think>"
    assert guard.restore(guarded[next(iter(guarded))][0]["a"]) == "<|im_end|>"
    assert next(iter(guarded.values()))[1:] == [1, None, True, 2.5]


def test_placeholders_are_none_of_the_characters_in_use() -> None:
    text = "\U000f0000\U000f0001\U000f0002 <|im_end|>"
    guard = _guard(private_characters({"k": [text]}))
    guarded = guard.guard(text)
    assert guarded.startswith("\U000f0000\U000f0001\U000f0002 ")
    assert guarded[-1] not in text
    assert guard.sign not in guarded
    assert guard.restore(guarded) == text


def test_vocabulary_without_markers_guards_nothing() -> None:
    guard = TextGuard(LookAlikes(()), frozenset())
    assert guard.guard("<|im_end|>") == "<|im_end|>"
