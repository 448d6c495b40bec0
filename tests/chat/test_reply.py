"""From tokens to reply events."""

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.chat.fake_tokenizer import ByteTokenizer
from superfluid.chat.reply import ReplyAssembler
from superfluid.chat.template import TemplateCodec
from superfluid.domain.reply import (
    Channel,
    ReplyEvent,
    TextDelta,
    ToolCallArguments,
    ToolCallFinished,
    ToolCallStarted,
)
from superfluid.domain.request import ChatPrompt, Message, ToolCall

_VOCABULARY = ByteTokenizer()
_CODEC = TemplateCodec(_VOCABULARY)


@dataclass
class _Scores:
    chosen: float
    top_tokens: list[int] = field(default_factory=lambda: [97])
    top_logprobs: list[float] = field(default_factory=lambda: [-0.5])


def _assembler(stop: tuple[str, ...] = (), *, parse_tools: bool = True, opening: str = "") -> ReplyAssembler:
    parser = _CODEC.reply_parser(parse_tools=parse_tools, opening=_VOCABULARY.encode_template(opening))
    return ReplyAssembler(_VOCABULARY, parser, stop=stop, call_id_prefix="call_9")


def _events(
    reply: str, size: int = 1, *, stop: tuple[str, ...] = (), parse_tools: bool = True, opening: str = ""
) -> list[ReplyEvent]:
    assembler = _assembler(stop, parse_tools=parse_tools, opening=opening)
    tokens = _VOCABULARY.encode_template(reply)
    events = [event for start in range(0, len(tokens), size) for event in assembler.feed(tokens[start : start + size])]
    return events + assembler.finish()


def _texts(events: list[ReplyEvent]) -> list[tuple[Channel, str]]:
    """The text by channel, neighbours joined; a finished call stands as its name and arguments."""
    pieces: list[tuple[Channel, str]] = []
    for event in events:
        if isinstance(event, TextDelta):
            pieces.append((event.channel, event.text))
        elif isinstance(event, ToolCallFinished):
            pieces.append((Channel.TOOL_CALL, f"{event.name}({event.arguments})"))
    grouped = itertools.groupby(pieces, key=lambda piece: piece[0])
    return [(channel, "".join(text for _, text in group)) for channel, group in grouped]


_TEXT, _REASONING, _CALL = Channel.TEXT, Channel.REASONING, Channel.TOOL_CALL
_FULL = '<think>\nhm\n\n</think>\n\nHello\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>'


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_full_reply_is_told_apart_and_trimmed_by_convention(size: int) -> None:
    assert _texts(_events(_FULL, size)) == [(_REASONING, "hm"), (_TEXT, "Hello"), (_CALL, 'f({"a": 1})')]


def test_reply_sent_back_as_history_renders_to_the_tokens_it_was_made_of() -> None:
    generated = (
        '<think>\nhm\n</think>\n\nHello\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
    )
    reasoning, text, _call = _texts(_events(generated))
    history = Message(
        role="assistant",
        reasoning=reasoning[1],
        content=text[1],
        tool_calls=(ToolCall(id="1", name="f", arguments='{"a": 1}'),),
    )
    question = Message(role="user", content="?")
    prompt = _CODEC.render(ChatPrompt(messages=(question,))).tokens
    again = _CODEC.render(ChatPrompt(messages=(question, history))).tokens
    assert again[: len(prompt)] == prompt
    assert again[len(prompt) :][: len(_VOCABULARY.encode_template(generated))] == _VOCABULARY.encode_template(generated)


def test_text_keeps_its_own_whitespace() -> None:
    assert _texts(_events("\n a\n\nb \n")) == [(_TEXT, "\n a\n\nb \n")]


def test_reasoning_opened_by_the_header_is_reasoning_from_the_first_token() -> None:
    assert _texts(_events("hm\n</think>\n\nHi", opening="<think>\n")) == [(_REASONING, "hm"), (_TEXT, "Hi")]


def test_call_is_announced_then_streamed_then_finished() -> None:
    events = _events('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>')
    started, *fragments, finished = events
    assert isinstance(started, ToolCallStarted)
    assert (started.index, started.call_id, started.name) == (0, "call_9", "f")
    assert "".join(event.fragment for event in fragments if isinstance(event, ToolCallArguments)) == '{"a": 1}'
    assert len(fragments) > 3
    assert isinstance(finished, ToolCallFinished)
    assert (finished.arguments, finished.is_valid) == ('{"a": 1}', True)


def test_calls_have_ids_of_their_own_and_no_text_between_them() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    events = _events(f"{call}\n{call}\n{call}")
    finished = [event for event in events if isinstance(event, ToolCallFinished)]
    assert [(event.index, event.call_id) for event in finished] == [(0, "call_9"), (1, "call_9_1"), (2, "call_9_2")]
    assert not any(isinstance(event, TextDelta) for event in events)


def test_call_cut_in_its_arguments_is_finished_invalid_with_the_raw_text() -> None:
    finished = _events('<tool_call>{"name": "f", "arguments": {"a": "b')[-1]
    assert isinstance(finished, ToolCallFinished)
    assert (finished.arguments, finished.is_valid) == ('{"a": "b', False)


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    "reply",
    ["a\n<tool_call>\nnothing\n</tool_call>\nb", "a\n<tool_call>\n{nothing", "<tool_call></tool_call>", "<tool_call>"],
)
def test_block_that_holds_no_call_is_text_with_its_markers(reply: str, size: int) -> None:
    assert _texts(_events(reply, size)) == [(_TEXT, reply)]


def test_call_that_nobody_asked_for_is_text() -> None:
    reply = 'a\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert _texts(_events(reply, parse_tools=False)) == [(_TEXT, reply)]


def test_tokens_generated_counts_every_token_held_back_or_not() -> None:
    tokens = _VOCABULARY.encode_template(_FULL)
    assembler = _assembler()
    for count, token in enumerate(tokens, 1):
        for event in assembler.feed([token]):
            assert not isinstance(event, TextDelta | ToolCallStarted) or event.tokens_generated == count
        assert assembler.tokens_generated == count


# ---- stop strings


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_stop_string_ends_the_reply_before_it(size: int) -> None:
    assembler = _assembler(("STOP",))
    tokens = _VOCABULARY.encode_template("Hello\nSTOP more")
    events = [event for start in range(0, len(tokens), size) for event in assembler.feed(tokens[start : start + size])]
    events += assembler.finish()
    assert assembler.stopped_by == "STOP"
    assert _texts(events) == [(_TEXT, "Hello\n")]
    assert assembler.feed([97]) == []


def test_stop_string_counts_tokens_up_to_the_one_that_completed_it() -> None:
    assembler = _assembler(("bc",))
    for token in b"abcdef":
        assembler.feed([token])
    assert assembler.tokens_generated == 3


def test_stop_string_among_tokens_that_come_at_once_ends_the_count_there() -> None:
    """Several tokens a tick: guesses that were right."""
    assembler = _assembler(("STOP",))
    assembler.feed([97, 98])
    assert assembler.ignored_tokens == 0
    assembler.feed([*b"cdSTOPefg"])
    assert (assembler.tokens_generated, assembler.ignored_tokens) == (8, 3)
    assembler.feed([97, 98])
    assert (assembler.tokens_generated, assembler.ignored_tokens) == (8, 2)


def test_stop_string_is_looked_for_in_text_only() -> None:
    reply = '<think>STOP</think>a<tool_call>{"name": "f", "arguments": {"a": "STOP"}}</tool_call>b'
    assert _texts(_events(reply, stop=("STOP",))) == [
        (_REASONING, "STOP"),
        (_TEXT, "a"),
        (_CALL, 'f({"a": "STOP"})'),
        (_TEXT, "b"),
    ]


def test_stop_string_of_a_line_break_does_not_meet_the_break_behind_reasoning() -> None:
    assert _texts(_events("<think>\nx\n</think>\n\nHi\nthere", stop=("\n",))) == [(_REASONING, "x"), (_TEXT, "Hi")]


def test_unfinished_stop_string_is_text_in_the_end() -> None:
    assembler = _assembler(("STOP",))
    assert _texts(assembler.feed(list(b"a ST"))) == [(_TEXT, "a ")]
    assert _texts(assembler.finish()) == [(_TEXT, "ST")]
    assert assembler.stopped_by is None


# ---- scores


def _scored(reply: str, stop: tuple[str, ...] = ()) -> list[tuple[str, list[int]]]:
    """Text of each delta and the tokens whose scores came with it."""
    assembler = _assembler(stop)
    events: list[ReplyEvent] = []
    for token in _VOCABULARY.encode_template(reply):
        events += assembler.feed([token], [_Scores(-0.25)])
    events += assembler.finish()
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert all(score.chosen.logprob == -0.25 for delta in deltas for score in delta.logprobs)
    return [(delta.text, [score.chosen.token for score in delta.logprobs]) for delta in deltas]


def test_scores_come_with_the_text_of_their_tokens() -> None:
    assert _scored("ab") == [("a", [97]), ("b", [98])]


def test_scores_of_a_character_in_several_tokens_come_with_the_character() -> None:
    first, second = "é".encode()
    assert _scored("aé") == [("a", [97]), ("é", [first, second])]


def test_scores_of_text_held_back_come_when_it_does() -> None:
    assert _scored("aST.", stop=("STOP",)) == [("a", [97]), ("ST.", [83, 84, 46])]
    assert _scored("a\nb") == [("a", [97]), ("\nb", [10, 98])]


def test_scores_of_what_is_never_shown_are_dropped() -> None:
    assert _scored("<think>\nx\n</think>\n\na<|im_end|>") == [("x", [120]), ("a", [97])]
    assert _scored("abSTOP", stop=("STOP",)) == [("a", [97]), ("b", [98])]


def test_scores_carry_the_candidates_and_their_bytes() -> None:
    (delta,) = _assembler().feed([98], [_Scores(-1.0, [97, 98], [-0.5, -1.0])])
    assert isinstance(delta, TextDelta)
    (score,) = delta.logprobs
    assert [(candidate.piece, candidate.logprob) for candidate in score.top] == [(b"a", -0.5), (b"b", -1.0)]


@given(
    st.lists(
        st.sampled_from(
            [
                "a",
                "é",
                "\n",
                " ",
                "ST",
                "OP",
                "<think>",
                "</think>",
                "<tool_call>",
                '{"name": "f"}',
                "</tool_call>",
                "<|im_end|>",
            ]
        ),
        max_size=14,
    ).map("".join),
    st.integers(1, 7),
    st.booleans(),
)
def test_text_does_not_depend_on_tick_size_or_scores(reply: str, size: int, is_scored: bool) -> None:
    tokens = _VOCABULARY.encode_template(reply)
    assembler = _assembler(("STOP", "\n\n"))
    events: list[ReplyEvent] = []
    for start in range(0, len(tokens), size):
        tick = tokens[start : start + size]
        events += assembler.feed(tick, [_Scores(-1.0) for _ in tick] if is_scored else ())
    events += assembler.finish()
    assert _texts(events) == _texts(_events(reply, stop=("STOP", "\n\n")))
