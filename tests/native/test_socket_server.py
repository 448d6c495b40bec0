"""The session API over real unix sockets."""

import asyncio
import errno
import socket
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fixtures.scripted_sessions import PARAMS, ScriptedSessions, ScriptedTurn
from tests.fixtures.session_client import DEADLINE_SECONDS, SocketClient, connect, serving

from superfluid.domain.reply import Finish
from superfluid.errors import AddressUnavailableError
from superfluid.native import connection, requests, responses
from superfluid.native.frames import MAX_FRAME_BYTES
from superfluid.native.socket_server import SocketServer

CREATE = requests.Create(None, PARAMS)
HELLO = requests.AppendMessage(1, 1, "hi")
GENERATE = requests.Generate(1, 8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


async def generating_client(api: ScriptedSessions, path: Path) -> tuple[SocketClient, ScriptedTurn]:
    client = await connect(path)
    await client.call(CREATE)
    await client.call(HELLO)
    await client.send(GENERATE)
    return client, await api.turns.get()


async def cancelled(turn: ScriptedTurn) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        await turn.cancelled.wait()


async def no_clients(server: SocketServer) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_conversation_over_the_socket(path: Path) -> None:
    api = ScriptedSessions()
    api.script = ["Rhine", ", Rhône"]
    async with serving(api, path):
        client = await connect(path)
        assert await client.call(CREATE) == responses.Created(1)
        assert isinstance(await client.call(HELLO), responses.Committed)
        await client.send(GENERATE)
        deltas = [await client.receive() for _ in range(3)]
        summary = await client.receive()
        assert isinstance(summary, responses.Generated)
        assert deltas == [responses.Delta(event) for event in summary.events]
        assert await client.call(requests.Tree()) == responses.Tree(((1, None, 0),))
        await client.close()
    assert api.transports == ["socket"]


async def test_frames_that_arrive_in_one_piece_are_all_answered(path: Path) -> None:
    async with serving(ScriptedSessions(), path):
        client = await connect(path)
        client.writer.write(b"\x01\x00\x00\x00\x07" * 200)
        client.writer.write_eof()
        assert await client.rest() == [responses.Sessions(())] * 200


async def test_frame_that_arrives_byte_by_byte_is_answered(path: Path) -> None:
    async with serving(ScriptedSessions(), path):
        client = await connect(path)
        for byte in b"\x01\x00\x00\x00\x07":
            client.writer.write(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0.001)
        assert await client.receive() == responses.Sessions(())


async def test_largest_frame_is_taken_and_a_large_reply_comes_whole(path: Path) -> None:
    api = ScriptedSessions()
    async with serving(api, path):
        client = await connect(path)
        await client.call(CREATE)
        head = b"\x01\x01\x01"  # Append to session 1, with a text.
        size = MAX_FRAME_BYTES - len(head) - 4 - 1
        payload = head + _varint(size) + b"x" * size + b"\x00"
        assert len(payload) == MAX_FRAME_BYTES
        sending = asyncio.create_task(client.send_payload(payload))
        reply = await client.receive()
        await sending
        # The event is a few bytes longer than the request, too long for a frame.
        assert isinstance(reply, responses.Err)
        assert str(MAX_FRAME_BYTES) in reply.message
        text = "y" * (8 * 1024 * 1024)
        reply = await client.call(requests.Append(1, text, (1,)))
        assert isinstance(reply, responses.Committed)
        assert reply.event.body == api.logs[1][2].body


def _varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 0xFFFFFFFF])
async def test_frame_over_the_bound_ends_the_connection_at_once_and_no_other(path: Path, length: int) -> None:
    async with serving(ScriptedSessions(), path) as server:
        other = await connect(path)
        await other.call(CREATE)
        client = await connect(path)
        client.writer.write(b"\x01\x00\x00\x00\x07" + struct.pack("<I", length))
        assert await client.rest() == [responses.Sessions((1,))]
        assert await other.call(requests.List()) == responses.Sessions((1,))
        assert server.connections == 1


@pytest.mark.parametrize("payload", [b"", b"\x23", b"\x02\x01", b"\xff" * 40])
async def test_garbage_ends_the_connection_in_silence_and_no_other(path: Path, payload: bytes) -> None:
    async with serving(ScriptedSessions(), path):
        other = await connect(path)
        client = await connect(path)
        await client.send_payload(payload)
        assert await client.rest() == []
        assert await other.call(requests.List()) == responses.Sessions(())


async def test_input_that_ends_inside_a_frame_ends_the_connection_in_silence(path: Path) -> None:
    async with serving(ScriptedSessions(), path):
        client = await connect(path)
        client.writer.write(struct.pack("<I", 10) + b"\x07")
        client.writer.write_eof()
        assert await client.rest() == []


async def test_vanished_client_cancels_its_generation_before_anything_is_written(path: Path) -> None:
    api = ScriptedSessions()
    async with serving(api, path) as server:
        client, turn = await generating_client(api, path)
        await client.close()
        await cancelled(turn)
        await no_clients(server)


async def test_client_that_vanishes_with_more_requests_sent_than_are_read_cancels_its_generation(path: Path) -> None:
    api = ScriptedSessions()
    async with serving(api, path) as server:
        client, turn = await generating_client(api, path)
        await client.send(*[requests.List()] * (2 * connection.MAX_WAITING_REQUESTS))
        await client.close()
        await cancelled(turn)
        await no_clients(server)


async def test_half_closed_client_is_served_to_the_end(path: Path) -> None:
    api = ScriptedSessions()
    async with serving(api, path) as server:
        client, turn = await generating_client(api, path)
        await client.send(requests.List())
        client.writer.write_eof()
        await asyncio.sleep(0.05)
        assert not turn.cancelled.is_set()
        turn.write("a")
        turn.end()
        replies = await client.rest()
        assert replies[-1] == responses.Sessions((1,))
        await no_clients(server)


async def test_half_closed_client_that_vanishes_later_cancels_its_generation(path: Path) -> None:
    api = ScriptedSessions()
    async with serving(api, path):
        client, turn = await generating_client(api, path)
        client.writer.write_eof()
        await asyncio.sleep(0.02)
        assert not turn.cancelled.is_set()
        await client.close()
        await cancelled(turn)


async def test_client_that_never_reads_holds_up_nobody(path: Path) -> None:
    api = ScriptedSessions()
    async with serving(api, path) as server:
        slow, other = await connect(path), await connect(path)
        await other.call(CREATE)
        for _ in range(8):
            await other.call(requests.Append(1, "x" * 1_000_000, (1,)))
        slow.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await slow.send(*[requests.Read(1, 0)] * 10)
        for _ in range(20):
            assert await other.call(requests.List()) == responses.Sessions((1,))
        slow.writer.transport.abort()
        await other.close()
        await no_clients(server)


async def test_client_that_pipelines_without_reading_is_not_read_without_bound(path: Path) -> None:
    api = ScriptedSessions()
    api.gate = asyncio.Event()
    async with serving(api, path):
        client = await connect(path)
        frame = struct.pack("<I", 1 << 20) + b"\x07" + bytes((1 << 20) - 1)
        client.writer.transport.set_write_buffer_limits(high=0)
        written = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while True:
                    client.writer.write(frame)
                    written += 1
                    await client.writer.drain()
        assert written < 2 * connection.MAX_WAITING_REQUESTS
        api.gate.set()
        assert await client.receive() == responses.Sessions(())
        client.writer.transport.abort()


async def test_dropped_connection_ends_its_subscriptions(path: Path) -> None:
    api = ScriptedSessions()
    async with serving(api, path) as server:
        client = await connect(path)
        await client.call(CREATE)
        await client.call(requests.Subscribe(1, 1, provisional=False))
        await client.close()
        await no_clients(server)
        assert api.subscriptions[1][1].end_reason == "unsubscribed"


async def test_garbage_detaches_subscriptions_with_a_last_word(path: Path) -> None:
    async with serving(ScriptedSessions(), path):
        client = await connect(path)
        await client.call(CREATE)
        await client.call(requests.Subscribe(1, 1, provisional=False))
        await client.send_payload(b"\xff")
        assert await client.rest() == [responses.SubEnded(1, "unsubscribed")]


async def test_stopped_server_removes_its_socket_and_refuses_connections(path: Path) -> None:
    async with serving(ScriptedSessions(), path):
        pass
    with socket.socket(socket.AF_UNIX) as probe:
        assert probe.connect_ex(str(path)) == errno.ENOENT


async def test_stopping_server_lets_a_generation_finish_within_the_drain(path: Path) -> None:
    api = ScriptedSessions()
    server = SocketServer(api, path)
    await server.start()
    client, turn = await generating_client(api, path)
    idle = await connect(path)
    await idle.call(requests.List())
    stopping = asyncio.create_task(server.stop(drain_seconds=60))
    assert await idle.rest() == []
    turn.write("last")
    turn.end()
    *_, summary = await client.rest()
    await stopping
    assert isinstance(summary, responses.Generated)
    assert summary.finish == Finish.END_OF_TURN


async def test_stopping_server_cancels_what_outlasts_the_drain_and_tells_the_client(path: Path) -> None:
    api = ScriptedSessions()
    server = SocketServer(api, path)
    await server.start()
    client, turn = await generating_client(api, path)
    await server.stop(drain_seconds=0.05)
    assert turn.cancelled.is_set()
    *_, summary = await client.rest()
    assert isinstance(summary, responses.Generated)
    assert summary.finish == Finish.CANCELLED


async def test_stop_that_is_called_again_hurries_a_drain(path: Path) -> None:
    api = ScriptedSessions()
    server = SocketServer(api, path)
    await server.start()
    client, turn = await generating_client(api, path)
    draining = asyncio.create_task(server.stop(drain_seconds=600))
    await asyncio.sleep(0.01)
    assert not turn.cancelled.is_set()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await server.stop()
        await draining
    assert isinstance((await client.rest())[-1], responses.Generated)


async def test_server_that_was_never_started_can_be_stopped(path: Path) -> None:
    await SocketServer(ScriptedSessions(), path).stop()


async def test_stopping_server_does_not_wait_for_a_client_that_does_not_read(path: Path) -> None:
    api = ScriptedSessions()
    server = SocketServer(api, path)
    await server.start()
    client = await connect(path)
    await client.call(CREATE)
    await api.append(1, "x" * 30_000_000, (1,))
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    await client.send(requests.Read(1, 0))
    async with asyncio.timeout(DEADLINE_SECONDS):
        await server.stop()
    assert server.connections == 0
    client.writer.transport.abort()


async def test_second_server_on_the_same_path_is_refused_and_the_first_lives_on(path: Path) -> None:
    async with serving(ScriptedSessions(), path):
        with pytest.raises(AddressUnavailableError, match="another server"):
            await SocketServer(ScriptedSessions(), path).start()
        client = await connect(path)
        assert await client.call(requests.List()) == responses.Sessions(())


async def test_server_can_be_started_again_where_one_died(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serving(ScriptedSessions(), path):
        client = await connect(path)
        assert await client.call(requests.List()) == responses.Sessions(())
