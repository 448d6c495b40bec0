"""Generations as server-sent events, over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.fixtures.scripted_sessions import PARAMS, ScriptedSessions, ScriptedTurn
from tests.fixtures.session_web import TOKEN, WebListener, web_serving

from superfluid.domain.reply import Finish
from superfluid.errors import EngineFaultError

DEADLINE_SECONDS = 30


class EventStream:
    """A client that reads a response to ``/web/stream`` block by block."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._buffer = b""
        self.writer = writer
        self.head = ""

    async def open(self, web: WebListener, body: object) -> None:
        payload = json.dumps(body).encode()
        lines = [
            "POST /web/stream HTTP/1.1",
            f"Host: {web.address}",
            *(f"{name}: {value}" for name, value in web.headers.items()),
            f"Content-Length: {len(payload)}",
        ]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + payload)
        async with asyncio.timeout(DEADLINE_SECONDS):
            self.head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()

    async def block(self) -> str | None:
        """What stands before the next blank line; ``None`` at the end of the body."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while b"\n\n" not in self._buffer:
                length = int((await self._reader.readline()).strip() or b"0", 16)
                chunk = (await self._reader.readexactly(length + 2))[:-2]
                if not length:
                    return None
                self._buffer += chunk
        block, _, self._buffer = self._buffer.partition(b"\n\n")
        return block.decode()

    async def data(self) -> object:
        """The next event's content; the end mark as it stands."""
        block = await self.block()
        assert block is not None
        assert block.startswith("data: ")
        text = block.removeprefix("data: ")
        return text if text == "[DONE]" else json.loads(text)

    async def rest(self) -> list[object]:
        """Everything up to the end mark, behind which the body must end."""
        items = []
        while (item := await self.data()) != "[DONE]":
            items.append(item)
        assert await self.block() is None
        return items


@asynccontextmanager
async def streaming(
    api: ScriptedSessions, *, keepalive_seconds: float = 15.0, drain_timeout_seconds: float = 1.0, **fields: object
) -> AsyncIterator[tuple[EventStream, WebListener]]:
    """A stream on session 1, which has a message."""
    await api.create(None, PARAMS)
    await api.append_message(1, 1, "hi")
    async with web_serving(
        api, keepalive_seconds=keepalive_seconds, drain_timeout_seconds=drain_timeout_seconds
    ) as web:
        stream = EventStream(*await asyncio.open_connection("127.0.0.1", web.port))
        await stream.open(web, {"session": 1, "max_tokens": 8} | fields)
        yield stream, web
        stream.writer.close()


async def next_turn(api: ScriptedSessions) -> ScriptedTurn:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await api.turns.get()


async def test_stream_gives_each_event_then_the_summary_and_the_end_mark() -> None:
    api = ScriptedSessions()
    async with streaming(api) as (stream, _):
        turn = await next_turn(api)
        turn.write("Rhône")
        assert await stream.data() == {
            "committed": {
                "event_id": 2,
                "epoch": 1,
                "ts_unix_ms": 1700000000000,
                "body": {"Generated": {"span": [1], "text": "Rhône", "channel": 0, "finish": 0}},
            }
        }
        turn.use_tool("f", "{}")
        turn.end(warm_prefix=3)
        tool, last, done = await stream.rest()
        assert tool["committed"]["body"] == {"ToolUse": {"name": "f", "arguments": "{}"}}  # type: ignore[index]
        assert last["committed"]["body"]["Generated"]["finish"] == 1  # type: ignore[index]
        assert done == {"done": {"tokens_generated": 1, "finish": 1, "warm_prefix": 3}}
        assert not turn.cancelled.is_set()
    assert api.transports == ["stream"]


async def test_stream_announces_itself_before_the_first_token() -> None:
    api = ScriptedSessions()
    async with streaming(api) as (stream, _):
        assert stream.head.startswith("http/1.1 200")
        assert "content-type: text/event-stream\r\n" in stream.head
        assert "cache-control: no-cache\r\n" in stream.head
        assert "access-control" not in stream.head


async def test_frames_are_compact_json_with_characters_as_they_are() -> None:
    api = ScriptedSessions()
    async with streaming(api) as (stream, _):
        (await next_turn(api)).write("Rhône\n\ndata: x")
        block = await stream.block()
        assert block is not None
        assert '"text":"Rhône\\n\\ndata: x"' in block
        assert "\n" not in block


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_provisional_text_comes_only_if_asked_for(is_wanted: bool) -> None:
    api = ScriptedSessions()
    async with streaming(api, provisional=is_wanted) as (stream, _):
        turn = await next_turn(api)
        turn.write("a")
        turn.end()
        items = await stream.rest()
        assert ({"provisional": {"channel": 0, "text": "a"}} in items) == is_wanted


async def test_refusal_is_an_error_event_and_the_end_mark_with_status_200() -> None:
    api = ScriptedSessions()
    async with streaming(api, session=9) as (stream, _):
        assert stream.head.startswith("http/1.1 200")
        assert await stream.rest() == [{"error": "unknown session 9"}]


async def test_stream_refused_as_busy_leaves_the_generation_it_met_alone() -> None:
    api = ScriptedSessions()
    async with streaming(api) as (stream, web):
        turn = await next_turn(api)
        second = EventStream(*await asyncio.open_connection("127.0.0.1", web.port))
        await second.open(web, {"session": 1, "max_tokens": 8})
        (refusal,) = await second.rest()
        assert " is generating;" in refusal["error"]  # type: ignore[index]
        second.writer.close()
        turn.write("a")
        turn.end()
        assert len(await stream.rest()) == 3
        assert not turn.cancelled.is_set()


async def test_failure_midway_is_the_last_event() -> None:
    api = ScriptedSessions()
    async with streaming(api) as (stream, _):
        turn = await next_turn(api)
        turn.write("a")
        turn.fail(EngineFaultError("the engine refused a step"))
        _, failure = await stream.rest()
        assert failure == {"error": "the engine refused a step"}


async def test_closing_the_stream_cancels_the_generation_at_once() -> None:
    api = ScriptedSessions()
    async with streaming(api) as (stream, _):
        turn = await next_turn(api)
        stream.writer.close()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await turn.cancelled.wait()
        assert api.logs[1][-1].body.finish == Finish.CANCELLED  # type: ignore[union-attr]


async def test_closing_the_stream_while_the_generation_is_accepted_cancels_it() -> None:
    api = ScriptedSessions()
    await api.create(None, PARAMS)
    async with web_serving(api) as web:
        api.gate = asyncio.Event()
        stream = EventStream(*await asyncio.open_connection("127.0.0.1", web.port))
        await stream.open(web, {"session": 1, "max_tokens": 8})
        stream.writer.close()
        await asyncio.sleep(0.05)
        api.gate.set()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await (await api.turns.get()).cancelled.wait()
        assert not api.running


async def test_quiet_stream_is_kept_alive_by_comments() -> None:
    api = ScriptedSessions()
    async with streaming(api, keepalive_seconds=0.05) as (stream, _):
        turn = await next_turn(api)
        comment = await stream.block()
        assert comment is not None
        assert comment.startswith(":")
        turn.end()


async def test_connection_can_be_used_again_after_the_end() -> None:
    api = ScriptedSessions()
    api.script = ["a"]
    async with streaming(api) as (stream, web):
        await stream.rest()
        await stream.open(web, {"session": 1, "max_tokens": 8})
        assert len(await stream.rest()) == 3


async def test_stopping_server_lets_a_stream_finish() -> None:
    api = ScriptedSessions()
    async with streaming(api, drain_timeout_seconds=60) as (stream, web):
        turn = await next_turn(api)
        web.server.stop()
        await asyncio.sleep(0.2)
        turn.end()
        assert (await stream.rest())[-1] == {"done": {"tokens_generated": 0, "finish": 1, "warm_prefix": 0}}
        async with asyncio.timeout(DEADLINE_SECONDS):
            await web.task


async def test_stopping_server_ends_a_stream_that_outlasts_the_drain_with_an_error_its_client_can_read() -> None:
    api = ScriptedSessions()
    async with streaming(api, drain_timeout_seconds=1) as (stream, web):
        turn = await next_turn(api)
        web.server.stop()
        (failure,) = await stream.rest()
        assert failure == {"error": "the server is shutting down"}
        assert turn.cancelled.is_set()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await web.task


async def test_token_is_never_in_a_response() -> None:
    api = ScriptedSessions()
    api.script = ["a"]
    async with streaming(api) as (stream, _):
        assert TOKEN not in stream.head
        assert TOKEN not in json.dumps(await stream.rest())
