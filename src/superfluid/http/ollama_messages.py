"""Conversations of Ollama's API as the domain's chat prompt. Pure; raises CallerError only.

Its calls and results have no ids, or have them since lately: a result is matched with the call it answers.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from superfluid.domain.request import Message, ToolCall
from superfluid.errors import InvalidRequestError, UnsupportedInputError
from superfluid.http.ollama_types import ChatMessage
from superfluid.http.openai_messages import ROLES, function_tools, tool_call


class _PendingCall(Struct, frozen=True):
    """A call without a result so far. ``has_own_id`` if the client named it."""

    call: ToolCall
    has_own_id: bool


def conversation(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """The messages. ``developer`` is ``system``; any role that is not known is ``user``."""
    pending: list[_PendingCall] = []
    result: list[Message] = []
    for index, message in enumerate(messages):
        role = ROLES.get(message.role, "user")
        refuse_images(message.images, f"messages[{index}].images")
        content = message.content or ""
        if role == "assistant":
            pending = _calls(index, message)
            calls = tuple(entry.call for entry in pending)
            result.append(Message(role=role, content=content, reasoning=message.thinking, tool_calls=calls))
        elif role == "tool":
            call = _answered(pending, index, message)
            name = message.tool_name or message.name
            result.append(Message(role=role, content=content, tool_call_id=call.id, name=name))
        else:
            result.append(Message(role=role, content=content, name=message.name))
    return tuple(result)


def declared_tools(tools: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """As OpenAI declares them; without a type a tool is a function."""
    return function_tools([tool if tool.get("type") is not None else {**tool, "type": "function"} for tool in tools])


def refuse_images(images: Sequence[Any] | None, param: str) -> None:
    """Raises UnsupportedInputError."""
    if images:
        raise UnsupportedInputError("this route takes text only: images go into sessions", param=param)


def _calls(index: int, message: ChatMessage) -> list[_PendingCall]:
    calls = message.tool_calls or []
    return [_PendingCall(tool_call(index, number, call), bool(call.id)) for number, call in enumerate(calls)]


def _answered(pending: list[_PendingCall], index: int, message: ChatMessage) -> ToolCall:
    """Takes the call that the result answers out of ``pending``: by its id, by its name, or else in their order."""
    name = message.tool_name or message.name
    for place, entry in enumerate(pending):
        if message.tool_call_id and entry.call.id == message.tool_call_id:
            return pending.pop(place).call
    for place, entry in enumerate(pending):
        if name and entry.call.name == name:
            return pending.pop(place).call
    has_foreign_id = bool(message.tool_call_id) and any(entry.has_own_id for entry in pending)
    if not pending or name or has_foreign_id:
        raise InvalidRequestError(
            f"messages[{index}] is a result, and no call before it is waiting for that", param=f"messages[{index}]"
        )
    return pending.pop(0).call
