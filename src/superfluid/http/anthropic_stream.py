"""The events of a streamed message. Pure."""

from collections.abc import Sequence
from typing import Any, assert_never

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
from superfluid.http.anthropic_frames import (
    call_as_text,
    is_readable,
    message_members,
    stop_reason,
    tool_use_id,
    usage,
)
from superfluid.http.collect import ReplyProgress
from superfluid.http.dialect import Framing, Opening
from superfluid.http.errors import anthropic_error_body
from superfluid.http.json_codec import encode

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
MESSAGE_STREAM = Framing(content_type=b"text/event-stream; charset=utf-8", keepalive=PING)


class MessageStreamWriter:
    """``StreamWriter`` of messages: the message's start, block after block, its end.

    The start goes out when the prompt has a lane, since it says how much of it was cached. A call goes out when it is
    whole: one that cannot be read becomes text.
    """

    def __init__(self, opening: Opening, progress: ReplyProgress, max_tokens: int) -> None:
        self._opening = opening
        self._progress = progress
        self._max_tokens = max_tokens
        self._has_started = False
        self._has_calls = False
        self._blocks = 0
        self._open: Channel | None = None
        self._delta_head = b""

    def begin(self) -> bytes:
        return b""

    def feed(self, events: Sequence[ReplyEvent]) -> bytes:
        frames = b"".join([self._write(event) for event in events])
        if self._has_started or not events:
            return frames
        self._has_started = True
        return self._start() + frames

    def fail(self, error: SuperfluidError) -> bytes:
        return b"event: error\ndata: " + anthropic_error_body(error) + b"\n\n"

    def _write(self, event: ReplyEvent) -> bytes:
        match event:
            case TextDelta():
                return self._text(Channel.REASONING if event.channel is Channel.REASONING else Channel.TEXT, event.text)
            case ToolCallFinished():
                return self._call(event)
            case ReplyFinished():
                return self._close() + self._end(event)
            case ReplyStarted() | ToolCallStarted() | ToolCallArguments():
                return b""
            case _:
                assert_never(event)

    def _start(self) -> bytes:
        message = message_members(self._opening) | {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(self._opening, self._progress.warm_tokens, 0),
        }
        return _frame("message_start", {"message": message}) + PING

    def _text(self, channel: Channel, text: str) -> bytes:
        if not text:
            return b""
        frames = b""
        if self._open is not channel:
            is_text = channel is Channel.TEXT
            block = {"type": "text", "text": ""} if is_text else {"type": "thinking", "thinking": "", "signature": ""}
            frames = self._close() + self._begin_block(block)
            kind = b'{"type":"text_delta","text":' if is_text else b'{"type":"thinking_delta","thinking":'
            self._open = channel
            self._delta_head = _delta_head(self._blocks) + kind
        return frames + self._delta_head + encode(text) + b"}}\n\n"

    def _call(self, call: ToolCallFinished) -> bytes:
        if not is_readable(call):
            return self._text(Channel.TEXT, call_as_text(call))
        self._has_calls = True
        block = {"type": "tool_use", "id": tool_use_id(call), "name": call.name, "input": {}}
        frames = self._close() + self._begin_block(block)
        self._open = Channel.TOOL_CALL
        delta = b'{"type":"input_json_delta","partial_json":' + encode(call.arguments) + b"}}\n\n"
        return frames + _delta_head(self._blocks) + delta + self._close()

    def _begin_block(self, block: dict[str, Any]) -> bytes:
        return _frame("content_block_start", {"index": self._blocks, "content_block": block})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        self._blocks += 1
        return _frame("content_block_stop", {"index": self._blocks - 1})

    def _end(self, finished: ReplyFinished) -> bytes:
        reason = stop_reason(finished, self._max_tokens, has_calls=self._has_calls)
        members: dict[str, Any] = {
            "delta": {"stop_reason": reason, "stop_sequence": finished.stopped_by},
            "usage": usage(self._opening, finished.warm_tokens, finished.completion_tokens),
        }
        return _frame("message_delta", members) + _frame("message_stop", {})


def _frame(kind: str, members: dict[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **members}) + b"\n\n"


def _delta_head(index: int) -> bytes:
    return b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":' % index
