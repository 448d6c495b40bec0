"""The client for asyncio: streams that are left, cancelled and closed; connections and event loops."""

import asyncio
import gc
import socket
from collections.abc import Iterator
from contextlib import aclosing

import pytest
from superfluid_client import (
    AsyncClient,
    AsyncSession,
    Chunk,
    ConnectionLost,
    Finish,
    GenerationFailed,
    ServerUnreachable,
    SessionBusy,
    Unauthorized,
)
from tests.client.fake_web_server import FakeSession, FakeWebServer, Frame, say, wait_until


@pytest.fixture
async def rivers(async_client: AsyncClient) -> AsyncSession:
    session = await async_client.session()
    await session.user("Name three rivers.")
    return session


def endless(fake: FakeSession, _: int) -> Iterator[Frame]:
    """Talks until somebody stops it."""
    while True:
        yield fake.generated("word " * 100)


def cancelled_by(fake: FakeSession) -> None:
    """Lets nothing but a Cancel go on."""
    assert fake.is_cancelled.wait(30)


async def test_stream_yields_a_piece_a_token_and_leaves_the_reply(rivers: AsyncSession) -> None:
    stream = rivers.stream(64)
    assert [chunk async for chunk in stream] == [Chunk("text", text) for text in ("Rhine", ", ", "Rhône", ", ", "Po")]
    assert rivers.last_reply == stream.reply
    assert stream.reply.finish is Finish.END_OF_TURN
    assert [chunk async for chunk in stream] == []


async def test_stream_is_sent_when_it_is_first_read(server: FakeWebServer, rivers: AsyncSession) -> None:
    stream = rivers.stream(64)
    assert server.requests[-1][0] == "/web/rpc"
    await anext(stream)
    assert server.requests[-1] == ("/web/stream", {"session": 1, "max_tokens": 64, "provisional": False})
    await stream.aclose()


async def test_stream_that_was_never_read_needs_no_end(server: FakeWebServer, rivers: AsyncSession) -> None:
    stream = rivers.stream(64)
    await stream.aclose()
    assert [chunk async for chunk in stream] == []
    assert all(path == "/web/rpc" for path, _ in server.requests)


async def test_loop_left_early_hangs_up_and_the_next_request_waits(server: FakeWebServer, rivers: AsyncSession) -> None:
    server.model = endless
    async for chunk in rivers.stream(64):
        assert chunk.text
        break
    assert rivers.last_reply is not None
    assert rivers.last_reply.finish is Finish.NONE
    assert (await rivers.user("Enough.")).kind == "Message"
    assert server.hang_ups.acquire(timeout=30)


async def test_block_left_early_cancels_and_waits_for_the_end(server: FakeWebServer, rivers: AsyncSession) -> None:
    server.between_frames = cancelled_by
    async with rivers.stream(64) as stream:
        assert (await anext(stream)).text == "Rhine"
    assert stream.reply.finish is Finish.CANCELLED
    assert server.last_rpc == {"Cancel": {"session": 1}}
    assert [chunk async for chunk in stream] == []


async def test_stream_in_aclosing_is_cancelled_as_well(server: FakeWebServer, rivers: AsyncSession) -> None:
    server.between_frames = cancelled_by
    async with aclosing(rivers.stream(64)) as stream:
        await anext(stream)
    assert stream.reply.finish is Finish.CANCELLED


@pytest.mark.parametrize("is_whole", [False, True])
async def test_task_that_reads_and_is_cancelled_hangs_up(
    server: FakeWebServer, rivers: AsyncSession, is_whole: bool
) -> None:
    server.model = endless
    has_begun = asyncio.Event()

    async def read() -> None:
        if is_whole:
            asyncio.get_running_loop().call_later(0.05, has_begun.set)
            await rivers.generate(64)
        async for _ in rivers.stream(64):
            has_begun.set()

    task = asyncio.create_task(read())
    await has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await rivers.user("Enough.")).kind == "Message"
    assert await asyncio.to_thread(server.hang_ups.acquire, True, 5)


async def test_stream_of_a_busy_session_is_refused(server: FakeWebServer, rivers: AsyncSession) -> None:
    server.sessions[1].is_busy = True
    with pytest.raises(SessionBusy):
        await rivers.generate(64)


async def test_stream_that_fails_midway_keeps_what_was_committed(server: FakeWebServer, rivers: AsyncSession) -> None:
    server.model = lambda fake, _: iter([fake.generated("Rhi"), ("error", "the engine refused a step")])
    with pytest.raises(GenerationFailed, match="refused a step"):
        await rivers.generate(64)
    assert rivers.last_reply is not None
    assert rivers.last_reply.text == "Rhi"


async def test_stream_that_breaks_off_is_lost(server: FakeWebServer, rivers: AsyncSession) -> None:
    server.model = lambda fake, _: iter([fake.generated("Rhi"), ("cut", None)])
    with pytest.raises(ConnectionLost):
        await rivers.generate(64)


async def test_tasks_stream_at_the_same_time(server: FakeWebServer, rivers: AsyncSession) -> None:
    server.model = say("a", "b", "c")
    forks = [await rivers.fork(seed=seed) for seed in range(6)]
    replies = await asyncio.gather(*(fork.generate(64) for fork in forks))
    assert [reply.text for reply in replies] == ["abc"] * 6


async def test_requests_in_a_row_share_a_connection(server: FakeWebServer, rivers: AsyncSession) -> None:
    await rivers.generate(64)
    await rivers.events()
    assert server.connections == 1


async def test_request_on_a_connection_the_server_has_closed_takes_a_fresh_one(
    server: FakeWebServer, async_client: AsyncClient
) -> None:
    server.drops_after_answer = True
    session = await async_client.session()
    wait_until(lambda: server.closed_connections == 1)
    assert (await session.user("one")).id == 1
    assert server.connections == 2


def test_client_may_be_used_by_one_event_loop_after_the_other(server: FakeWebServer) -> None:
    client = AsyncClient(server.url, token_file=server.token_file)
    ids = [asyncio.run(_new_session(client)) for _ in range(3)]
    assert ids == [1, 2, 3]
    del client
    gc.collect()


async def _new_session(client: AsyncClient) -> int:
    return (await client.session()).id


async def test_token_that_changed_is_read_again(server: FakeWebServer, rivers: AsyncSession) -> None:
    server.renew_token()
    assert (await rivers.generate(64)).text == "Rhine, Rhône, Po"
    assert (await rivers.user("And lakes?")).kind == "Message"


async def test_token_that_is_wrong_is_unauthorized(server: FakeWebServer) -> None:
    async with AsyncClient(server.url, token="0" * 64) as client:
        with pytest.raises(Unauthorized):
            await client.session_ids()


async def test_request_without_a_server_is_unreachable() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        client = AsyncClient(f"http://127.0.0.1:{reserved.getsockname()[1]}", token="x")
        assert not await client.is_healthy()
        with pytest.raises(
            ServerUnreachable, match=r"no server answers .*`superfluid serve --web 127.0.0.1:\d+` starts one"
        ):
            await client.session_ids()
        with pytest.raises(ServerUnreachable, match="within 0 s"):
            await client.wait_until_healthy(0)


async def test_request_without_an_answer_in_time_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = AsyncClient(f"http://127.0.0.1:{listener.getsockname()[1]}", token="x", timeout=0.05)
        with pytest.raises(ConnectionLost, match=r"silent for 0.05 s"):
            await client.session_ids()
