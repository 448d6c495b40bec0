"""The chunks of a streamed chat completion. Pure."""

from collections.abc import Sequence
from typing import assert_never

from superfluid.domain.reply import (
    Channel,
    ReplyEvent,
    ReplyFinished,
    ReplyStarted,
    TextDelta,
    ToolCallArguments,
    ToolCallFinished,
    ToolCallStarted,
)
from superfluid.errors import SuperfluidError
from superfluid.http.collect import ReplyProgress
from superfluid.http.dialect import Opening
from superfluid.http.errors import openai_error_frame
from superfluid.http.json_codec import encode
from superfluid.http.openai_frames import ChunkSplicer, identity
from superfluid.http.openai_logprobs import chat_logprobs


class ChatStreamWriter:
    """``StreamWriter`` of chat completions: the role alone, deltas, a terminal chunk with usage, the end mark."""

    def __init__(
        self, opening: Opening, progress: ReplyProgress, *, has_logprobs: bool, has_running_usage: bool
    ) -> None:
        self._progress = progress
        self._has_logprobs = has_logprobs
        self._splicer = ChunkSplicer(
            identity("chat.completion.chunk", "chatcmpl", opening), opening.prompt_tokens if has_running_usage else None
        )
        self._content_head = self._splicer.head(b'"delta":{"content":')
        self._reasoning_head = self._splicer.head(b'"delta":{"reasoning_content":')
        self._tool_head = self._splicer.head(b'"delta":{"tool_calls":[')

    def begin(self) -> bytes:
        role = self._splicer.head(b'"delta":{"role":"assistant","content":""}')
        return role + self._splicer.end(0)

    def feed(self, events: Sequence[ReplyEvent]) -> bytes:
        if len(events) == 1:
            return self._write(events[0])
        return b"".join([self._write(event) for event in events])

    def fail(self, error: SuperfluidError) -> bytes:
        return openai_error_frame(error)

    def _write(self, event: ReplyEvent) -> bytes:
        match event:
            case TextDelta():
                return self._text(event)
            case ToolCallStarted():
                function = {"name": event.name, "arguments": ""}
                call = {"index": event.index, "id": event.call_id, "type": "function", "function": function}
                return self._tool_head + encode(call) + b"]}" + self._splicer.end(event.tokens_generated)
            case ToolCallArguments():
                call = {"index": event.index, "function": {"arguments": event.fragment}}
                return self._tool_head + encode(call) + b"]}" + self._splicer.end(event.tokens_generated)
            case ReplyFinished():
                return self._splicer.last(b'"delta":{}', self._progress.ending, event)
            case ReplyStarted() | ToolCallFinished():
                return b""
            case _:
                assert_never(event)

    def _text(self, event: TextDelta) -> bytes:
        head = self._reasoning_head if event.channel is Channel.REASONING else self._content_head
        delta = head + encode(event.text) + b"}"
        if self._has_logprobs:
            delta += b',"logprobs":' + encode(chat_logprobs(event.logprobs))
        return delta + self._splicer.end(event.tokens_generated)
