"""The events of a streamed message."""

from typing import Any

import msgspec
import pytest

from superfluid import errors
from superfluid.domain.job import PrefixPin
from superfluid.domain.reply import (
    Channel,
    Finish,
    ReplyEvent,
    ReplyFinished,
    ReplyStarted,
    TextDelta,
    ToolCallArguments,
    ToolCallFinished,
    ToolCallStarted,
)
from superfluid.http.anthropic_stream import PING, MessageStreamWriter
from superfluid.http.collect import ReplyProgress
from superfluid.http.dialect import Opening

OPENING = Opening(9, "m", 100, 7, pins=(PrefixPin(5, 300_000),))
END = ReplyFinished(Finish.END_OF_TURN, 7, 2, 6)


def _stream(*batches: list[ReplyEvent]) -> bytes:
    progress = ReplyProgress()
    writer = MessageStreamWriter(OPENING, progress, 16)
    frames = writer.begin()
    for batch in batches:
        progress.note(batch)
        frames += writer.feed(batch)
    return frames


def _events(*batches: list[ReplyEvent]) -> list[dict[str, Any]]:
    events = []
    for frame in _stream(*batches).decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        event: dict[str, Any] = msgspec.json.decode(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def test_stream_of_text_has_every_event_in_its_place() -> None:
    usage = {
        "input_tokens": 2,
        "cache_creation_input_tokens": 3,
        "cache_read_input_tokens": 2,
        "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 0,
    }
    assert _events(
        [ReplyStarted(7, 2)], [TextDelta(Channel.TEXT, 'Hel"', 1)], [TextDelta(Channel.TEXT, "lo", 2), END]
    ) == [
        {
            "type": "message_start",
            "message": {
                "id": "msg_superfluid_9",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": usage,
            },
        },
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 'Hel"'}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {**usage, "output_tokens": 6},
        },
        {"type": "message_stop"},
    ]


def test_stream_of_thoughts_text_and_calls_has_a_block_for_each() -> None:
    events = _events(
        [ReplyStarted(7, 2), TextDelta(Channel.REASONING, "hm", 1)],
        [TextDelta(Channel.REASONING, "!", 2), TextDelta(Channel.TEXT, "So:", 3)],
        [ToolCallStarted(0, "call_9", "f", 4), ToolCallArguments(0, '{"a":', 5)],
        [ToolCallArguments(0, "1}", 6), ToolCallFinished(0, "call_9", "f", '{"a":1}', True, 6)],
        [ToolCallStarted(1, "call_9_1", "g", 7), ToolCallFinished(1, "call_9_1", "g", "{}", True, 8)],
        [END],
    )
    blocks = [event for event in events if event["type"].startswith("content_block")]
    assert blocks == [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "!"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "So:"}},
        {"type": "content_block_stop", "index": 1},
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "tool_use", "id": "toolu_9", "name": "f", "input": {}},
        },
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"a":1}'}},
        {"type": "content_block_stop", "index": 2},
        {
            "type": "content_block_start",
            "index": 3,
            "content_block": {"type": "tool_use", "id": "toolu_9_1", "name": "g", "input": {}},
        },
        {"type": "content_block_delta", "index": 3, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_stop", "index": 3},
    ]
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_call_that_cannot_be_read_is_a_block_of_text() -> None:
    events = _events(
        [ReplyStarted(7, 0), ToolCallStarted(0, "call_9", "f", 1), ToolCallArguments(0, '{"a', 2)],
        [ToolCallFinished(0, "call_9", "f", '{"a', False, 2), ReplyFinished(Finish.LENGTH, 7, 0, 16)],
    )
    (delta,) = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert delta == {"type": "text_delta", "text": '{"name": "f", "arguments": {"a'}
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"


def test_call_that_cannot_be_read_goes_on_in_the_text_before_it() -> None:
    events = _events([TextDelta(Channel.TEXT, "So: ", 1), ToolCallFinished(0, "call_9", "f", "{", False, 2)], [END])
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [start["content_block"]["type"] for start in starts] == ["text"]


def test_stream_that_begins_with_its_end_is_whole() -> None:
    assert [event["type"] for event in _events([END])] == ["message_start", "ping", "message_delta", "message_stop"]


def test_stream_started_a_second_time_starts_once() -> None:
    kinds = [event["type"] for event in _events([ReplyStarted(7, 2)], [ReplyStarted(7, 5)], [END])]
    assert kinds == ["message_start", "ping", "message_delta", "message_stop"]


def test_empty_text_opens_no_block() -> None:
    assert b"content_block" not in _stream([ReplyStarted(7, 2), TextDelta(Channel.TEXT, "", 1), END])


def test_stop_string_is_named_at_the_end() -> None:
    events = _events([ReplyStarted(7, 0)], [ReplyFinished(Finish.END_OF_TURN, 7, 0, 3, stopped_by="END")])
    assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.EngineFaultError("broken"), "api_error"),
        (errors.WorkerFailedError("broken"), "api_error"),
        (errors.ShuttingDownError("broken"), "overloaded_error"),
    ],
)
def test_failure_ends_the_stream_with_an_error(error: errors.SuperfluidError, kind: str) -> None:
    frame = MessageStreamWriter(OPENING, ReplyProgress(), 16).fail(error)
    name, data = frame.removesuffix(b"\n\n").split(b"\n")
    assert name == b"event: error"
    assert msgspec.json.decode(data.removeprefix(b"data: ")) == {
        "type": "error",
        "error": {"type": kind, "message": "broken"},
    }


def test_keepalive_is_a_ping() -> None:
    assert PING == b'event: ping\ndata: {"type":"ping"}\n\n'
