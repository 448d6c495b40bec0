"""What whole answers and streams of Anthropic's dialect share: the message's members, usage, why it ended. Pure."""

import json
from typing import Any

from superfluid.domain.reply import Finish, ReplyFinished, ToolCallFinished
from superfluid.http.dialect import Opening
from superfluid.http.json_codec import encode

_LONG_TTL_MS = 60 * 60 * 1000


def message_members(opening: Opening) -> dict[str, Any]:
    """The members that a message begins with."""
    return {
        "id": f"msg_superfluid_{opening.reply_id}",
        "type": "message",
        "role": "assistant",
        "model": opening.model_id,
    }


def usage(opening: Opening, warm_tokens: int, output_tokens: int) -> dict[str, Any]:
    """The prompt's tokens are read from the cache, or pinned and computed (by how long they are pinned), or neither."""
    warm = min(warm_tokens, opening.prompt_tokens)
    pinned = max((pin.tokens for pin in opening.pins), default=0)
    pinned_long = max((pin.tokens for pin in opening.pins if pin.ttl_ms >= _LONG_TTL_MS), default=0)
    created = max(0, pinned - warm)
    created_long = max(0, min(pinned_long, pinned) - warm)
    return {
        "input_tokens": opening.prompt_tokens - warm - created,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": warm,
        "cache_creation": {
            "ephemeral_5m_input_tokens": created - created_long,
            "ephemeral_1h_input_tokens": created_long,
        },
        "output_tokens": output_tokens,
    }


def stop_reason(finished: ReplyFinished, max_tokens: int, *, has_calls: bool) -> str:
    """The cap wins over calls; what was cut below the cap has filled the window."""
    if finished.finish is Finish.LENGTH:
        return "max_tokens" if finished.completion_tokens >= max_tokens else "model_context_window_exceeded"
    if finished.stopped_by is not None:
        return "stop_sequence"
    return "tool_use" if has_calls else "end_turn"


def tool_use_id(call: ToolCallFinished) -> str:
    return f"toolu_{call.call_id.removeprefix('call_')}"


def is_readable(call: ToolCallFinished) -> bool:
    """Whether its arguments are an object that every client can read: Python takes NaN for a number, JSON does not."""
    try:
        return call.is_valid and isinstance(json.loads(call.arguments, parse_constant=_refuse_constant), dict)
    except (ValueError, RecursionError):
        return False


def call_as_text(call: ToolCallFinished) -> str:
    """A call whose arguments cannot be read, as the model may have written it."""
    return f'{{"name": {encode(call.name).decode()}, "arguments": {call.arguments}'


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
