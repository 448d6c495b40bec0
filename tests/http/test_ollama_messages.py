"""Conversations of Ollama's API, whose results name what they answer in several ways."""

from typing import Any

import msgspec
import pytest

from superfluid.domain.request import Message, ToolCall
from superfluid.errors import InvalidRequestError, UnsupportedInputError, UnsupportedParameterError
from superfluid.http.ollama_messages import conversation, declared_tools
from superfluid.http.ollama_types import ChatMessage

F = {"function": {"name": "f", "arguments": {"a": 1}}}
G = {"function": {"name": "g", "arguments": {}}}
CALLS = {"role": "assistant", "tool_calls": [F, G, F]}


def _conversation(*messages: dict[str, Any]) -> tuple[Message, ...]:
    return conversation(msgspec.convert(list(messages), list[ChatMessage]))


def _answered(*results: dict[str, Any], calls: dict[str, Any] = CALLS) -> list[str | None]:
    messages = _conversation(calls, *({"role": "tool", "content": "42", **result} for result in results))
    return [message.tool_call_id for message in messages[1:]]


def test_messages_of_every_role() -> None:
    assert _conversation(
        {"role": "developer", "content": "rules"},
        {"role": "critic", "content": "hm"},
        {"role": "user", "images": []},
        {"role": "assistant", "content": "so", "thinking": "why", "tool_calls": [{"id": "c1", **F}]},
        {"role": "tool", "content": "42", "tool_name": "f", "unheard_of": 1},
    ) == (
        Message(role="system", content="rules"),
        Message(role="user", content="hm"),
        Message(role="user"),
        Message(
            role="assistant",
            content="so",
            reasoning="why",
            tool_calls=(ToolCall(id="c1", name="f", arguments='{"a":1}'),),
        ),
        Message(role="tool", content="42", tool_call_id="c1", name="f"),
    )


@pytest.mark.parametrize(
    ("results", "answered"),
    [
        ([{"tool_name": "g"}, {"tool_name": "f"}, {"tool_name": "f"}], ["call_0_1", "call_0_0", "call_0_2"]),
        ([{"name": "g"}], ["call_0_1"]),
        ([{}, {}, {}], ["call_0_0", "call_0_1", "call_0_2"]),
        ([{"tool_call_id": "call_0_2"}, {}], ["call_0_2", "call_0_0"]),
        ([{"tool_call_id": "theirs"}], ["call_0_0"]),
        ([{"tool_call_id": "theirs", "tool_name": "g"}], ["call_0_1"]),
    ],
)
def test_result_answers_a_call_by_id_or_by_name_or_in_order(results: list[dict[str, Any]], answered: list[str]) -> None:
    assert _answered(*results) == answered


def test_result_by_id_finds_the_call_that_the_client_named() -> None:
    calls = {"role": "assistant", "tool_calls": [{"id": "a", **F}, {"id": "b", **F}]}
    assert _answered({"tool_call_id": "b"}, {"tool_call_id": "a"}, calls=calls) == ["b", "a"]
    with pytest.raises(InvalidRequestError):
        _answered({"tool_call_id": "c"}, calls=calls)


@pytest.mark.parametrize("results", [[{"tool_name": "h"}], [{}, {}, {}, {}], [{"tool_name": "g"}, {"tool_name": "g"}]])
def test_result_that_answers_no_call_is_refused(results: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\[\d\] is a result"):
        _answered(*results)


def test_result_of_an_earlier_turn_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        _conversation(CALLS, {"role": "assistant", "content": "never mind"}, {"role": "tool", "content": "42"})


def test_image_is_refused_by_its_message() -> None:
    with pytest.raises(UnsupportedInputError) as failure:
        _conversation({"role": "user", "content": "x"}, {"role": "user", "images": ["aGk="]})
    assert failure.value.param == "messages[1].images"


def test_tools_are_functions_with_or_without_a_type() -> None:
    function = {"name": "f"}
    assert declared_tools([{"function": function}, {"type": None, "function": function}]) == (
        {"function": function, "type": "function"},
        {"type": "function", "function": function},
    )
    with pytest.raises(UnsupportedParameterError):
        declared_tools([{"type": "web_search"}])
    with pytest.raises(InvalidRequestError):
        declared_tools([{"type": "function", "function": {}}])
