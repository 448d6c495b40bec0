"""The chunks of a streamed chat completion, frame by frame."""

from typing import Any

import msgspec

from superfluid.domain.reply import (
    Channel,
    Finish,
    ReplyEvent,
    ReplyFinished,
    ReplyStarted,
    TextDelta,
    TokenAlternative,
    TokenLogprob,
    ToolCallArguments,
    ToolCallFinished,
    ToolCallStarted,
)
from superfluid.errors import EngineFaultError
from superfluid.http.collect import ReplyProgress
from superfluid.http.dialect import Opening
from superfluid.http.openai_chat_stream import ChatStreamWriter

OPENING = Opening(reply_id=9, model_id='m"1', created_unix=100, prompt_tokens=7)
FINISHED = ReplyFinished(Finish.END_OF_TURN, 7, 3, 4)
END = b"data: [DONE]\n\n"


def _frames(data: bytes) -> list[Any]:
    parts = data.split(b"\n\n")
    assert parts.pop() == b""
    return [part if part == b"data: [DONE]" else msgspec.json.decode(part.removeprefix(b"data: ")) for part in parts]


def _write(*events: ReplyEvent, has_logprobs: bool = False, has_running_usage: bool = False) -> list[Any]:
    progress = ReplyProgress()
    writer = ChatStreamWriter(OPENING, progress, has_logprobs=has_logprobs, has_running_usage=has_running_usage)
    progress.note(events)
    return _frames(writer.begin() + writer.feed(events))


def test_stream_begins_with_the_role_alone() -> None:
    assert _write() == [
        {
            "id": "chatcmpl-superfluid-9",
            "object": "chat.completion.chunk",
            "created": 100,
            "model": 'm"1',
            "system_fingerprint": "superfluid",
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
        }
    ]


def test_stream_deltas_go_to_the_field_of_their_channel() -> None:
    frames = _write(
        ReplyStarted(7, 0),
        TextDelta(Channel.REASONING, "hm", 1),
        TextDelta(Channel.TEXT, 'a "quote"\n\n\u2028é', 2),
    )
    deltas = [frame["choices"][0]["delta"] for frame in frames[1:]]
    assert deltas == [{"reasoning_content": "hm"}, {"content": 'a "quote"\n\n\u2028é'}]
    assert all(frame["choices"][0]["finish_reason"] is None for frame in frames[1:])


def test_stream_ends_with_reason_usage_warm_count_and_end_mark() -> None:
    *_, last, done = _write(FINISHED)
    assert last["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert last["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 4,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert last["superfluid"] == {"warm": 3}
    assert done == b"data: [DONE]"


def test_stream_of_a_call_opens_it_and_then_gives_its_arguments() -> None:
    frames = _write(
        ToolCallStarted(0, "call_1", "f", 3),
        ToolCallArguments(0, '{"a"', 4),
        ToolCallArguments(0, ":1}", 5),
        ToolCallFinished(0, "call_1", "f", '{"a":1}', True, 6),
        FINISHED,
    )
    calls = [frame["choices"][0]["delta"]["tool_calls"] for frame in frames[1:4]]
    assert calls == [
        [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"a"'}}],
        [{"index": 0, "function": {"arguments": ":1}"}}],
    ]
    assert frames[4]["choices"][0]["finish_reason"] == "tool_calls"


def test_stream_with_logprobs_carries_them_with_their_delta() -> None:
    entry = TokenLogprob(TokenAlternative(5, b"Hi", -0.5), ())
    _, chunk = _write(TextDelta(Channel.TEXT, "Hi", 1, (entry,)), has_logprobs=True)
    assert chunk["choices"][0]["logprobs"]["content"] == [
        {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}
    ]


def test_stream_with_running_usage_counts_in_every_chunk() -> None:
    _, first, second = _write(TextDelta(Channel.TEXT, "a", 1), TextDelta(Channel.TEXT, "b", 4), has_running_usage=True)
    assert first["usage"] == {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
    assert second["usage"]["completion_tokens"] == 4


def test_stream_that_fails_ends_with_the_error_and_the_end_mark() -> None:
    writer = ChatStreamWriter(OPENING, ReplyProgress(), has_logprobs=False, has_running_usage=False)
    error, done = _frames(writer.fail(EngineFaultError("broken")))
    assert error == {"error": {"message": "broken", "type": "server_error", "code": "engine_fault"}}
    assert done == b"data: [DONE]"
