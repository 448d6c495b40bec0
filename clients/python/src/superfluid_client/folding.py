"""Folds a session's log into the messages of a conversation. Pure."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from superfluid_client.records import Channel, Event, Finish, Message, ToolCall

_ROLES: tuple[Literal["system", "user", "assistant", "tool"], ...] = ("system", "user", "assistant", "tool")


def fold_messages(events: Iterable[Event]) -> list[Message]:
    """One message a turn, in order. Everything generated from one assistant header on is one message, however many
    generations it took; records that say nothing in the conversation are left out."""
    messages: list[Message] = []
    is_replying = False
    for event in events:
        match event.kind:
            case "Message" | "ToolResult" | "Appended" | "Block":
                messages.append(_written(event))
                is_replying = False
            case "GenerationPrompt":
                messages.append(Message("assistant", "", event.id, event.id, finish=Finish.NONE))
                is_replying = True
            case "Generated" | "ToolUse":
                if not is_replying:
                    messages.append(Message("assistant", "", event.id, event.id, finish=Finish.NONE))
                    is_replying = True
                messages[-1] = _extended(messages[-1], event)
    return messages


def _written(event: Event) -> Message:
    fields = event.fields
    match event.kind:
        case "ToolResult":
            return Message("tool", fields["content"], event.id, event.id, call_id=fields["call_id"])
        case "Appended":
            return Message("raw", fields.get("text") or "", event.id, event.id)
        case "Block":
            return Message(_ROLES[fields["role"]], _block_text(fields["payload"]), event.id, event.id)
    return Message(_ROLES[fields["role"]], fields["text"], event.id, event.id)


def _block_text(payload: str) -> str:
    """The text around an image; another block's payload as it is."""
    try:
        content = json.loads(payload)
    except ValueError:
        return payload
    if isinstance(content, dict) and "blob" in content:
        return f"{content.get('pre_text', '')}{content.get('post_text', '')}"
    return payload


def _extended(message: Message, event: Event) -> Message:
    fields = event.fields
    if event.kind == "ToolUse":
        call = ToolCall(event.id, fields["name"], fields["arguments"])
        return replace(message, tool_calls=(*message.tool_calls, call), last_event_id=event.id)
    message = replace(message, last_event_id=event.id, finish=Finish(fields["finish"]))
    match fields["channel"]:
        case Channel.TEXT:
            return replace(message, text=message.text + fields["text"])
        case Channel.REASONING:
            return replace(message, reasoning=message.reasoning + fields["text"])
    return message
