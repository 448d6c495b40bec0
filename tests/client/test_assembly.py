"""Putting a reply together from frames."""

from typing import Any

import pytest
from superfluid_client import Chunk, Finish, ToolCall
from superfluid_client.assembly import ReplyAssembler


def committed(event_id: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"committed": {"event_id": event_id, "epoch": 1, "ts_unix_ms": 5, "body": {kind: fields}}}


def generated(event_id: int, text: str, channel: int = 0, finish: int = 0) -> dict[str, Any]:
    return committed(event_id, "Generated", span=[event_id], text=text, channel=channel, finish=finish)


def provisional(text: str, channel: int = 0) -> dict[str, Any]:
    return {"provisional": {"channel": channel, "text": text}}


DONE = {"done": {"tokens_generated": 9, "finish": 1, "warm_prefix": 40}}


def test_assembler_committed_channels_yields_text_and_reasoning_and_no_tool_text() -> None:
    assembler = ReplyAssembler()
    frames = [generated(4, "hm", 1), generated(5, "Yes"), generated(6, '{"name"', 2), generated(7, "", 0, 1)]
    chunks = [chunk for frame in frames if (chunk := assembler.take(frame))]
    assert chunks == [Chunk("reasoning", "hm"), Chunk("text", "Yes")]


def test_assembler_done_reply_has_everything_the_summary_says() -> None:
    assembler = ReplyAssembler()
    for frame in (generated(4, "hm", 1), generated(5, "Yes"), generated(6, "x", 2, 1)):
        assembler.take(frame)
    assembler.take(committed(7, "ToolUse", name="f", arguments='{"a":1}'))
    assembler.take(DONE)
    reply = assembler.reply()
    assert assembler.is_done
    assert (reply.text, reply.reasoning, reply.tokens, reply.warm_prefix) == ("Yes", "hm", 9, 40)
    assert reply.finish is Finish.END_OF_TURN
    assert reply.tool_calls == (ToolCall(7, "f", '{"a":1}'),)
    assert [event.id for event in reply.events] == [4, 5, 6, 7]


def test_assembler_without_summary_counts_the_tokens_it_saw() -> None:
    assembler = ReplyAssembler()
    assembler.take(generated(4, "a"))
    assembler.take(generated(5, "b"))
    assert (assembler.reply().tokens, assembler.reply().finish) == (2, Finish.NONE)


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([provisional("Ab"), provisional("cd"), generated(4, "Abcd")], id="ahead"),
        pytest.param([provisional("Ab"), generated(4, "Abcd"), provisional("cd")], id="trailing"),
        pytest.param([generated(4, "Ab"), provisional("Abcd"), generated(5, "cd")], id="interleaved"),
        pytest.param([provisional("A"), generated(4, "Abcd")], id="given up"),
    ],
)
def test_assembler_provisional_text_is_yielded_once_in_any_order(frames: list[dict[str, Any]]) -> None:
    assembler = ReplyAssembler()
    texts = [chunk.text for frame in frames if (chunk := assembler.take(frame))]
    assert "".join(texts) == "Abcd"
    assert assembler.reply().text == "Abcd"


@pytest.mark.parametrize("frame", [{}, {"finished": 1}, {"committed": {"event_id": 1}}, {"done": {}}, {"error": 5}])
def test_assembler_unknown_frame_raises(frame: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError)):
        ReplyAssembler().take(frame)
