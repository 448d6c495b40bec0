"""The chat dialect of OpenAI: ``POST /v1/chat/completions`` translated into requests, and its whole answers. Pure."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from superfluid.domain.reply import Channel, ToolCallFinished
from superfluid.domain.request import GenerationRequest
from superfluid.errors import InvalidValueError, SuperfluidError
from superfluid.http.collect import CollectedReply, ReplyProgress
from superfluid.http.dialect import Answer, Framing, Opening, StreamWriter
from superfluid.http.errors import openai_error_body
from superfluid.http.json_codec import decode_body, encode
from superfluid.http.openai_chat_stream import ChatStreamWriter
from superfluid.http.openai_fields import MAX_TOP_LOGPROBS, reseed, sampling_overrides
from superfluid.http.openai_frames import guess_extras, identity, usage
from superfluid.http.openai_logprobs import chat_logprobs
from superfluid.http.openai_messages import chat_prompt, refuse_constraints
from superfluid.http.openai_types import ChatBody
from superfluid.http.request_fields import check_range, required_model, stop_strings, token_limit
from superfluid.http.sse import EVENT_STREAM

MAX_REPLIES = 128
_body_decoder = msgspec.json.Decoder(ChatBody)
# A run that is no whole call any more is what the model said.
_CONTENT = frozenset({Channel.TEXT, Channel.TOOL_CALL})
_REASONING = frozenset({Channel.REASONING})


class ChatDialect:
    """``Dialect`` of chat completions."""

    def parse(self, body: bytes) -> "ChatExchange":
        """Raises CallerError."""
        fields = decode_body(_body_decoder, body)
        model = required_model(fields.model)
        is_stream = bool(fields.stream)
        request = _generation_request(fields)
        count = 1 if is_stream else _reply_count(fields.n)
        return ChatExchange(
            model=model,
            requests=tuple(
                msgspec.structs.replace(request, sampling=reseed(request.sampling, index)) for index in range(count)
            ),
            is_stream=is_stream,
            has_running_usage=bool(fields.stream_options and fields.stream_options.continuous_usage_stats),
        )

    def error_body(self, error: SuperfluidError) -> bytes:
        return openai_error_body(error)


class ChatExchange(Struct, frozen=True, kw_only=True):
    """``Exchange`` of chat completions."""

    model: str
    requests: tuple[GenerationRequest, ...]
    is_stream: bool
    has_running_usage: bool = False

    @property
    def is_infill(self) -> bool:
        return False

    @property
    def route(self) -> str:
        return "POST /v1/chat/completions"

    @property
    def framing(self) -> Framing:
        return EVENT_STREAM

    @property
    def has_logprobs(self) -> bool:
        return self.requests[0].logprobs is not None

    def stream_writer(self, opening: Opening, progress: ReplyProgress) -> StreamWriter:
        return ChatStreamWriter(
            opening, progress, has_logprobs=self.has_logprobs, has_running_usage=self.has_running_usage
        )

    def answer(self, opening: Opening, replies: Sequence[CollectedReply]) -> Answer:
        first = replies[0].finished
        members = identity("chat.completion", "chatcmpl", opening)
        members["choices"] = [self._choice(index, reply) for index, reply in enumerate(replies)]
        members["usage"] = usage(first, sum(reply.finished.completion_tokens for reply in replies))
        extras = guess_extras([reply.finished for reply in replies])
        if extras:
            members["superfluid"] = extras
        return Answer(encode(members), headers=((b"x-superfluid-warm", b"%d" % first.warm_tokens),))

    def _choice(self, index: int, reply: CollectedReply) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "message": _message(reply), "finish_reason": reply.ending}
        choice["logprobs"] = chat_logprobs(reply.logprobs) if self.has_logprobs else None
        return choice


def _generation_request(fields: ChatBody) -> GenerationRequest:
    prompt = chat_prompt(fields)
    refuse_constraints(fields)
    limit = token_limit("max_completion_tokens", fields.max_completion_tokens)
    fallback = token_limit("max_tokens", fields.max_tokens)
    return GenerationRequest(
        prompt=prompt,
        sampling=sampling_overrides(fields),
        max_tokens=limit if limit is not None else fallback,
        stop=stop_strings(fields.stop),
        ignore_eos=bool(fields.ignore_eos),
        logprobs=_logprobs(fields),
        parse_tools=fields.tool_choice != "none",
    )


def _reply_count(count: int | None) -> int:
    if count is None:
        return 1
    check_range("n", count, 1, MAX_REPLIES)
    return count


def _logprobs(fields: ChatBody) -> int | None:
    check_range("top_logprobs", fields.top_logprobs, 0, math.inf)
    if fields.logprobs:
        return min(fields.top_logprobs or 0, MAX_TOP_LOGPROBS)
    if fields.top_logprobs:
        raise InvalidValueError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None


def _message(reply: CollectedReply) -> dict[str, Any]:
    content = reply.text(_CONTENT)
    reasoning = reply.text(_REASONING)
    message: dict[str, Any] = {"role": "assistant", "content": content if content or not reply.calls else None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if reply.calls:
        message["tool_calls"] = [_tool_call(call) for call in reply.calls]
    return message


def _tool_call(call: ToolCallFinished) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.call_id, "type": "function", "function": function}
