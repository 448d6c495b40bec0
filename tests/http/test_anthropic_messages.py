"""Anthropic's messages, blocks and tools as the domain's conversation."""

from typing import Any

import msgspec
import pytest

from superfluid.domain.request import ChatPrompt, Message, ToolCall
from superfluid.errors import CallerError, UnsupportedInputError, UnsupportedParameterError
from superfluid.http.anthropic_messages import conversation, refuse_constraints
from superfluid.http.anthropic_types import MessagesBody
from superfluid.http.json_codec import decode_body

HELLO: list[Any] = [{"role": "user", "content": "Hi"}]
TOOL: dict[str, Any] = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
CALL: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1, "ü"]}}


def _prompt(**fields: Any) -> ChatPrompt:
    body = msgspec.convert({"messages": HELLO, **fields}, MessagesBody)
    refuse_constraints(body)
    return conversation(body).prompt


def _messages(*messages: Any, **fields: Any) -> list[Message]:
    return list(_prompt(messages=list(messages), **fields).messages)


def _user(text: str) -> Message:
    return Message(role="user", content=text)


def test_text_alone_is_one_message() -> None:
    assert _prompt() == ChatPrompt(messages=(_user("Hi"),))


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ("Be kind.", "Be kind."),
        ([{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Be brief."}], "Be kind.\nBe brief."),
    ],
)
def test_system_becomes_the_first_message(system: Any, text: str) -> None:
    assert _messages(*HELLO, system=system) == [Message(role="system", content=text), _user("Hi")]


@pytest.mark.parametrize("system", ["", [], None, [{"type": "text", "text": ""}]])
def test_empty_system_is_none(system: Any) -> None:
    assert _messages(*HELLO, system=system) == [_user("Hi")]


def test_system_message_among_the_others_is_one_there() -> None:
    assert _messages(*HELLO, {"role": "system", "content": "Now in French."})[1] == Message(
        role="system", content="Now in French."
    )


def test_user_texts_are_separate_lines_within_and_across_messages() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert _messages({"role": "user", "content": blocks}, {"role": "user", "content": "c"}) == [_user("a\nb\nc")]


def test_empty_message_is_an_empty_turn() -> None:
    assert _messages({"role": "user", "content": []}) == _messages({"role": "user", "content": ""}) == [_user("")]


def test_many_small_blocks_are_read_in_one_go() -> None:
    """Joined pairwise they would take minutes."""
    blocks = [{"type": "text", "text": "word"}] * 100_000
    (user, reply, _) = _messages({"role": "user", "content": blocks}, {"role": "assistant", "content": blocks}, *HELLO)
    assert (len(user.content), len(reply.content)) == (499_999, 400_000)


def test_reply_sent_back_is_one_message_with_its_thoughts_and_calls() -> None:
    reply = [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "Let me "},
        {"type": "text", "text": "look."},
        CALL,
    ]
    assert _messages(*HELLO, {"role": "assistant", "content": reply}, *HELLO)[1] == Message(
        role="assistant",
        content="Let me look.",
        reasoning="hm",
        tool_calls=(ToolCall(id="toolu_1", name="f", arguments='{"a":[1,"ü"]}'),),
    )


def test_reply_sent_back_in_parts_is_one_message() -> None:
    first = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]}
    reply, _ = _messages(first, *[{"role": "assistant", "content": part} for part in ([CALL], "b")], *HELLO)
    assert (reply.content, reply.reasoning, len(reply.tool_calls)) == ("ab", "hm", 1)


@pytest.mark.parametrize(
    ("content", "prefill"),
    [
        ("The answer is", "The answer is"),
        ([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "A"}], "A"),
    ],
)
def test_reply_that_was_begun_is_what_the_model_goes_on_behind(content: Any, prefill: str) -> None:
    prompt = _prompt(messages=[*HELLO, {"role": "assistant", "content": content}])
    assert (prompt.messages, prompt.prefill) == ((_user("Hi"),), prefill)


def test_results_of_calls_are_messages_of_their_own_before_the_text() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "4"},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "text", "text": "a"}] * 2},
        {"type": "tool_result", "tool_use_id": "toolu_3", "is_error": True},
        {"type": "text", "text": "Go on."},
    ]
    assert _messages({"role": "user", "content": blocks}) == [
        Message(role="tool", content="4", tool_call_id="toolu_1"),
        Message(role="tool", content="a\na", tool_call_id="toolu_2"),
        Message(role="tool", content="", tool_call_id="toolu_3"),
        _user("Go on."),
    ]


def test_tools_are_declared_in_the_form_that_templates_know() -> None:
    (tool, bare) = _prompt(tools=[{**TOOL, "type": "custom"}, {"name": "g", "input_schema": {}}]).tools
    assert tool == {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    assert bare == {"type": "function", "function": {"name": "g", "parameters": {}}}


@pytest.mark.parametrize(
    ("choice", "count"), [(None, 1), ({"type": "auto", "disable_parallel_tool_use": True}, 1), ({"type": "none"}, 0)]
)
def test_tool_choice_decides_whether_tools_are_declared(choice: Any, count: int) -> None:
    assert len(_prompt(tools=[TOOL], tool_choice=choice).tools) == count


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({}, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"output_config": {"format": None}}, {}),
    ],
)
def test_thinking_and_effort_reach_the_template(fields: dict[str, Any], kwargs: dict[str, Any]) -> None:
    assert _prompt(**fields).template_kwargs == kwargs


@pytest.mark.parametrize("kind", ["image", "document", "search_result"])
def test_block_that_cannot_be_shown_is_refused_wherever_it_is(kind: str) -> None:
    block = {"type": kind, "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    for content, path in (([block], "messages[0].content[0]"), ([result], "messages[0].content[0].content[0]")):
        with pytest.raises(UnsupportedInputError) as failure:
            _messages({"role": "user", "content": content})
        assert failure.value.message == f"{path}: this route takes text only, not {kind}"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"tool_choice": {"type": "any"}}, "cannot force a call yet"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "cannot force a call yet"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "cannot force JSON yet"),
        ({"output_format": {"type": "json_schema"}}, "cannot force JSON yet"),
        ({"mcp_servers": [{"url": "x"}]}, "runs no tools itself"),
        ({"container": "c"}, "runs no tools itself"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "none of Anthropic's own tools"),
    ],
)
def test_what_this_server_cannot_do_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnsupportedParameterError) as failure:
        _prompt(**fields)
    assert problem in failure.value.message


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"messages": []}, "messages must hold at least one message"),
        ({"messages": None}, "messages must hold at least one message"),
        ({"messages": [{"role": "user", "content": [{"type": "redacted_thinking"}]}]}, "nothing that the model could"),
        ({"messages": [*HELLO, {"role": "assistant", "content": [CALL]}]}, "has calls, but no results follow"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "something to reply to"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role must be 'user' or 'assistant'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text: expected a"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id: expected a non-empty"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": 5}]}]},
            "messages[0].content[0].content: expected a string or a list of blocks",
        ),
        ({"messages": [{"role": "assistant", "content": [{**CALL, "input": "{}"}]}]}, "input: expected an object"),
        ({"messages": [{"role": "assistant", "content": [{**CALL, "id": ""}]}]}, "id: expected a non-empty string"),
        ({"messages": [{"role": "assistant", "content": [{**CALL, "name": None}]}]}, "name: expected a non-empty"),
        ({"messages": [{"role": "assistant", "content": [{"type": "thinking"}]}]}, "thinking: expected a string"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema: expected an object"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name: expected a non-empty string"),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice.type must be"),
        ({"thinking": {"type": "maybe"}}, "thinking.type must be"),
        ({"system": [{"type": "image"}]}, "system[0].type must be 'text'"),
        ({"messages": [{"role": "system", "content": [{"type": "x"}]}]}, "messages[0].content[0].type must be 'text'"),
    ],
)
def test_what_means_nothing_is_refused_with_its_place(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(CallerError) as failure:
        _prompt(**fields)
    assert problem in failure.value.message


@pytest.mark.parametrize("depth", [10, 400, 700, 900, 950, 980, 5000])
def test_input_nested_as_deeply_as_json_is_read_is_a_call_or_refused(depth: int) -> None:
    block = {**CALL, "input": "HERE"}
    message = msgspec.json.encode({"messages": [{"role": "assistant", "content": [block]}, *HELLO]})
    body = message.replace(b'"HERE"', b'{"a":' + b"[" * depth + b"]" * depth + b"}")
    outcome = _outcome(body)
    assert isinstance(outcome, ChatPrompt) if depth < 100 else outcome


def _outcome(body: bytes) -> ChatPrompt | str:
    try:
        return conversation(decode_body(msgspec.json.Decoder(MessagesBody), body)).prompt
    except CallerError as error:
        return error.message
