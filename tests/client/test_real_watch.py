"""Watching sessions of a real daemon: kills, slow readers, cancelled readers."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from superfluid_client import (
    AsyncClient,
    AsyncWatch,
    BlockKind,
    Chunk,
    Client,
    Event,
    Sampling,
    ServerUnreachable,
    Session,
    UnknownSession,
)
from superfluid_client.asyncio_network import AsyncioLink, AsyncioNetwork
from superfluid_client.network import Address, Link
from tests.client.real_server import RealServer

SCRIPT = {"replies": [{"when": "babble"}, {"text": "Rhine, Rhône, Po."}], "step_seconds": 0.001}
SECONDS = 60


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with RealServer(tmp_path_factory.mktemp("home"), SCRIPT) as server:
        yield server


@pytest.fixture
def session(daemon: RealServer) -> Session:
    return daemon.sf.session(Sampling(seed=5))


class NarrowNetwork(AsyncioNetwork):
    """Reads no more ahead than it must, and counts the connections it makes."""

    def __init__(self) -> None:
        self.connections = 0

    async def connect(self, address: Address, timeout_seconds: float) -> Link:
        self.connections += 1
        assert isinstance(address, Path)
        return AsyncioLink(*await asyncio.open_unix_connection(address, limit=1024))


async def take(watch: AsyncWatch, count: int) -> list[Event]:
    async with asyncio.timeout(SECONDS):
        return [await anext(watch) for _ in range(count)]


def test_real_watch_yields_the_log_and_what_comes(session: Session) -> None:
    session.user("Name three rivers.")
    seen: list[Event] = []
    is_over = threading.Event()

    def follow() -> None:
        for event in session.watch():
            seen.append(event)
            if event.kind == "MetaUpdated":
                break
        is_over.set()

    thread = threading.Thread(target=follow)
    thread.start()
    session.generate(64)
    session.set_title("Rivers")
    assert is_over.wait(SECONDS)
    thread.join()
    assert seen == session.events()


def test_real_watch_closed_by_another_thread_ends(session: Session) -> None:
    watch = session.watch()
    assert next(watch).kind == "Created"
    closer = threading.Timer(0.1, watch.close)
    closer.start()
    assert list(watch) == []
    closer.join()


async def test_real_watch_shows_provisional_text_that_adds_up(daemon: RealServer, session: Session) -> None:
    session.user("Name three rivers.")
    shown: list[Chunk] = []
    client = daemon.async_client()
    watch = client.session_of(session.id).watch(session.event_count(), on_provisional=shown.append)
    first = asyncio.create_task(take(watch, 1))
    reply = await client.session_of(session.id).generate(64)
    await first
    await take(watch, session.event_count() - watch.cursor)
    assert "".join(chunk.text for chunk in shown) == reply.text == "Rhine, Rhône, Po."
    client.close()
    watch.close()


def test_real_watch_of_an_unknown_session_raises(daemon: RealServer) -> None:
    with pytest.raises(UnknownSession):
        next(daemon.sf.session_of(10**9).watch())


def test_real_watch_without_a_daemon_is_unreachable(tmp_path: Path) -> None:
    client = Client(token="x", socket=tmp_path / "no.sock")
    with pytest.raises(ServerUnreachable, match=r"no\.sock"):
        next(client.session_of(1).watch())


async def test_real_watch_survives_a_killed_daemon_and_yields_each_event_once(tmp_path: Path) -> None:
    with RealServer(tmp_path, {"step_seconds": 0.005}) as server:
        session = server.sf.session(Sampling(seed=5))
        session.user("Please babble.")
        watch = server.async_client().session_of(session.id).watch()
        seen: list[Event] = []
        for _ in range(3):
            stream = session.stream(5_000)
            next(stream)
            seen += await take(watch, 20)
            server.kill()
            waiting = asyncio.create_task(take(watch, 1))
            await asyncio.to_thread(server.start)
            seen += await waiting
            stream.close()
        session.generate(30)
        log = session.events()
        seen += await take(watch, len(log) - len(seen))
        assert seen == log
        assert sum(event.kind == "EpochBump" for event in seen) == 3


async def test_real_watch_that_reads_too_slowly_falls_behind_and_misses_nothing(daemon: RealServer) -> None:
    network = NarrowNetwork()
    slow = AsyncClient(daemon.url, token_file=daemon.token_file, socket=daemon.socket, network=network)
    async with daemon.async_client() as client:
        session = await client.session()
        watch = slow.session_of(session.id).watch()
        seen = await take(watch, 1)
        # Nobody reads meanwhile. What the daemon and the system keep for a reader (1,024 items and more) runs over.
        for _ in range(60):
            await asyncio.gather(*(session.block(BlockKind.PROGRESS, "x" * 1_000) for _ in range(32)))
        log = await session.events()
        seen += await take(watch, len(log) - 1)
        assert seen == log
        assert network.connections > 1
