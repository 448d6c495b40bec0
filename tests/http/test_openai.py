"""Chat completions: the request's every field, and whole answers. No server."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.fuzzing.bodies import ANY_JSON, parses_or_is_the_callers_fault

from superfluid.domain.reply import (
    Channel,
    Finish,
    ReplyFinished,
    TextDelta,
    TokenAlternative,
    TokenLogprob,
    ToolCallFinished,
)
from superfluid.domain.request import ChatPrompt, GenerationRequest, Message, SamplingOverrides, ToolCall
from superfluid.errors import CallerError, InvalidRequestError
from superfluid.http.collect import CollectedReply
from superfluid.http.dialect import Dialect, Opening
from superfluid.http.openai import ChatDialect
from superfluid.http.openai_completions import CompletionsDialect

DIALECT: Dialect = ChatDialect()
HELLO = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
OPENING = Opening(reply_id=9, model_id="m", created_unix=100, prompt_tokens=7)


def _body(**fields: Any) -> bytes:
    return msgspec.json.encode({"model": "m", "messages": HELLO, **fields})


def _request(**fields: Any) -> GenerationRequest:
    return DIALECT.parse(_body(**fields)).requests[0]


def _prompt(**fields: Any) -> ChatPrompt:
    prompt = _request(**fields).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def _refusal(**fields: Any) -> CallerError:
    with pytest.raises(CallerError) as failure:
        DIALECT.parse(_body(**fields))
    return failure.value


def test_parse_smallest_request_leaves_everything_to_the_defaults() -> None:
    exchange = DIALECT.parse(_body())
    assert (exchange.model, exchange.is_stream) == ("m", False)
    assert exchange.requests == (GenerationRequest(prompt=ChatPrompt(messages=(Message(role="user", content="Hi"),))),)


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"max_tokens": -1}, "without it a reply may fill the window"),
        ({"model": None}, "GET /v1/models says what is served"),
        ({"max_tokens": "5"}, "max_tokens: expected `integer | null`, got `string`"),
        ({"stream": 1.5}, "stream: expected `boolean | null`, got `number`"),
        ({"messages": [{}]}, "messages[0]: object missing required field `role`"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "this route takes text only, not image_url",
        ),
    ],
)
def test_parse_refusal_says_what_to_do_instead(fields: dict[str, Any], hint: str) -> None:
    assert hint in _refusal(**fields).message


def test_parse_null_is_absent() -> None:
    names = [
        "stream",
        "max_tokens",
        "stop",
        "temperature",
        "n",
        "tools",
        "tool_choice",
        "response_format",
        "logit_bias",
    ]
    assert DIALECT.parse(_body(**dict.fromkeys(names))).requests == DIALECT.parse(_body()).requests


def test_parse_sampling_fields() -> None:
    overrides = _request(
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-2,
        frequency_penalty=2,
        seed=5,
        logit_bias={"7": 100, "x": 1, "-1": 1, "8": -100, "99999999999": 1},
    ).sampling
    assert overrides == SamplingOverrides(
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        repeat_penalty=1.1,
        presence_penalty=-2,
        frequency_penalty=2,
        seed=5,
        logit_bias={7: 100, 8: -100},
    )


def test_parse_repeat_penalty_wins_over_its_other_name() -> None:
    assert _request(repeat_penalty=1.2, repetition_penalty=1.1).sampling.repeat_penalty == 1.2


@pytest.mark.parametrize(
    ("given_seed", "seed"), [(0, 0), (-1, None), (-2, 2**63 - 2), (2**63, 0), (10**30, 10**30 % 2**63)]
)
def test_parse_seed_is_any_integer_and_minus_one_is_random(given_seed: int, seed: int | None) -> None:
    body = _body().replace(b'"model"', b'"seed":%d,"model"' % given_seed)
    assert DIALECT.parse(body).requests[0].sampling.seed == seed


@pytest.mark.parametrize(("top_k", "expected"), [(0, 0), (-1, 0), (2**40, 2**31 - 1)])
def test_parse_top_k_without_effect(top_k: int, expected: int) -> None:
    assert _request(top_k=top_k).sampling.top_k == expected


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 2**60}, 2**31 - 1),
    ],
)
def test_parse_token_limits(fields: dict[str, Any], limit: int | None) -> None:
    assert _request(**fields).max_tokens == limit


def test_parse_stop_is_a_string_or_several() -> None:
    assert _request(stop="a").stop == ("a",)
    assert _request(stop=["a", "bc"]).stop == ("a", "bc")
    assert _request(stop=[]).stop == ()


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": True, "top_logprobs": 21}, 20),
    ],
)
def test_parse_logprobs(fields: dict[str, Any], logprobs: int | None) -> None:
    assert _request(**fields).logprobs == logprobs


def test_parse_n_makes_requests_with_a_seed_each() -> None:
    assert [request.sampling.seed for request in DIALECT.parse(_body(n=3, seed=2**63 - 1)).requests] == [
        2**63 - 1,
        0,
        1,
    ]
    assert [request.sampling.seed for request in DIALECT.parse(_body(n=2)).requests] == [None, None]


def test_parse_n_of_a_stream_is_ignored() -> None:
    assert len(DIALECT.parse(_body(n=1000, stream=True)).requests) == 1


def test_parse_messages_of_every_role() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    object_call = {"function": {"name": "g", "arguments": {"b": 2}}}
    messages = [
        {"role": "developer", "content": "rules"},
        {"role": "system", "content": [{"type": "text", "text": "more"}, {"type": "text", "text": "rules"}]},
        {"role": "critic", "content": "hm", "name": "anna"},
        {"role": "assistant", "content": None, "tool_calls": [call, object_call], "reasoning_content": "why"},
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "42"},
        {"role": "assistant", "content": "done", "reasoning": "because"},
        {"role": "user", "content": [{"type": "widget", "text": 5}, {"type": "text", "text": "ok"}], "reasoning": "no"},
    ]
    assert _prompt(messages=messages).messages == (
        Message(role="system", content="rules"),
        Message(role="system", content="more\nrules"),
        Message(role="user", content="hm", name="anna"),
        Message(
            role="assistant",
            reasoning="why",
            tool_calls=(
                ToolCall(id="c1", name="f", arguments='{"a":1}'),
                ToolCall(id="call_3_1", name="g", arguments='{"b":2}'),
            ),
        ),
        Message(role="tool", content="42", tool_call_id="c1", name="f"),
        Message(role="assistant", content="done", reasoning="because"),
        Message(role="user", content="ok"),
    )


@pytest.mark.parametrize("choice", [None, "auto", "nonsense", 5, {"type": "allowed_tools"}])
def test_parse_tools_are_declared_unless_none_is_chosen(choice: Any) -> None:
    assert _prompt(tools=[TOOL], tool_choice=choice).tools == (TOOL,)
    assert _request(tools=[TOOL], tool_choice=choice).parse_tools


def test_parse_tool_choice_none_declares_nothing_and_parses_nothing() -> None:
    request = _request(tools=[TOOL], tool_choice="none")
    assert isinstance(request.prompt, ChatPrompt)
    assert (request.prompt.tools, request.parse_tools) == ((), False)


def test_parse_template_arguments_win_over_their_short_forms() -> None:
    kwargs = {"enable_thinking": True, "color": "red"}
    prompt = _prompt(chat_template_kwargs=kwargs, enable_thinking=False, reasoning_effort="low")
    assert prompt.template_kwargs == {"enable_thinking": True, "color": "red", "reasoning_effort": "low"}


def test_parse_response_format_text_is_what_happens_anyway() -> None:
    assert _request(response_format={"type": "text"}) == _request()


def test_parse_unknown_fields_and_repeated_ones_are_no_error() -> None:
    body = b'{"model":"x","model":"m","user":{"deep":[1]},"messages":[{"role":"user","content":"Hi","x":1}]}'
    assert DIALECT.parse(body).requests == DIALECT.parse(_body()).requests
    assert DIALECT.parse(body).model == "m"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": None}, "invalid_request", "model"),
        ({"model": ""}, "invalid_request", "model"),
        ({"model": 5}, "invalid_request", "model"),
        ({"messages": []}, "invalid_request", "messages"),
        ({"messages": None}, "invalid_request", "messages"),
        ({"messages": "Hi"}, "invalid_request", "messages"),
        ({"messages": ["Hi"]}, "invalid_request", "messages[0]"),
        ({"messages": [*HELLO, {"content": "x"}]}, "invalid_request", "messages[1]"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_request", "messages[0].content"),
        ({"messages": [{"role": 5}]}, "invalid_request", "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "invalid_request",
            "messages[0].content[0].text",
        ),
        (
            {"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
            "unsupported_input",
            "messages[1].content",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "unsupported_input",
            "messages[0].content",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]},
            "invalid_request",
            "messages[0].tool_calls[0].function",
        ),
        ({"stream": "yes"}, "invalid_request", "stream"),
        ({"stream_options": 5}, "invalid_request", "stream_options"),
        ({"max_tokens": "5"}, "invalid_request", "max_tokens"),
        ({"max_tokens": 1.5}, "invalid_request", "max_tokens"),
        ({"max_tokens": True}, "invalid_request", "max_tokens"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": -1}, "invalid_value", "max_tokens"),
        ({"max_completion_tokens": 0}, "invalid_value", "max_completion_tokens"),
        ({"temperature": "hot"}, "invalid_request", "temperature"),
        ({"temperature": 2.1}, "invalid_value", "temperature"),
        ({"temperature": -0.1}, "invalid_value", "temperature"),
        ({"top_p": 1.1}, "invalid_value", "top_p"),
        ({"min_p": -1}, "invalid_value", "min_p"),
        ({"top_k": -2}, "invalid_value", "top_k"),
        ({"repeat_penalty": 3}, "invalid_value", "repeat_penalty"),
        ({"repetition_penalty": -1}, "invalid_value", "repetition_penalty"),
        ({"presence_penalty": 2.5}, "invalid_value", "presence_penalty"),
        ({"frequency_penalty": -2.5}, "invalid_value", "frequency_penalty"),
        ({"seed": "5"}, "invalid_request", "seed"),
        ({"n": 0}, "invalid_value", "n"),
        ({"n": 129}, "invalid_value", "n"),
        ({"n": "2"}, "invalid_request", "n"),
        ({"stop": 5}, "invalid_request", "stop"),
        ({"stop": [5]}, "invalid_request", "stop[0]"),
        ({"stop": ""}, "invalid_value", "stop"),
        ({"stop": ["a", ""]}, "invalid_value", "stop"),
        ({"stop": ["a"] * 17}, "invalid_value", "stop"),
        ({"logprobs": 5}, "invalid_request", "logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "invalid_value", "top_logprobs"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logit_bias": [1]}, "invalid_request", "logit_bias"),
        ({"logit_bias": {"1": 101}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"x": -101}}, "invalid_value", "logit_bias"),
        ({"tools": {}}, "invalid_request", "tools"),
        ({"tools": [5]}, "invalid_request", "tools[0]"),
        ({"tools": [TOOL, {"type": "web_search"}]}, "unsupported_parameter", "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "invalid_request", "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "invalid_request", "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]},
            "invalid_request",
            "tools[0].function.parameters",
        ),
        ({"tools": [TOOL], "tool_choice": "required"}, "unsupported_parameter", "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "unsupported_parameter",
            "tool_choice",
        ),
        ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "unsupported_parameter", "response_format"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        ({"response_format": "text"}, "invalid_request", "response_format"),
        ({"chat_template_kwargs": 5}, "invalid_request", "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "invalid_value", "chat_template_kwargs.messages"),
        ({"enable_thinking": "no"}, "invalid_request", "enable_thinking"),
        ({"reasoning_effort": 3}, "invalid_request", "reasoning_effort"),
    ],
)
def test_parse_bad_field_is_refused_by_name(fields: dict[str, Any], code: str, param: str) -> None:
    error = _refusal(**fields)
    assert (error.code, error.param) == (code, param)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b"{", "truncated"),
        (b'{"model": nope}', "byte 1[0-9]"),
        (b'{"model":"m"} trailing', "byte 1[0-9]"),
        (b'{"model":"\xff"}', "UTF-8"),
        (b'{"model":"m","messages":NaN}', "byte 24"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'{"a":' + b"[" * 100_000, "deeply"),
        (b'{"temperature":1e999}', "range"),
    ],
)
def test_parse_malformed_body_says_where(body: bytes, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        DIALECT.parse(body)


def test_answer_has_the_whole_shape() -> None:
    exchange = DIALECT.parse(_body())
    reply = CollectedReply((TextDelta(Channel.TEXT, "Hi", 1),), (), ReplyFinished(Finish.END_OF_TURN, 7, 99, 2), "stop")
    answer = exchange.answer(OPENING, [reply])
    assert msgspec.json.decode(answer.body) == {
        "id": "chatcmpl-superfluid-9",
        "object": "chat.completion",
        "created": 100,
        "model": "m",
        "system_fingerprint": "superfluid",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi"},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 2,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 7},
        },
    }
    assert answer.headers == ((b"x-superfluid-warm", b"99"),)


def test_answer_of_several_replies_sums_the_completions_and_counts_the_prompt_once() -> None:
    replies = [
        CollectedReply((TextDelta(Channel.TEXT, text, 1),), (), ReplyFinished(Finish.LENGTH, 7, warm, 3), "length")
        for text, warm in (("a", 2), ("b", 6))
    ]
    answer = msgspec.json.decode(DIALECT.parse(_body(n=2)).answer(OPENING, replies).body)
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a", "b"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["usage"]["total_tokens"] == 13
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


def test_answer_with_calls_and_reasoning_has_no_content() -> None:
    reply = CollectedReply(
        (TextDelta(Channel.REASONING, "hm", 1),),
        (ToolCallFinished(0, "call_1", "f", '{"a":1}', True, 5),),
        ReplyFinished(Finish.END_OF_TURN, 7, 0, 5),
        "tool_calls",
    )
    choice = msgspec.json.decode(DIALECT.parse(_body()).answer(OPENING, [reply]).body)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [
            {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
        ],
    }


def test_answer_with_logprobs_gives_exact_bytes_of_partial_characters() -> None:
    entry = TokenLogprob(TokenAlternative(5, b"\xe2\x82", -0.5), (TokenAlternative(6, b"a", -1.5),))
    reply = CollectedReply(
        (TextDelta(Channel.TEXT, "", 1, (entry,)),), (), ReplyFinished(Finish.LENGTH, 7, 0, 1), "length"
    )
    exchange = DIALECT.parse(_body(logprobs=True, top_logprobs=1))
    choice = msgspec.json.decode(exchange.answer(OPENING, [reply]).body)["choices"][0]
    assert choice["logprobs"]["content"] == [
        {
            "token": "\ufffd",
            "logprob": -0.5,
            "bytes": [0xE2, 0x82],
            "top_logprobs": [{"token": "a", "logprob": -1.5, "bytes": [97]}],
        }
    ]


_CHAT_FIELDS = [
    "stream", "stream_options", "max_tokens", "max_completion_tokens", "stop", "ignore_eos", "temperature", "top_p",
    "top_k", "min_p", "repeat_penalty", "presence_penalty", "seed", "logit_bias", "n", "logprobs", "top_logprobs",
    "tools", "tool_choice", "response_format", "chat_template_kwargs", "enable_thinking", "reasoning_effort", "prompt",
    "echo", "suffix", "fim_mode", "messages", "model",
]  # fmt: skip
_PART = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", "other"])}, optional={"text": ANY_JSON})
_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "developer"])},
    optional={
        "content": ANY_JSON | st.lists(_PART, max_size=3),
        "tool_calls": ANY_JSON,
        "name": ANY_JSON,
        "reasoning": ANY_JSON,
    },
)
_TOOL = st.fixed_dictionaries(
    {"type": st.just("function")},
    optional={"function": st.fixed_dictionaries({}, optional={"name": ANY_JSON, "parameters": ANY_JSON})},
)
_BODY = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        "messages": st.lists(_MESSAGE, min_size=1, max_size=3),
        "prompt": st.text() | st.lists(st.integers() | st.text(), max_size=3),
        "tools": st.lists(_TOOL, max_size=2),
    },
)


@given(st.sampled_from([ChatDialect(), CompletionsDialect()]), st.binary(max_size=60))
def test_parse_of_any_bytesparses_or_is_the_callers_fault(dialect: Dialect, body: bytes) -> None:
    exchange = parses_or_is_the_callers_fault(dialect, body)
    assert exchange is None or exchange.requests


@given(
    st.sampled_from([ChatDialect(), CompletionsDialect()]),
    _BODY,
    st.dictionaries(st.sampled_from(_CHAT_FIELDS), ANY_JSON, max_size=2),
)
def test_parse_of_any_json_parses_or_is_the_callers_fault(
    dialect: Dialect, body: dict[str, Any], noise: dict[str, Any]
) -> None:
    exchange = parses_or_is_the_callers_fault(dialect, msgspec.json.encode({**body, **noise}))
    assert exchange is None or exchange.requests
