"""Messages: the request's every field, and whole answers. No server."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.domain.job import PrefixPin
from superfluid.domain.reply import Channel, Finish, ReplyFinished, TextDelta, ToolCallFinished
from superfluid.domain.request import ChatPrompt, GenerationRequest, Message, MessagePin, SamplingOverrides
from superfluid.errors import CallerError
from superfluid.http.anthropic import MessagesDialect
from superfluid.http.anthropic_count import parse_count
from superfluid.http.collect import CollectedReply
from superfluid.http.dialect import Dialect, Opening

_T = TypeVar("_T")
DIALECT: Dialect = MessagesDialect()
HELLO = [{"role": "user", "content": "Hi"}]
OPENING = Opening(reply_id=9, model_id="m", created_unix=100, prompt_tokens=7)
DONE = ReplyFinished(Finish.END_OF_TURN, 7, 2, 5)


def _body(**fields: Any) -> bytes:
    return msgspec.json.encode({"model": "m", "max_tokens": 16, "messages": HELLO, **fields})


def _request(**fields: Any) -> GenerationRequest:
    return DIALECT.parse(_body(**fields)).requests[0]


def _answer(*parts: TextDelta | ToolCallFinished, finished: ReplyFinished = DONE, **fields: Any) -> dict[str, Any]:
    runs = tuple(part for part in parts if isinstance(part, TextDelta))
    calls = tuple(part for part in parts if isinstance(part, ToolCallFinished))
    reply = CollectedReply(runs, calls, finished, "stop")
    answer: dict[str, Any] = json.loads(DIALECT.parse(_body(**fields)).answer(OPENING, [reply]).body)
    return answer


def _text(text: str, tokens: int = 1, channel: Channel = Channel.TEXT) -> TextDelta:
    return TextDelta(channel, text, tokens)


def test_parse_smallest_request_leaves_everything_to_the_defaults() -> None:
    exchange = DIALECT.parse(_body())
    assert (exchange.model, exchange.is_stream, exchange.route) == ("m", False, "POST /v1/messages")
    prompt = ChatPrompt(messages=(Message(role="user", content="Hi"),))
    assert exchange.requests == (GenerationRequest(prompt=prompt, max_tokens=16),)


def test_parse_takes_every_field_that_has_an_effect() -> None:
    request = _request(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stop_sequences=["END", "\n\n"],
        tool_choice={"type": "none"},
        cache_control={"type": "ephemeral"},
    )
    assert request.sampling == SamplingOverrides(temperature=0.5, top_p=0.9, top_k=40)
    assert request.stop == ("END", "\n\n")
    assert not request.parse_tools
    assert request.pins == (MessagePin(0, 300_000),)


def test_parse_ignores_what_has_no_meaning_here() -> None:
    assert _request(metadata={"user_id": "u"}, service_tier="auto", speed="fast", betas=["x"]) == _request()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"model": None}, "names no model"),
        ({"model": ""}, "names no model"),
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"max_tokens": "5"}, "max_tokens: expected `integer | null`, got `string`"),
        ({"messages": [{"role": "user"}]}, "messages[0]: object missing required field `content`"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "missing required field `type`"),
        ({"temperature": -0.1}, "temperature must be between 0 and 2, got -0.1"),
        ({"top_p": 1.5}, "top_p must be between 0 and 1"),
        ({"top_k": -2}, "top_k must be at least 0"),
        ({"stop_sequences": [""]}, "stop_sequences must not hold an empty string"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences takes at most 16 strings, got 17"),
        ({"messages": [{"role": "assistant", "content": "The"}]}, "something to reply to"),
    ],
)
def test_parse_refuses_with_the_field_named(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(CallerError) as failure:
        _request(**fields)
    assert problem in failure.value.message
    body = msgspec.json.decode(DIALECT.error_body(failure.value))
    assert body == {"type": "error", "error": {"type": "invalid_request_error", "message": failure.value.message}}


def test_answer_is_a_message_with_usage() -> None:
    assert _answer(_text("Hel"), _text("lo")) == {
        "id": "msg_superfluid_9",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 2,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 5,
        },
    }


def test_answer_has_its_blocks_in_the_order_written() -> None:
    answer = _answer(
        _text("hm", 1, Channel.REASONING),
        _text("Let me see.", 3),
        ToolCallFinished(0, "call_9", "f", '{"a": 1e99, "b": 12345678901234567890123}', True, 6),
        _text("And:", 7),
        ToolCallFinished(1, "call_9_1", "g", "{}", True, 9),
        _text("", 9),
    )
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use", "text", "tool_use"]
    assert answer["content"][0] == {"type": "thinking", "thinking": "hm", "signature": ""}
    assert answer["content"][2]["input"] == {"a": 1e99, "b": 12345678901234567890123}
    assert answer["content"][4] == {"type": "tool_use", "id": "toolu_9_1", "name": "g", "input": {}}
    assert answer["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("arguments", "is_valid"), [('{"a": [1', False), ('{"a": NaN}', True), ('{"a": -Infinity}', True)]
)
def test_answer_has_a_call_that_cannot_be_read_as_text(arguments: str, is_valid: bool) -> None:
    answer = _answer(ToolCallFinished(0, "call_9", 'f"', arguments, is_valid, 6))
    assert answer["content"] == [{"type": "text", "text": '{"name": "f\\"", "arguments": ' + arguments}]
    assert answer["stop_reason"] == "end_turn"


def test_answer_without_a_word_has_no_blocks() -> None:
    assert _answer()["content"] == []


@pytest.mark.parametrize(
    ("finished", "max_tokens", "reason"),
    [
        (ReplyFinished(Finish.END_OF_TURN, 7, 0, 5), 16, "end_turn"),
        (ReplyFinished(Finish.LENGTH, 7, 0, 5), 5, "max_tokens"),
        (ReplyFinished(Finish.LENGTH, 7, 0, 5), 16, "model_context_window_exceeded"),
        (ReplyFinished(Finish.END_OF_TURN, 7, 0, 5, stopped_by="END"), 16, "stop_sequence"),
    ],
)
def test_answer_says_why_it_ended(finished: ReplyFinished, max_tokens: int, reason: str) -> None:
    answer = _answer(_text("x"), finished=finished, max_tokens=max_tokens)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, finished.stopped_by)


def test_answer_that_was_cut_behind_a_call_says_so() -> None:
    call = ToolCallFinished(0, "call_9", "f", "{}", True, 5)
    answer = _answer(call, finished=ReplyFinished(Finish.LENGTH, 7, 0, 16))
    assert (answer["content"][0]["type"], answer["stop_reason"]) == ("tool_use", "max_tokens")


@pytest.mark.parametrize(
    ("warm", "pins", "counts"),
    [
        (0, (), (100, 0, 0, 0, 0)),
        (60, (), (40, 0, 60, 0, 0)),
        (0, (PrefixPin(80, 300_000),), (20, 80, 0, 80, 0)),
        (60, (PrefixPin(40, 3_600_000), PrefixPin(80, 300_000)), (20, 20, 60, 20, 0)),
        (10, (PrefixPin(40, 3_600_000), PrefixPin(80, 300_000)), (20, 70, 10, 40, 30)),
        (98, (PrefixPin(80, 3_600_000),), (2, 0, 98, 0, 0)),
        (120, (), (0, 0, 100, 0, 0)),
    ],
)
def test_usage_parts_of_the_prompt_add_up(
    warm: int, pins: tuple[PrefixPin, ...], counts: tuple[int, int, int, int, int]
) -> None:
    opening = Opening(reply_id=9, model_id="m", created_unix=100, prompt_tokens=100, pins=pins)
    reply = CollectedReply((), (), ReplyFinished(Finish.END_OF_TURN, 100, warm, 5), "stop")
    usage = msgspec.json.decode(DIALECT.parse(_body()).answer(opening, [reply]).body)["usage"]
    created = usage["cache_creation"]
    parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert sum(usage[part] for part in parts) == 100
    assert counts == (
        *[usage[part] for part in parts],
        created["ephemeral_5m_input_tokens"],
        created["ephemeral_1h_input_tokens"],
    )


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_FIELDS = [
    "stream", "max_tokens", "stop_sequences", "temperature", "top_p", "top_k", "tools", "tool_choice", "thinking",
    "output_config", "output_format", "cache_control", "container", "mcp_servers", "system", "messages", "model",
    "metadata",
]  # fmt: skip
_CONTROL = st.just({"type": "ephemeral"}) | st.just({"type": "ephemeral", "ttl": "1h"}) | _JSON
_BLOCK: st.SearchStrategy[dict[str, Any]] = st.deferred(
    lambda: st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image", "x"])},
        optional={
            "text": st.text() | _JSON,
            "thinking": _JSON,
            "id": st.just("t") | _JSON,
            "name": st.just("f") | _JSON,
            "input": _JSON,
            "tool_use_id": st.just("t") | _JSON,
            "content": st.lists(_BLOCK, max_size=2) | _JSON,
            "cache_control": _CONTROL,
        },
    )
)
_CONTENT = st.text() | st.lists(_BLOCK, max_size=3)
_MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "x"]), "content": _CONTENT})
_TOOL = st.fixed_dictionaries(
    {"name": st.text(min_size=1)}, optional={"input_schema": _JSON, "type": _JSON, "cache_control": _CONTROL}
)
_MESSAGES_BODY = st.fixed_dictionaries(
    {"model": st.just("m"), "max_tokens": st.integers(1, 9), "messages": st.lists(_MESSAGE, min_size=1, max_size=4)},
    optional={"system": _CONTENT, "tools": st.lists(_TOOL, max_size=2)},
)


def _outcome(parse: Callable[[bytes], _T], body: bytes) -> _T | CallerError:
    try:
        return parse(body)
    except CallerError as error:
        return error


def _parses_or_is_the_callers_fault(body: bytes) -> None:
    exchange = _outcome(DIALECT.parse, body)
    if isinstance(exchange, CallerError):
        refusal = msgspec.json.decode(DIALECT.error_body(exchange))
        assert (refusal["type"], refusal["error"]["type"]) == ("error", "invalid_request_error")
        assert refusal["error"]["message"]
    else:
        request = exchange.requests[0]
        assert isinstance(request.prompt, ChatPrompt)
        assert all(0 <= pin.message < len(request.prompt.messages) for pin in request.pins)
        msgspec.json.encode(exchange.requests)
    counted = _outcome(parse_count, body)
    assert counted.message if isinstance(counted, CallerError) else counted[0]


@given(st.binary(max_size=60))
def test_parse_of_any_bytes_parses_or_is_the_callers_fault(body: bytes) -> None:
    _parses_or_is_the_callers_fault(body)


@given(_MESSAGES_BODY, st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=2))
def test_parse_of_any_json_parses_or_is_the_callers_fault(body: dict[str, Any], noise: dict[str, Any]) -> None:
    _parses_or_is_the_callers_fault(msgspec.json.encode({**body, **noise}))
