"""Conversations and tools of the OpenAI dialect, as the domain's chat prompt. Pure; raises CallerError only."""

from collections.abc import Sequence
from typing import Any

import msgspec

from superfluid.domain.request import ChatPrompt, Message, Role, ToolCall
from superfluid.errors import (
    InvalidRequestError,
    InvalidValueError,
    UnsupportedInputError,
    UnsupportedParameterError,
)
from superfluid.http.openai_types import AssistantCall, ChatBody, ChatMessage, ContentPart

ROLES: dict[str, Role] = {"system": "system", "developer": "system", "assistant": "assistant", "tool": "tool"}
_MEDIA_PARTS = frozenset({"image_url", "input_audio"})
# What the renderer itself gives the template.
_RESERVED_KWARGS = frozenset({"messages", "tools", "add_generation_prompt"})


def chat_prompt(body: ChatBody) -> ChatPrompt:
    """The conversation with the tools it declares."""
    if not body.messages:
        raise InvalidRequestError("messages must hold at least one message", param="messages")
    return ChatPrompt(
        messages=tuple(_message(index, message) for index, message in enumerate(body.messages)),
        tools=() if body.tool_choice == "none" else function_tools(body.tools or []),
        template_kwargs=_template_kwargs(body),
    )


def refuse_constraints(body: ChatBody) -> None:
    """Raises UnsupportedParameterError for what would need the output to be forced into a form."""
    choice = body.tool_choice
    if choice == "required" or (isinstance(choice, dict) and choice.get("type") == "function"):
        raise UnsupportedParameterError(
            "tool_choice can be 'auto' or 'none'; this server cannot force a call yet", param="tool_choice"
        )
    if body.response_format is None:
        return
    match body.response_format.get("type"):
        case "text":
            return
        case "json_object" | "json_schema":
            raise UnsupportedParameterError(
                "response_format can be of type 'text'; this server cannot force JSON yet", param="response_format"
            )
        case _:
            raise InvalidValueError(
                "response_format.type must be 'text', 'json_object' or 'json_schema'", param="response_format.type"
            )


def _message(index: int, message: ChatMessage) -> Message:
    role = ROLES.get(message.role, "user")
    is_assistant = role == "assistant"
    reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    return Message(
        role=role,
        content=_content(index, message.content),
        reasoning=reasoning if is_assistant else None,
        tool_calls=tuple(
            tool_call(index, number, call) for number, call in enumerate(message.tool_calls or []) if is_assistant
        ),
        tool_call_id=message.tool_call_id if role == "tool" else None,
        name=message.name,
    )


def _content(index: int, content: str | Sequence[ContentPart] | None) -> str:
    """Text parts are separate lines; parts of unknown types are skipped."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for number, part in enumerate(content):
        if part.type in _MEDIA_PARTS:
            raise UnsupportedInputError(
                f"this route takes text only, not {part.type}", param=f"messages[{index}].content"
            )
        if part.type == "text":
            if not isinstance(part.text, str):
                path = f"messages[{index}].content[{number}].text"
                raise InvalidRequestError(f"{path}: expected a string", param=path)
            texts.append(part.text)
    return "\n".join(texts)


def tool_call(index: int, number: int, call: AssistantCall) -> ToolCall:
    """Call ``number`` of message ``index``, which give it its id if it has none."""
    arguments = call.function.arguments
    if not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments or {}).decode()
    return ToolCall(id=call.id or f"call_{index}_{number}", name=call.function.name, arguments=arguments or "{}")


def function_tools(tools: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The tools, which are all functions with a name. Raises CallerError naming what is wrong with one."""
    for index, tool in enumerate(tools):
        kind = tool.get("type")
        if kind != "function":
            raise UnsupportedParameterError(
                f"tools[{index}].type must be 'function'; other tools do not run here", param=f"tools[{index}].type"
            )
        function = tool.get("function")
        if not isinstance(function, dict):
            raise _wrong_tool(index, "function", "an object")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise _wrong_tool(index, "function.name", "a non-empty string")
        if not isinstance(function.get("description"), str | None):
            raise _wrong_tool(index, "function.description", "a string")
        if not isinstance(function.get("parameters"), dict | None):
            raise _wrong_tool(index, "function.parameters", "an object")
    return tuple(tools)


def _wrong_tool(index: int, field: str, expected: str) -> InvalidRequestError:
    path = f"tools[{index}].{field}"
    return InvalidRequestError(f"{path}: expected {expected}", param=path)


def _template_kwargs(body: ChatBody) -> dict[str, Any]:
    """The request's own arguments win over the two fields that are short for them."""
    kwargs = dict(body.chat_template_kwargs or {})
    for name in sorted(_RESERVED_KWARGS & kwargs.keys()):
        path = f"chat_template_kwargs.{name}"
        raise InvalidValueError(f"{path} is the server's to set", param=path)
    if body.enable_thinking is not None:
        kwargs.setdefault("enable_thinking", body.enable_thinking)
    if body.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", body.reasoning_effort)
    return kwargs
