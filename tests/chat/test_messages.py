"""Which shape of messages a template wants, and giving it to it."""

from typing import Any

import pytest

from superfluid.chat.guard import LookAlikes, TextGuard
from superfluid.chat.messages import MessageShape, ProbeRender, probe_append_stability, probe_shape, shape_messages
from superfluid.domain.request import Message, ToolCall

_GUARD = TextGuard(LookAlikes(()), frozenset())
_CALL = ToolCall(id="call_1", name="f", arguments='{"a": 1}')


def _shape(message: Message, shape: MessageShape) -> dict[str, Any]:
    return shape_messages([message], shape, _GUARD).dicts[0]


def test_arguments_become_an_object_or_stay_text_as_the_template_wants() -> None:
    message = Message(role="assistant", tool_calls=(_CALL,))
    assert _shape(message, MessageShape())["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    text = _shape(message, MessageShape(has_text_arguments=True))
    assert text["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'


@pytest.mark.parametrize(("arguments", "expected"), [("", {}), ("not json", "not json"), ("[1]", "[1]")])
def test_arguments_that_are_no_object_stay_text(arguments: str, expected: object) -> None:
    call = ToolCall(id="1", name="f", arguments=arguments)
    shaped = _shape(Message(role="assistant", tool_calls=(call,)), MessageShape())
    assert shaped["tool_calls"][0]["function"]["arguments"] == expected


def test_content_beside_calls_is_null_only_where_wanted_and_only_if_empty() -> None:
    shape = MessageShape(has_null_content=True)
    assert _shape(Message(role="assistant", tool_calls=(_CALL,)), shape)["content"] is None
    assert _shape(Message(role="assistant", content="x", tool_calls=(_CALL,)), shape)["content"] == "x"
    assert _shape(Message(role="assistant"), shape)["content"] == ""


def test_reasoning_goes_under_the_name_the_template_uses() -> None:
    shaped = _shape(Message(role="assistant", reasoning="hm"), MessageShape(reasoning_key="thinking"))
    assert shaped["thinking"] == "hm"


def test_tool_result_without_a_name_gets_that_of_its_call() -> None:
    messages = [
        Message(role="assistant", tool_calls=(_CALL,)),
        Message(role="tool", tool_call_id="call_1", content="r"),
    ]
    assert shape_messages(messages, MessageShape(), _GUARD).dicts[1]["name"] == "f"


def test_short_ids_are_nine_letters_and_digits_and_agree_between_call_and_result() -> None:
    messages = [
        Message(role="assistant", tool_calls=(_CALL,)),
        Message(role="tool", tool_call_id="call_1", content="r"),
    ]
    call, result = shape_messages(messages, MessageShape(has_short_ids=True), _GUARD).dicts
    assert len(result["tool_call_id"]) == 9
    assert result["tool_call_id"].isalnum()
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]


def test_folded_system_turn_begins_the_first_user_turn() -> None:
    messages = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="Hi"),
        Message(role="assistant"),
    ]
    shaped = shape_messages(messages, MessageShape(folds_system=True), _GUARD)
    assert [message["content"] for message in shaped.dicts] == ["Be brief.\n\nHi", ""]
    assert shaped.indices == [1, 2]


def test_folded_system_turn_alone_becomes_a_user_turn() -> None:
    shaped = shape_messages([Message(role="system", content="Be brief.")], MessageShape(folds_system=True), _GUARD)
    assert shaped.dicts == [{"role": "user", "content": "Be brief."}]


# ---- probes: stand-ins for templates


def _renders(write_call: Any, *, has_system: bool = True) -> ProbeRender:
    def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, has_header: bool) -> str | None:
        del tools, has_header
        parts = []
        for message in messages:
            if message["role"] == "system" and not has_system:
                return None
            parts.append(f"{message['role']}:{message['content']}")
            for call in message.get("tool_calls", ()):
                written = write_call(call, message)
                if written is None:
                    return None
                parts.append(written)
        return "\n".join(parts)

    return render


def _json_text(call: dict[str, Any], _: dict[str, Any]) -> str | None:
    arguments = call["function"]["arguments"]
    return f"{call['function']['name']} {arguments}" if isinstance(arguments, str) else None


def _python_object(call: dict[str, Any], _: dict[str, Any]) -> str:
    return f"{call['function']['name']} {call['function']['arguments']}"


def _keys(call: dict[str, Any], _: dict[str, Any]) -> str:
    (key, value), *_rest = call["function"]["arguments"].items()
    return f"<{call['function']['name']}><{key}>{value}"


def test_probe_of_a_template_that_wants_text_arguments_finds_it() -> None:
    assert probe_shape(_renders(_json_text), "").has_text_arguments
    assert probe_shape(_renders(_python_object), "").has_text_arguments


def test_probe_of_a_template_that_walks_the_arguments_finds_an_object() -> None:
    shape = probe_shape(_renders(_keys), "")
    assert shape.writes_calls
    assert not shape.has_text_arguments


def test_probe_of_a_template_that_wants_short_ids_finds_it() -> None:
    def write(call: dict[str, Any], message: dict[str, Any]) -> str | None:
        return _keys(call, message) if len(call["id"]) == 9 else None

    assert probe_shape(_renders(write), "").has_short_ids


def test_probe_of_a_template_without_calls_says_so() -> None:
    assert not probe_shape(_renders(lambda *_: ""), "").writes_calls


def test_probe_of_a_template_that_refuses_system_turns_folds_them() -> None:
    assert probe_shape(_renders(_keys, has_system=False), "").folds_system
    assert not probe_shape(_renders(_keys), "").folds_system


def test_probe_of_a_template_that_refuses_everything_tries_text_and_parts_once() -> None:
    calls = []

    def refuse(*arguments: object) -> None:
        calls.append(arguments)

    assert probe_shape(refuse, "") == MessageShape()
    assert len(calls) == 2


def test_append_stability_is_lost_where_old_turns_change() -> None:
    def stable(messages: list[dict[str, Any]], _: object, has_header: bool) -> str:
        turns = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return turns + ("<assistant>" if has_header else "")

    def forgetful(messages: list[dict[str, Any]], tools: object, has_header: bool) -> str:
        return stable(messages[-2:], tools, has_header)

    assert probe_append_stability(stable)
    assert not probe_append_stability(forgetful)
    assert not probe_append_stability(lambda *_: None)
