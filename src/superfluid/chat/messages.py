"""Messages in the shape that chat templates expect, and which of several shapes a template wants. Pure; runs in the
daemon."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from typing import Any, Final, NamedTuple

from superfluid.chat.guard import TextGuard
from superfluid.domain.request import Message

_KEY: Final = "zq_key"
_PROBE_CALL: Final = {"name": "zq_tool", "arguments": {_KEY: "zq_value"}}
_PROBE_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "zq_tool",
        "description": "zq_description",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "zq_key_description"}},
            "required": [_KEY],
        },
    },
}


class MessageShape(NamedTuple):
    """How a template wants its messages.

    ``has_null_content``: the content of a message with calls is null, if it has none. ``has_text_arguments``: arguments
    are JSON text, not an object. ``has_short_ids``: call ids are nine letters and digits. ``folds_system``: there is no
    system turn, so its text begins the first user turn. ``writes_calls``: calls show in the rendering at all.
    ``has_content_parts``: content is a list of parts, as in many templates of models that see images.
    """

    has_null_content: bool = False
    has_text_arguments: bool = False
    has_short_ids: bool = False
    folds_system: bool = False
    writes_calls: bool = False
    reasoning_key: str = "reasoning_content"
    has_content_parts: bool = False


class ShapedMessages(NamedTuple):
    """Template messages and, for each, its index among the messages they were made of."""

    dicts: list[dict[str, Any]]
    indices: list[int]


def shape_messages(messages: Sequence[Message], shape: MessageShape, guard: TextGuard) -> ShapedMessages:
    """Every string of the client's comes out guarded; roles are ours."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    dicts: list[dict[str, Any]] = []
    indices: list[int] = []
    system: list[str] = []
    for index, message in enumerate(messages):
        if shape.folds_system and message.role == "system":
            system.append(message.content)
            continue
        if system and message.role == "user":
            text = "\n\n".join([*system, message.content])
            message = Message(role="user", content=text, name=message.name)
            system.clear()
        dicts.append(_shape_message(message, shape, guard, names))
        indices.append(index)
    if system:
        dicts.append({"role": "user", "content": _content("\n\n".join(system), shape, guard)})
        indices.append(len(messages) - 1)
    return ShapedMessages(dicts, indices)


def _content(text: str, shape: MessageShape, guard: TextGuard) -> Any:
    return in_parts(guard.guard(text)) if shape.has_content_parts else guard.guard(text)


def in_parts(text: str) -> list[dict[str, str]]:
    """A content of one part."""
    return [{"type": "text", "text": text}]


def _shape_message(message: Message, shape: MessageShape, guard: TextGuard, names: dict[str, str]) -> dict[str, Any]:
    is_null = bool(message.tool_calls) and not message.content and shape.has_null_content
    content = None if is_null else _content(message.content, shape, guard)
    shaped: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning is not None:
        shaped[shape.reasoning_key] = guard.guard(message.reasoning)
    if message.tool_calls:
        shaped["tool_calls"] = [
            _shape_call(call.id, call.name, call.arguments, shape, guard) for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shaped["tool_call_id"] = guard.guard(_call_id(message.tool_call_id, shape))
    name = message.name or (names.get(message.tool_call_id) if message.tool_call_id is not None else None)
    if name is not None:
        shaped["name"] = guard.guard(name)
    return shaped


def _shape_call(call_id: str, name: str, arguments: str, shape: MessageShape, guard: TextGuard) -> dict[str, Any]:
    shaped = guard.guard(arguments) if shape.has_text_arguments else guard.guard_json(_parse_arguments(arguments))
    return {
        "id": guard.guard(_call_id(call_id, shape)),
        "type": "function",
        "function": {"name": guard.guard(name), "arguments": shaped},
    }


def _parse_arguments(arguments: str) -> Any:
    """The object that templates iterate over; the text itself if it is none."""
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _call_id(call_id: str, shape: MessageShape) -> str:
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9] if shape.has_short_ids else call_id


# ---- probes


ProbeRender = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None, bool], str | None]
"""Renders messages and tools, with or without the assistant header. ``None`` if the template refuses."""


def probe_shape(render: ProbeRender, source: str) -> MessageShape:
    """What the template with this ``source`` wants, found by rendering small conversations."""
    user = {"role": "user", "content": "zq_user"}
    plain = render([user], None, True)
    if plain is None or "zq_user" not in plain:
        in_part = render([{"role": "user", "content": in_parts("zq_user")}], None, True)
        if in_part is not None and "zq_user" in in_part:
            return probe_shape(_with_parts(render), source)._replace(has_content_parts=True)
    if plain is None:
        return MessageShape()
    with_system = render([{"role": "system", "content": "zq_system"}, user], None, True)
    keys = ("reasoning_content", "reasoning", "thinking")
    shape = MessageShape(
        folds_system=with_system is None or "zq_system" not in with_system,
        reasoning_key=next((key for key in keys if key in source), keys[0]),
    )
    for candidate in _call_shapes(shape):
        if _writes_call(render, candidate):
            return candidate._replace(writes_calls=True)
    return shape


def _with_parts(render: ProbeRender) -> ProbeRender:
    def render_parts(
        messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, has_header: bool
    ) -> str | None:
        return render([with_content_parts(message) for message in messages], tools, has_header)

    return render_parts


def with_content_parts(message: dict[str, Any]) -> dict[str, Any]:
    """A probe's message in the shape of templates that want parts."""
    content = message["content"]
    return {**message, "content": in_parts(content)} if isinstance(content, str) else message


def _call_shapes(shape: MessageShape) -> Iterator[MessageShape]:
    """The likeliest first."""
    for has_short_ids, has_text_arguments, has_null_content in product((False, True), repeat=3):
        yield shape._replace(
            has_short_ids=has_short_ids,
            has_text_arguments=has_text_arguments,
            has_null_content=has_null_content,
        )


def _writes_call(render: ProbeRender, shape: MessageShape) -> bool:
    call_id = "call00001" if shape.has_short_ids else "call_1"
    arguments: Any = _PROBE_CALL["arguments"]
    call = {
        "id": call_id,
        "type": "function",
        "function": {
            "name": _PROBE_CALL["name"],
            "arguments": json.dumps(arguments) if shape.has_text_arguments else arguments,
        },
    }
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "zq_user"},
        {"role": "assistant", "content": None if shape.has_null_content else "", "tool_calls": [call]},
        {"role": "tool", "content": "zq_result", "tool_call_id": call_id, "name": "zq_tool"},
        {"role": "assistant", "content": "zq_reply"},
        {"role": "user", "content": "zq_user"},
    ]
    text = render(messages, None, True)
    if text is None:
        # Some templates refuse calls of tools that were not declared.
        text = render(messages, [_PROBE_TOOL], True)
    return (
        text is not None
        and all(part in text for part in ("zq_tool", "zq_value", "zq_result"))
        and not any(part in text for part in ("None", f"'{_KEY}'", f'\\"{_KEY}\\"'))
    )


def probe_append_stability(render: ProbeRender) -> bool:
    """Whether every rendering begins with that of the turns before."""
    turns = [
        {"role": "user", "content": "zq_first"},
        {"role": "assistant", "content": "zq_reply"},
        {"role": "user", "content": "zq_second"},
        {"role": "assistant", "content": "zq_other_reply"},
    ]
    plain = [render(turns[:count], None, False) for count in range(1, len(turns) + 1)]
    headed = [render(turns[:count], None, True) for count in (1, 3)]
    if any(text is None for text in plain + headed):
        return False
    texts = [text or "" for text in plain]
    return all(longer.startswith(shorter) for shorter, longer in pairwise(texts)) and all(
        texts[index].startswith(text or "") for index, text in ((1, headed[0]), (3, headed[1]))
    )
