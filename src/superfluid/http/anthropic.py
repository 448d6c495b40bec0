"""The dialect of Anthropic: ``POST /v1/messages`` translated into requests, and its whole answers. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from superfluid.domain.reply import Channel, TextDelta, ToolCallFinished
from superfluid.domain.request import GenerationRequest, SamplingOverrides
from superfluid.errors import InvalidRequestError, SuperfluidError
from superfluid.http.anthropic_frames import (
    call_as_text,
    is_readable,
    message_members,
    stop_reason,
    tool_use_id,
    usage,
)
from superfluid.http.anthropic_messages import conversation, refuse_constraints
from superfluid.http.anthropic_stream import MESSAGE_STREAM, MessageStreamWriter
from superfluid.http.anthropic_types import MessagesBody
from superfluid.http.collect import CollectedReply, ReplyProgress
from superfluid.http.dialect import Answer, Framing, Opening, StreamWriter
from superfluid.http.errors import anthropic_error_body
from superfluid.http.json_codec import decode_body, encode
from superfluid.http.request_fields import check_range, required_model, stop_strings, token_limit, top_k_limit

_body_decoder = msgspec.json.Decoder(MessagesBody)


class MessagesDialect:
    """``Dialect`` of messages."""

    def parse(self, body: bytes) -> "MessagesExchange":
        """Raises CallerError."""
        fields = messages_body(body)
        model = required_model(fields.model)
        refuse_constraints(fields)
        prompt, pins = conversation(fields)
        max_tokens = _max_tokens(fields.max_tokens)
        request = GenerationRequest(
            prompt=prompt,
            sampling=_sampling(fields),
            max_tokens=max_tokens,
            stop=stop_strings(fields.stop_sequences, name="stop_sequences"),
            parse_tools=fields.tool_choice is None or fields.tool_choice.type != "none",
            pins=pins,
        )
        return MessagesExchange(model=model, requests=(request,), is_stream=bool(fields.stream), max_tokens=max_tokens)

    def error_body(self, error: SuperfluidError) -> bytes:
        return anthropic_error_body(error)


class MessagesExchange(Struct, frozen=True, kw_only=True):
    """``Exchange`` of messages."""

    model: str
    requests: tuple[GenerationRequest, ...]
    is_stream: bool
    max_tokens: int

    @property
    def route(self) -> str:
        return "POST /v1/messages"

    @property
    def is_infill(self) -> bool:
        return False

    @property
    def framing(self) -> Framing:
        return MESSAGE_STREAM

    def stream_writer(self, opening: Opening, progress: ReplyProgress) -> StreamWriter:
        return MessageStreamWriter(opening, progress, self.max_tokens)

    def answer(self, opening: Opening, replies: Sequence[CollectedReply]) -> Answer:
        (reply,) = replies
        finished = reply.finished
        has_calls = any(is_readable(call) for call in reply.calls)
        members = message_members(opening)
        members["content"] = _content(reply)
        members["stop_reason"] = stop_reason(finished, self.max_tokens, has_calls=has_calls)
        members["stop_sequence"] = finished.stopped_by
        members["usage"] = usage(opening, finished.warm_tokens, finished.completion_tokens)
        return Answer(encode(members), headers=((b"x-superfluid-warm", b"%d" % finished.warm_tokens),))


def messages_body(body: bytes) -> MessagesBody:
    """Raises InvalidRequestError."""
    return decode_body(_body_decoder, body)


def _max_tokens(value: int | None) -> int:
    limit = token_limit("max_tokens", value)
    if limit is None:
        raise InvalidRequestError("max_tokens is missing: how many tokens the reply may have", param="max_tokens")
    return limit


def _sampling(fields: MessagesBody) -> SamplingOverrides:
    check_range("temperature", fields.temperature, 0.0, 2.0)
    check_range("top_p", fields.top_p, 0.0, 1.0)
    return SamplingOverrides(temperature=fields.temperature, top_p=fields.top_p, top_k=top_k_limit(fields.top_k))


def _content(reply: CollectedReply) -> list[dict[str, Any]]:
    """The reply's blocks in the order in which they were written; of neighbours of one kind the first has it all."""
    blocks: list[dict[str, Any]] = []
    parts: list[TextDelta | ToolCallFinished] = [*reply.runs, *reply.calls]
    # At equal counts text comes first: it was held back until the call's first token came.
    for part in sorted(parts, key=lambda part: part.tokens_generated):
        if isinstance(part, ToolCallFinished):
            blocks.append(_call_block(part))
            continue
        if not part.text:
            continue
        kind, member = ("thinking", "thinking") if part.channel is Channel.REASONING else ("text", "text")
        if blocks and blocks[-1]["type"] == kind:
            blocks[-1][member] += part.text
        else:
            blocks.append({"type": kind, member: part.text} | ({"signature": ""} if kind == "thinking" else {}))
    return blocks


def _call_block(call: ToolCallFinished) -> dict[str, Any]:
    if not is_readable(call):
        return {"type": "text", "text": call_as_text(call)}
    return {
        "type": "tool_use",
        "id": tool_use_id(call),
        "name": call.name,
        "input": msgspec.Raw(call.arguments.encode()),
    }
