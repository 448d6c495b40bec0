"""Folding a log into messages."""

import json
from typing import Any

from superfluid_client import Event, Finish, Message, ToolCall
from superfluid_client.folding import fold_messages


def log(*bodies: Any) -> list[Event]:
    return [
        Event.from_json({"event_id": number, "epoch": 1, "ts_unix_ms": 0, "body": body})
        for number, body in enumerate(bodies)
    ]


def message(role: int, text: str) -> dict[str, Any]:
    return {"Message": {"role": role, "text": text, "span": [1]}}


def generated(text: str, channel: int = 0, finish: int = 0) -> dict[str, Any]:
    return {"Generated": {"span": [2], "text": text, "channel": channel, "finish": finish}}


CREATED: dict[str, Any] = {"Created": {"parent": None, "params": {}}}
PROMPT = {"GenerationPrompt": {"span": [3]}}


def test_fold_conversation_is_one_message_a_turn() -> None:
    events = log(
        CREATED,
        message(0, "Be brief."),
        message(1, "Hi"),
        PROMPT,
        generated("hm", 1),
        generated("Hel"),
        generated("lo", 0, 1),
    )
    assert fold_messages(events) == [
        Message("system", "Be brief.", 1, 1),
        Message("user", "Hi", 2, 2),
        Message("assistant", "Hello", 3, 6, reasoning="hm", finish=Finish.END_OF_TURN),
    ]


def test_fold_reply_cut_and_continued_over_a_restart_is_one_message() -> None:
    events = log(CREATED, message(1, "Hi"), PROMPT, generated("Hel"), "EpochBump", generated("lo", 0, 1))
    assert [(m.role, m.text, m.event_id, m.last_event_id) for m in fold_messages(events)] == [
        ("user", "Hi", 1, 1),
        ("assistant", "Hello", 2, 5),
    ]


def test_fold_tool_call_behind_the_finish_belongs_to_its_reply() -> None:
    events = log(
        CREATED,
        PROMPT,
        generated("{}", 2, 1),
        {"ToolUse": {"name": "f", "arguments": "{}"}},
        {"ToolResult": {"call_id": 3, "content": "rain", "span": [4]}},
        PROMPT,
        generated("It rains.", 0, 1),
    )
    reply, result, answer = fold_messages(events)
    assert reply.tool_calls == (ToolCall(3, "f", "{}"),)
    assert (result.role, result.text, result.call_id) == ("tool", "rain", 3)
    assert (answer.role, answer.text) == ("assistant", "It rains.")


def test_fold_two_replies_in_a_row_stay_two() -> None:
    events = log(CREATED, PROMPT, generated("a", 0, 1), PROMPT, generated("b", 0, 1))
    assert [m.text for m in fold_messages(events)] == ["a", "b"]


def test_fold_raw_text_orphaned_tool_result_and_image() -> None:
    image = {"blob": "00", "pre_text": "See ", "post_text": "this"}
    block = {"role": 1, "kind": 7, "payload": json.dumps(image), "span": [], "visibility_version": 2}
    diff = {"role": 1, "kind": 1, "payload": '{"path":"a"}', "span": [], "visibility_version": 2}
    events = log(
        CREATED, {"Appended": {"text": None, "span": [1]}}, message(3, "old"), {"Block": block}, {"Block": diff}
    )
    assert [(m.role, m.text) for m in fold_messages(events)] == [
        ("raw", ""),
        ("tool", "old"),
        ("user", "See this"),
        ("user", '{"path":"a"}'),
    ]


def test_fold_generated_behind_raw_text_opens_a_message() -> None:
    events = log(CREATED, {"Appended": {"text": "Once", "span": [1]}}, generated(" upon", 0, 2))
    assert [(m.role, m.text) for m in fold_messages(events)] == [("raw", "Once"), ("assistant", " upon")]
