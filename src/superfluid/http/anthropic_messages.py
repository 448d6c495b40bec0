"""Conversations and tools of Anthropic's requests, as the domain's chat prompt. Pure; raises CallerError only."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec

from superfluid.domain.request import ChatPrompt, Message, MessagePin, ToolCall
from superfluid.errors import (
    InvalidRequestError,
    InvalidValueError,
    UnsupportedInputError,
    UnsupportedParameterError,
)
from superfluid.http.anthropic_cache import Breakpoints, refuse_breakpoint
from superfluid.http.anthropic_types import ContentBlock, InputMessage, MessagesBody, Tool
from superfluid.http.json_codec import encode

_UNREADABLE: Final = frozenset({"image", "document", "search_result", "container_upload"})
"""Blocks that tell the model something which it would not hear of if they were left out."""
_NOTHING: Final = ContentBlock(type="text", text="")
_Part = tuple[ContentBlock, str]
"""A block and its place in the request."""


class Conversation(NamedTuple):
    """A prompt and the ends of messages up to which it is to stay cached."""

    prompt: ChatPrompt
    pins: tuple[MessagePin, ...]


def conversation(body: MessagesBody) -> Conversation:
    """The conversation with the tools it declares."""
    if not body.messages:
        raise InvalidRequestError("messages must hold at least one message", param="messages")
    has_tools = body.tool_choice is None or body.tool_choice.type != "none"
    builder = _Builder()
    tools = _tools(body.tools or [], builder.breakpoints)
    builder.add_system(_parts(body.system or "", "system"))
    for role, run in groupby(enumerate(body.messages), key=lambda pair: pair[1].role):
        builder.add(role, run)
    if not builder.messages:
        raise InvalidRequestError("messages hold nothing that the model could read", param="messages")
    builder.breakpoints.note(body.cache_control, "", builder.last)
    prefill = builder.take_prefill()
    prompt = ChatPrompt(
        messages=tuple(builder.messages),
        tools=tools if has_tools else (),
        template_kwargs=_template_kwargs(body),
        prefill=prefill,
    )
    # What a reply begins with is not kept by itself.
    pins = [MessagePin(min(pin.message, builder.last), pin.ttl_ms) for pin in builder.breakpoints.pins]
    return Conversation(prompt, tuple(pins))


def refuse_constraints(body: MessagesBody) -> None:
    """Raises UnsupportedParameterError for what would need the output to be forced into a form, or other servers."""
    choice = body.tool_choice
    if choice is not None and choice.type in ("any", "tool"):
        raise UnsupportedParameterError(
            "tool_choice can be of type 'auto' or 'none'; this server cannot force a call yet", param="tool_choice"
        )
    if choice is not None and choice.type not in ("auto", "none"):
        raise InvalidValueError("tool_choice.type must be 'auto', 'any', 'tool' or 'none'", param="tool_choice.type")
    if body.output_format is not None or (body.output_config is not None and body.output_config.format is not None):
        raise UnsupportedParameterError("this server cannot force JSON yet", param="output_config.format")
    for name, value in (("container", body.container), ("mcp_servers", body.mcp_servers)):
        if value:
            raise UnsupportedParameterError(f"{name}: this server runs no tools itself", param=name)


class _Builder:
    """Makes messages of messages: turns of the same role that follow each other become one, and results of tools
    messages of their own."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.breakpoints = Breakpoints()

    @property
    def last(self) -> int:
        return max(0, len(self.messages) - 1)

    def add_system(self, parts: Iterable[_Part]) -> None:
        texts: list[str] = []
        for block, path in parts:
            if block.type != "text":
                raise UnsupportedInputError(f"{path}.type must be 'text'", param=f"{path}.type")
            texts.append(_text(block, path))
            self._mark_text(block, path, len(self.messages))
        text = "\n".join(texts)
        if text:
            self.messages.append(Message(role="system", content=text))

    def add(self, role: str, run: Iterable[tuple[int, InputMessage]]) -> None:
        """Messages of one role that follow each other, with their places among all."""
        parts = _parts_of(run)
        match role:
            case "user":
                self._add_user(parts)
            case "assistant":
                self._add_assistant(parts)
            case "system":
                self.add_system(parts)
            case _:
                path = f"messages[{next(iter(run))[0]}].role"
                raise InvalidRequestError(f"{path} must be 'user' or 'assistant'", param=path)

    def take_prefill(self) -> str:
        """What the reply begins with: the last message, if it is the assistant's. It is no message of its own then."""
        if self.messages[-1].role != "assistant":
            return ""
        begun = self.messages.pop()
        if begun.tool_calls:
            raise InvalidRequestError("messages: the last one has calls, but no results follow", param="messages")
        if not self.messages:
            raise InvalidRequestError("messages must hold something to reply to", param="messages")
        return begun.content

    def _add_user(self, parts: Iterable[_Part]) -> None:
        texts: list[str] = []
        for block, path in parts:
            _refuse_unreadable(block, path)
            match block.type:
                case "text":
                    texts.append(_text(block, path))
                    self._mark_text(block, path, len(self.messages))
                case "tool_result":
                    self._end_user_text(texts)
                    call_id = _string(block.tool_use_id, f"{path}.tool_use_id")
                    result = Message(role="tool", content=self._result(block, path), tool_call_id=call_id)
                    self.messages.append(result)
                    self.breakpoints.note(block.cache_control, path, self.last)
                case _:
                    self._skip(block, path, len(self.messages) if texts else self.last)
        self._end_user_text(texts)

    def _end_user_text(self, texts: list[str]) -> None:
        if texts:
            self.messages.append(Message(role="user", content="\n".join(texts)))
            texts.clear()

    def _add_assistant(self, parts: Iterable[_Part]) -> None:
        """A reply is sent back as it was handed out, so its texts are joined by nothing."""
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        place = len(self.messages)
        for block, path in parts:
            _refuse_unreadable(block, path)
            match block.type:
                case "text":
                    texts.append(_text(block, path))
                    self._mark_text(block, path, place)
                case "thinking":
                    thoughts.append(_string(block.thinking, f"{path}.thinking", may_be_empty=True))
                    refuse_breakpoint(block.cache_control, path, "thinking")
                case "tool_use":
                    calls.append(_tool_call(block, path))
                    self.breakpoints.note(block.cache_control, path, place)
                case _:
                    self._skip(block, path, place)
        reasoning = "".join(thoughts) if thoughts else None
        self.messages.append(
            Message(role="assistant", content="".join(texts), reasoning=reasoning, tool_calls=tuple(calls))
        )

    def _result(self, block: ContentBlock, path: str) -> str:
        content = block.content
        if content is None or isinstance(content, str):
            return content or ""
        try:
            inner = msgspec.convert(content, list[ContentBlock])
        except msgspec.ValidationError:
            where = f"{path}.content"
            raise InvalidRequestError(f"{where}: expected a string or a list of blocks", param=where) from None
        texts: list[str] = []
        for part, where in _parts(inner, f"{path}.content"):
            _refuse_unreadable(part, where)
            if part.type == "text":
                texts.append(_text(part, where))
            # Of these marks too each ends a prefix; the result they are in is the next message.
            self.breakpoints.note(part.cache_control, where, len(self.messages))
        return "\n".join(texts)

    def _mark_text(self, block: ContentBlock, path: str, message: int) -> None:
        if not block.text:
            refuse_breakpoint(block.cache_control, path, "empty text")
        self.breakpoints.note(block.cache_control, path, message)

    def _skip(self, block: ContentBlock, path: str, message: int) -> None:
        """Blocks that mean nothing to a model of this server: redacted thinking, traces of tools run elsewhere."""
        if block.type == "redacted_thinking":
            refuse_breakpoint(block.cache_control, path, "thinking")
        self.breakpoints.note(block.cache_control, path, message)


def _parts_of(run: Iterable[tuple[int, InputMessage]]) -> Iterator[_Part]:
    for index, message in run:
        yield from _parts(message.content or [_NOTHING], f"messages[{index}].content")


def _parts(content: str | Sequence[ContentBlock], path: str) -> Iterator[_Part]:
    if isinstance(content, str):
        content = [ContentBlock(type="text", text=content)]
    for number, block in enumerate(content):
        yield block, f"{path}[{number}]"


def _refuse_unreadable(block: ContentBlock, path: str) -> None:
    if block.type in _UNREADABLE:
        raise UnsupportedInputError(f"{path}: this route takes text only, not {block.type}", param=path)


def _text(block: ContentBlock, path: str) -> str:
    return _string(block.text, f"{path}.text", may_be_empty=True)


def _string(value: Any, path: str, *, may_be_empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or may_be_empty):
        raise InvalidRequestError(f"{path}: expected {'a' if may_be_empty else 'a non-empty'} string", param=path)
    return value


def _tool_call(block: ContentBlock, path: str) -> ToolCall:
    arguments = {} if block.input is None else block.input
    if not isinstance(arguments, dict):
        raise InvalidRequestError(f"{path}.input: expected an object", param=f"{path}.input")
    try:
        written = encode(arguments).decode()
    except RecursionError:
        raise InvalidRequestError(f"{path}.input is nested too deeply", param=f"{path}.input") from None
    return ToolCall(id=_string(block.id, f"{path}.id"), name=_string(block.name, f"{path}.name"), arguments=written)


def _tools(tools: Sequence[Tool], breakpoints: Breakpoints) -> tuple[dict[str, Any], ...]:
    """In OpenAI's form, which chat templates are written for."""
    declared: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if tool.type not in (None, "custom"):
            raise UnsupportedParameterError(
                f"{path}.type must be 'custom': this server has none of Anthropic's own tools",
                param=f"{path}.type",
            )
        if tool.input_schema is None:
            raise InvalidRequestError(f"{path}.input_schema: expected an object", param=f"{path}.input_schema")
        function: dict[str, Any] = {"name": _string(tool.name, f"{path}.name")}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = tool.input_schema
        declared.append({"type": "function", "function": function})
        breakpoints.note(tool.cache_control, path, 0)
    return tuple(declared)


def _template_kwargs(body: MessagesBody) -> dict[str, Any]:
    """``thinking`` and ``effort`` in the words that templates know. Without them the template decides."""
    kwargs: dict[str, Any] = {}
    if body.thinking is not None:
        kind = body.thinking.type
        if kind not in ("enabled", "adaptive", "between_tools", "disabled"):
            raise InvalidValueError("thinking.type must be 'enabled', 'adaptive' or 'disabled'", param="thinking.type")
        kwargs["enable_thinking"] = kind != "disabled"
    if body.output_config is not None and body.output_config.effort is not None:
        kwargs["reasoning_effort"] = body.output_config.effort
    return kwargs
