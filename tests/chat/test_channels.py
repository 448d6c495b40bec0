"""Splitting a reply's tokens into channels."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.chat_templates import MarkerVocabulary

from superfluid.chat.channels import ChannelParser, find_channel_markers
from superfluid.chat.fake_tokenizer import ByteTokenizer
from superfluid.chat.interface import Run
from superfluid.domain.reply import Channel

_TEXT, _REASONING, _CALL = Channel.TEXT, Channel.REASONING, Channel.TOOL_CALL
_VOCABULARY = ByteTokenizer()


def _parser(*, parse_tools: bool = True, opening: str = "") -> ChannelParser:
    return ChannelParser(
        _VOCABULARY,
        find_channel_markers(_VOCABULARY),
        parse_tools=parse_tools,
        opening=_VOCABULARY.encode_template(opening),
    )


def _joined(runs: Sequence[Run]) -> list[tuple[int, str]]:
    """Channel and text, with neighbours on one channel put together unless a block ended between them."""
    joined: list[tuple[int, str]] = []
    is_open = False
    for run in runs:
        if joined and joined[-1][0] == run.channel and is_open:
            joined[-1] = (run.channel, joined[-1][1] + run.text)
        else:
            joined.append((run.channel, run.text))
        is_open = not run.is_closed
    return [(channel, text) for channel, text in joined if text]


def _parse(text: str, size: int = 1, *, parse_tools: bool = True, opening: str = "") -> list[Run]:
    parser = _parser(parse_tools=parse_tools, opening=opening)
    tokens = _VOCABULARY.encode_template(text)
    runs = [run for start in range(0, len(tokens), size) for run in parser.feed(tokens[start : start + size])]
    runs += parser.finish()
    assert sum(run.tokens for run in runs) == len(tokens)
    return runs


_REPLY = "<think>\nhm é</think>\n\nHello<tool_call>\n{}\n</tool_call>\nbye<|im_end|>"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_runs_at_any_tick_size_are_the_channels_in_order(size: int) -> None:
    assert _joined(_parse(_REPLY, size)) == [
        (_REASONING, "\nhm é"),
        (_TEXT, "\n\nHello"),
        (_CALL, "\n{}\n"),
        (_TEXT, "\nbye"),
    ]


@pytest.mark.parametrize("size", [1, 100])
def test_closed_block_says_so_once_and_carries_its_text(size: int) -> None:
    closed = [run for run in _parse(_REPLY, size) if run.is_closed]
    assert [(run.channel, run.raw) for run in closed] == [(_REASONING, ""), (_CALL, "\n{}\n")]


def test_block_that_the_end_cuts_off_is_handed_out_unclosed() -> None:
    last = _parse("<tool_call>{'a")[-1]
    assert (last.channel, last.raw, last.is_closed) == (_CALL, "{'a", False)


@pytest.mark.parametrize(
    ("opening", "channel"),
    [
        ("<|im_start|>assistant\n<think>\n", _REASONING),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", _TEXT),
        ("<|im_start|>assistant\n", _TEXT),
        ("", _TEXT),
    ],
)
def test_channel_opened_by_the_prompt_is_where_the_reply_begins(opening: str, channel: Channel) -> None:
    assert _parse("x", opening=opening)[0].channel == channel


def test_tool_markers_are_text_when_calls_are_not_parsed() -> None:
    text = "a<tool_call>{}</tool_call>b"
    assert _joined(_parse(text, parse_tools=False)) == [(_TEXT, text)]
    assert _parser(parse_tools=False).tool_call_markers is None


def test_channel_with_one_marker_missing_does_not_exist() -> None:
    vocabulary = MarkerVocabulary(user_defined=("<think>", "<tool_call>", "</tool_call>"))
    markers = find_channel_markers(vocabulary)
    assert set(markers.opens.values()) == {_CALL}


@pytest.mark.parametrize("text", ["</think>a", "a</think>", "a</tool_call>"])
def test_closing_marker_with_nothing_open_is_dropped(text: str) -> None:
    assert _joined(_parse(text)) == [(_TEXT, "a")]


def test_thinking_marker_inside_a_call_is_its_text() -> None:
    assert _parse("<tool_call>a<think>b</think></tool_call>")[-1].raw == "a<think>b</think>"


def test_call_inside_reasoning_ends_the_reasoning() -> None:
    assert _joined(_parse("<think>a<tool_call>b</tool_call>c")) == [(_REASONING, "a"), (_CALL, "b"), (_TEXT, "c")]


def test_control_and_end_tokens_never_show() -> None:
    assert _joined(_parse("a<|im_end|>b<|fim_prefix|>c<|endoftext|>")) == [(_TEXT, "abc")]


def test_character_cut_by_a_marker_becomes_a_replacement_on_its_own_channel() -> None:
    parser = _parser()
    think = _VOCABULARY.special_tokens["<think>"]
    runs = [*parser.feed(["é".encode()[0]]), *parser.feed([think]), *parser.feed([97])]
    assert _joined(runs) == [(_TEXT, "\ufffd"), (_REASONING, "a")]


def test_pending_bytes_are_reported_and_replaced_at_the_end() -> None:
    parser = _parser()
    parser.feed(["é".encode()[0]])
    assert parser.has_pending
    assert [run.text for run in parser.finish()] == ["\ufffd"]


@given(
    st.lists(
        st.sampled_from(["a", "é", "\n", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"]),
        max_size=12,
    ).map("".join),
    st.integers(1, 6),
)
def test_runs_do_not_depend_on_the_tick_size(text: str, size: int) -> None:
    assert _joined(_parse(text, size)) == _joined(_parse(text, 1))
