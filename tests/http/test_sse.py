"""Streams: one send a batch, comments while it is quiet, a hang-up that ends the work."""

import asyncio
from typing import Any

import pytest

from superfluid.http.sse import EVENT_STREAM, ResponseStream, until_hangup


class Wire:
    """``send`` that keeps what it is given, and can be made to stall."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.arrived = asyncio.Event()
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def __call__(self, message: Any) -> None:
        await self.is_open.wait()
        self.messages.append(message)
        self.arrived.set()

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]


async def _never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


async def test_stream_sends_headers_then_each_write_as_one_message() -> None:
    wire = Wire()
    async with ResponseStream(wire, EVENT_STREAM, 60) as stream:
        await stream.begin(b"first")
        await stream.write(b"second")
        await stream.finish(b"last")
    assert wire.messages[0]["status"] == 200
    assert dict(wire.messages[0]["headers"])[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert wire.bodies == [b"first", b"second", b"last"]
    assert [message.get("more_body") for message in wire.messages[1:]] == [True, True, False]


async def test_stream_that_is_quiet_sends_comments() -> None:
    wire = Wire()
    async with ResponseStream(wire, EVENT_STREAM, 0.005) as stream:
        await stream.begin(b"first")
        while wire.bodies.count(EVENT_STREAM.keepalive) < 2:
            wire.arrived.clear()
            await asyncio.wait_for(wire.arrived.wait(), 5)
        await stream.finish(b"last")
    assert wire.bodies[-1] == b"last"
    assert EVENT_STREAM.keepalive.startswith(b":")


async def test_stream_whose_keep_alive_waits_for_a_slow_reader_ends_behind_it() -> None:
    wire = Wire()
    async with ResponseStream(wire, EVENT_STREAM, 0.0) as stream:
        await stream.begin(b"first")
        wire.is_open.clear()
        await asyncio.sleep(0)
        ending = asyncio.create_task(stream.finish(b"last"))
        await asyncio.sleep(0)
        wire.is_open.set()
        await ending
    assert wire.bodies[-1] == b"last"
    assert wire.messages[-1]["more_body"] is False


async def test_stream_abandoned_by_a_client_that_does_not_read_gives_up() -> None:
    wire = Wire()
    async with ResponseStream(wire, EVENT_STREAM, 60) as stream:
        await stream.begin(b"first")
        wire.is_open.clear()
        await asyncio.wait_for(stream.abandon(b"last"), 5)
    assert wire.bodies == [b"first"]


async def test_work_of_a_client_that_stays_runs_to_its_end() -> None:
    done: list[int] = []

    async def work() -> None:
        done.append(1)

    await until_hangup(_never, work())
    assert done == [1]


async def test_work_that_fails_raises_its_error() -> None:
    async def work() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await until_hangup(_never, work())


async def test_work_of_a_client_that_hangs_up_is_cancelled_and_awaited() -> None:
    cleaned: list[int] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(1)

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    await until_hangup(receive, work())
    assert cleaned == [1]


async def test_work_cancelled_from_outside_is_cancelled_and_awaited() -> None:
    cleaned: list[int] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(1)

    task = asyncio.create_task(until_hangup(_never, work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == [1]
