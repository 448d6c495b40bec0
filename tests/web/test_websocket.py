"""The session API on WebSockets, with the ``websockets`` client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.fixtures.scripted_sessions import PARAMS, ScriptedSessions
from tests.fixtures.session_web import ORIGIN, TOKEN, WebListener, web_serving
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Origin, Subprotocol

from superfluid.native import connection

CREATE = {"Create": {"parent": None, "params": {"temperature": 0, "top_p": 1, "min_p": 0, "top_k": 0, "seed": 1}}}
HELLO = {"AppendMessage": {"session": 1, "role": 1, "text": "Name three rivers."}}
GENERATE = {"Generate": {"session": 1, "max_tokens": 256}}
DEADLINE_SECONDS = 30


class Page:
    """What the page in the documentation does."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, *requests: object) -> None:
        for request in requests:
            await self.socket.send(json.dumps(request))

    async def receive(self) -> object:
        async with asyncio.timeout(DEADLINE_SECONDS):
            message = await self.socket.recv()
        assert isinstance(message, str)
        return json.loads(message)

    async def call(self, request: object) -> object:
        await self.send(request)
        return await self.receive()


@asynccontextmanager
async def page(web: WebListener) -> AsyncIterator[Page]:
    async with connect(
        f"ws://{web.address}/web/ws",
        origin=Origin(ORIGIN),
        subprotocols=[Subprotocol("superfluid.v1"), Subprotocol(f"superfluid.token.{TOKEN}")],
        max_size=None,
    ) as socket:
        assert socket.subprotocol == "superfluid.v1"
        yield Page(socket)


async def test_page_of_the_documentation_works() -> None:
    api = ScriptedSessions()
    api.script = ["Rhine", ", Rhône"]
    async with web_serving(api) as web, page(web) as ws:
        assert await ws.call(CREATE) == {"Created": {"session": 1}}
        await ws.send(HELLO, GENERATE)
        committed = await ws.receive()
        assert committed["Committed"]["event"]["body"]["Message"]["text"] == "Name three rivers."  # type: ignore[index]
        deltas = [await ws.receive() for _ in range(3)]
        texts = [delta["Delta"]["event"]["body"]["Generated"]["text"] for delta in deltas]  # type: ignore[index]
        assert texts == ["Rhine", ", Rhône", ""]
        summary = await ws.receive()
        assert summary["Generated"]["finish"] == 1  # type: ignore[index]
        assert len(summary["Generated"]["events"]) == 3  # type: ignore[index]
    assert api.transports == ["websocket"]


async def test_binary_frames_are_requests_too_and_every_reply_is_text() -> None:
    async with web_serving(ScriptedSessions()) as web, page(web) as ws:
        await ws.socket.send(b'"List"')
        assert await ws.receive() == {"Sessions": {"ids": []}}
        await ws.socket.send([b'"Li', b'st"'])
        assert await ws.receive() == {"Sessions": {"ids": []}}


@pytest.mark.parametrize("garbage", ["", "{", "[]", '{"Tree":{}}', b"\xff\xfe", b"\x07"])
async def test_frame_that_is_no_request_gets_an_err_and_the_socket_stays_open(garbage: str | bytes) -> None:
    async with web_serving(ScriptedSessions()) as web, page(web) as ws:
        await ws.socket.send(garbage)
        refusal = await ws.receive()
        assert refusal["Err"]["message"].startswith("invalid request frame")  # type: ignore[index]
        assert await ws.call("List") == {"Sessions": {"ids": []}}


async def test_pipelined_requests_far_beyond_the_bound_are_all_answered_in_order() -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web, page(web) as ws:
        await ws.call(CREATE)
        count = connection.MAX_WAITING_REQUESTS * 5
        for number in range(count):
            await ws.send({"AppendMessage": {"session": 1, "role": 1, "text": str(number)}})
        ids = [(await ws.receive())["Committed"]["event"]["event_id"] for _ in range(count)]  # type: ignore[index]
        assert ids == list(range(1, count + 1))


async def test_subscription_on_one_socket_sees_a_generation_on_another() -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web, page(web) as watcher, page(web) as ws:
        await ws.call(CREATE)
        await ws.call(HELLO)
        subscribed = await watcher.call({"Subscribe": {"session": 1, "cursor": 2, "provisional": True}})
        assert subscribed == {"Subscribed": {"sub": 1}}
        await ws.send(GENERATE)
        turn = await api.turns.get()
        turn.write("a")
        assert (await watcher.receive())["SubEvent"]["event"]["event_id"] == 2  # type: ignore[index]
        assert await ws.receive()
        foreign = await watcher.call({"Unsubscribe": {"sub": 7}})
        assert "Err" in foreign  # type: ignore[operator]
        await watcher.send({"Unsubscribe": {"sub": 1}})
        last = [await watcher.receive(), await watcher.receive()]
        assert {"SubEnded": {"sub": 1, "reason": "unsubscribed"}} in last
        assert "Unsubscribed" in last


async def test_closed_socket_cancels_its_generation_at_once() -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web, page(web) as ws:
        await ws.call(CREATE)
        await ws.call(HELLO)
        await ws.send(GENERATE)
        turn = await api.turns.get()
        await ws.socket.close()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await turn.cancelled.wait()


async def test_lost_socket_cancels_its_generation_and_ends_its_subscriptions() -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web, page(web) as ws:
        await ws.call(CREATE)
        await ws.call(HELLO)
        await ws.call({"Subscribe": {"session": 1, "cursor": 2, "provisional": False}})
        await ws.send(GENERATE)
        turn = await api.turns.get()
        ws.socket.transport.abort()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await turn.cancelled.wait()
            while web.server.sockets:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert api.subscriptions[1][1].end_reason == "unsubscribed"


@pytest.mark.parametrize("end", ["aborts", "closes"])
async def test_client_that_vanishes_with_more_requests_sent_than_are_read_cancels_its_generation(end: str) -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web, page(web) as ws:
        await ws.call(CREATE)
        await ws.call(HELLO)
        await ws.send(GENERATE)
        turn = await api.turns.get()
        await ws.send(*["List"] * (2 * connection.MAX_WAITING_REQUESTS))
        if end == "aborts":
            ws.socket.transport.abort()
        else:
            ws.socket.transport.close()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await turn.cancelled.wait()
            while web.server.sockets:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def test_large_request_and_large_reply_pass_whole() -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web, page(web) as ws:
        await ws.call(CREATE)
        text = "ü" * 2_000_000
        reply = await ws.call({"Append": {"session": 1, "text": text, "span": [1]}})
        assert reply["Committed"]["event"]["body"]["Appended"]["text"] == text  # type: ignore[index]


async def test_reader_that_stops_reading_holds_up_nobody() -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web, page(web) as slow, page(web) as other:
        await other.call(CREATE)
        for _ in range(4):
            await api.append(1, "x" * 2_000_000, (1,))
        slow.socket.transport.pause_reading()
        await slow.send(*[{"Read": {"session": 1, "cursor": 0}}] * 8)
        for _ in range(20):
            assert await other.call("List") == {"Sessions": {"ids": [1]}}
        slow.socket.transport.abort()


async def test_client_that_pipelines_without_end_is_not_read_without_bound() -> None:
    api = ScriptedSessions()
    api.gate = asyncio.Event()
    async with web_serving(api) as web, page(web) as ws:
        frame = '"List"' + " " * (1 << 20)
        ws.socket.transport.set_write_buffer_limits(high=0)
        sent, is_read = 0, True
        while is_read and sent < 2 * connection.MAX_WAITING_REQUESTS:
            # So many are taken, however long that takes; one that is not taken is sent for ever.
            patience = DEADLINE_SECONDS if sent < connection.MAX_WAITING_REQUESTS else 0.5
            try:
                async with asyncio.timeout(patience):
                    await ws.socket.send(frame)
                sent += 1
            except TimeoutError:
                is_read = False
        assert connection.MAX_WAITING_REQUESTS <= sent < 2 * connection.MAX_WAITING_REQUESTS
        api.gate.set()
        for _ in range(sent):
            assert await ws.receive() == {"Sessions": {"ids": []}}


async def test_ping_is_answered_while_a_generation_runs() -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web, page(web) as ws:
        await ws.call(CREATE)
        await ws.call(HELLO)
        await ws.send(GENERATE)
        turn = await api.turns.get()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await (await ws.socket.ping())
        turn.end()


async def test_stopping_server_finishes_the_request_in_hand_and_then_closes() -> None:
    api = ScriptedSessions()
    async with web_serving(api, drain_timeout_seconds=60) as web, page(web) as ws, page(web) as idle:
        await ws.call(CREATE)
        await ws.call(HELLO)
        await idle.call("List")
        await ws.send(GENERATE)
        turn = await api.turns.get()
        web.server.stop()
        with pytest.raises(ConnectionClosed) as closed:
            await idle.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        turn.end()
        assert "Delta" in await ws.receive()  # type: ignore[operator]
        assert "Generated" in await ws.receive()  # type: ignore[operator]
        async with asyncio.timeout(DEADLINE_SECONDS):
            await web.task


async def test_stopping_server_cancels_a_generation_that_outlasts_the_drain() -> None:
    api = ScriptedSessions()
    async with web_serving(api, drain_timeout_seconds=0.1) as web, page(web) as ws:
        await ws.call(CREATE)
        await ws.call(HELLO)
        await ws.send(GENERATE)
        await api.turns.get()
        web.server.stop()
        assert "Delta" in await ws.receive()  # type: ignore[operator]
        assert (await ws.receive())["Generated"]["finish"] == 4  # type: ignore[index]
        async with asyncio.timeout(DEADLINE_SECONDS):
            await web.task


async def test_parameters_of_a_session_survive_json() -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web, page(web) as ws:
        await api.create(None, PARAMS)
        inspection = await ws.call({"Inspect": {"session": 1}})
        shown = inspection["Inspection"]["inspection"]  # type: ignore[index]
        assert shown["params"] == {"temperature": 0.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "seed": 1}
        assert shown["store_id"] == list(range(16))
        assert shown["tier"] == "Cold"
