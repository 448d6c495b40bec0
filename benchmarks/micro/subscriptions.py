"""What subscriptions cost those who generate: 8 generating sessions, with and without 500 subscribers beside them.

Run with ``python -m benchmarks.micro.subscriptions --model MODEL.gguf``, or without a model to serve the fake engine at
full speed, where the daemon's own work is all there is. One server, pairs of measurements (without, with; with,
without; ...), half of the subscribers on the unix socket and half on WebSockets. Idle ones follow sessions in which
nothing happens; with ``--follow`` they follow the generating ones instead, so that every event is sent 63 times.
"""

import argparse
import asyncio
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.typing import Origin, Subprotocol

from benchmarks.process_usage import cpu_seconds, resident_bytes
from benchmarks.servers import free_port, stop
from superfluid.domain.events import Generated, GenParams
from superfluid.native import postcard, requests, responses
from superfluid.native.frames import encode_frame
from superfluid.native.protocol import Request, Response

PARAMS = GenParams(0.0, 1.0, 0.0, 0, 1)
ORIGIN = "http://localhost:5173"
SESSIONS = 8
WARM_TOKENS = 4
START_SECONDS = 120.0
TARGET = 0.95


class Place(NamedTuple):
    """A server's doors, and its process."""

    socket: Path
    web_port: int
    token: str
    pid: int


class Measured(NamedTuple):
    """One measurement."""

    tokens_per_second: float
    cpu_seconds_per_1000_tokens: float


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--subscribers", type=int, default=500)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--follow", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="sf-subs-") as home:
        web_port = free_port()
        process = start(Path(home), web_port, options.model)
        try:
            asyncio.run(compare(Path(home), web_port, process.pid, options))
        finally:
            stop(process)
    return 0


def start(home: Path, web_port: int, model: Path | None) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "superfluid.cli.main", "serve", *([] if model is None else [str(model)])]
    command += [
        "--no-tui",
        "--http",
        "127.0.0.1:0",
        "--socket",
        str(home / "s.sock"),
        "--sessions",
        str(home / "sessions"),
    ]
    command += ["--web", f"127.0.0.1:{web_port}", "--web-origin", ORIGIN, "--max-batch", str(SESSIONS)]
    command += ["--runtime", "fake"] if model is None else ["--max-context", "2048"]
    with (home / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"SUPERFLUID_HOME": str(home)})


async def compare(home: Path, web_port: int, pid: int, options: argparse.Namespace) -> None:
    await wait_until_ready(home / "s.sock")
    place = Place(home / "s.sock", web_port, (home / "sessions" / "web-token").read_text(), pid)
    pairs: list[dict[bool, Measured]] = []
    idle_bytes = resident_bytes(place.pid)
    peak_bytes = idle_bytes
    for number in range(options.pairs):
        pair: dict[bool, Measured] = {}
        for is_watched in (False, True) if number % 2 == 0 else (True, False):
            subscribers = options.subscribers if is_watched else 0
            pair[is_watched] = await measure(place, subscribers, options.seconds, follow=options.follow)
            peak_bytes = max(peak_bytes, resident_bytes(place.pid))
        pairs.append(pair)
        print(
            f"pair {number + 1}: {pair[False].tokens_per_second:.0f} without, {pair[True].tokens_per_second:.0f} with"
        )
    report(pairs, options, idle_bytes, peak_bytes)


def report(pairs: Sequence[dict[bool, Measured]], options: argparse.Namespace, idle: int, peak: int) -> None:
    ratios = [pair[True].tokens_per_second / pair[False].tokens_per_second for pair in pairs]
    for is_watched, name in ((False, "without"), (True, f"with {options.subscribers}")):
        speed = statistics.median(pair[is_watched].tokens_per_second for pair in pairs)
        cpu = statistics.median(pair[is_watched].cpu_seconds_per_1000_tokens for pair in pairs)
        print(f"{name}: {speed:.0f} tokens a second, {cpu:.3f} s of the daemon's CPU per 1,000 tokens")
    median = statistics.median(ratios)
    verdict = "met" if median >= TARGET else "MISSED"
    print(f"ratio {median:.3f} ({min(ratios):.3f}-{max(ratios):.3f}), goal at least {TARGET}: {verdict}")
    print(f"the daemon's memory: {idle / 1e6:.0f} MB at the start, {peak / 1e6:.0f} MB at most between measurements")


# ---- one measurement


async def measure(place: Place, subscribers: int, seconds: float, *, follow: bool) -> Measured:
    """Tokens that arrive in ``seconds``, from when all sessions have begun."""
    writers = [await Connection.open(place.socket) for _ in range(SESSIONS)]
    sessions = [await make_session(writer, number) for number, writer in enumerate(writers)]
    watched = sessions
    if subscribers and not follow:
        watched = [await make_session(writers[0], number) for number in range(subscribers)]
    async with following(place, [watched[number % len(watched)] for number in range(subscribers)]):
        counter = Counter()
        tasks = [
            asyncio.create_task(generate(writer, session, counter))
            for writer, session in zip(writers, sessions, strict=True)
        ]
        await counter.warm(sessions)
        started, cpu, before = time.perf_counter(), cpu_seconds(place.pid), counter.total
        await asyncio.sleep(seconds)
        tokens, elapsed, cpu = counter.total - before, time.perf_counter() - started, cpu_seconds(place.pid) - cpu
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for writer in writers:
            writer.close()
    await asyncio.sleep(0.5)
    return Measured(tokens / elapsed, cpu / tokens * 1000)


class Counter:
    """The tokens that have arrived."""

    def __init__(self) -> None:
        self.total = 0
        self._tokens: dict[int, int] = {}
        self._has_more = asyncio.Event()

    def add(self, session: int, tokens: int) -> None:
        self._tokens[session] = self._tokens.get(session, 0) + tokens
        self.total += tokens
        self._has_more.set()

    async def warm(self, sessions: Sequence[int]) -> None:
        """Until all of them have begun."""
        while min(self._tokens.get(session, 0) for session in sessions) < WARM_TOKENS:
            self._has_more.clear()
            await self._has_more.wait()


class Connection:
    """A client of the unix socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, path: Path) -> "Connection":
        return cls(*await asyncio.open_unix_connection(str(path)))

    async def send(self, request: Request) -> None:
        self.writer.write(encode_frame(postcard.request_codec().encode(request)))
        await self.writer.drain()

    async def payload(self) -> bytes:
        (length,) = struct.unpack("<I", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def call(self, request: Request) -> Response:
        await self.send(request)
        return postcard.response_codec().decode(await self.payload())

    def close(self) -> None:
        self.writer.transport.abort()


async def make_session(client: Connection, number: int) -> int:
    created = await client.call(requests.Create(None, PARAMS))
    assert isinstance(created, responses.Created), created
    text = f"Tell a very long story about {number + 3} sailors and an island. Do not stop early."
    await client.call(requests.AppendMessage(created.session, 1, text))
    return created.session


async def generate(client: Connection, session: int, counter: Counter) -> None:
    """Goes on until it is cancelled; a turn that ends is followed by the next."""
    decode = postcard.response_codec().decode
    while True:
        await client.send(requests.Generate(session, 4000))
        while not isinstance(reply := decode(await client.payload()), responses.Generated):
            assert isinstance(reply, responses.Delta), reply
            if isinstance(reply.event.body, Generated):
                counter.add(session, len(reply.event.body.span))


# ---- subscribers


@asynccontextmanager
async def following(place: Place, sessions: Sequence[int]) -> AsyncIterator[None]:
    """One subscriber for each, on a connection of its own, that reads whatever comes."""
    on_socket = [await Connection.open(place.socket) for _ in sessions[::2]]
    on_web = [await open_websocket(place) for _ in sessions[1::2]]
    readers = []
    for client, session in zip(on_socket, sessions[::2], strict=True):
        await client.send(requests.Subscribe(session, 0, True))
        assert isinstance(postcard.response_codec().decode(await client.payload()), responses.Subscribed)
        readers.append(asyncio.create_task(read_socket(client)))
    for page, session in zip(on_web, sessions[1::2], strict=True):
        await page.send(json.dumps({"Subscribe": {"session": session, "cursor": 0, "provisional": True}}))
        assert "Subscribed" in str(await page.recv())
        readers.append(asyncio.create_task(read_websocket(page)))
    try:
        yield
    finally:
        for reader in readers:
            reader.cancel()
        if readers:
            await asyncio.wait(readers)
        for client in on_socket:
            client.close()
        for page in on_web:
            page.transport.abort()


async def open_websocket(place: Place) -> ClientConnection:
    protocols = [Subprotocol("superfluid.v1"), Subprotocol(f"superfluid.token.{place.token}")]
    url = f"ws://127.0.0.1:{place.web_port}/web/ws"
    return await connect_websocket(url, origin=Origin(ORIGIN), subprotocols=protocols, proxy=None, max_size=None)


async def read_socket(client: Connection) -> None:
    while await client.reader.read(1 << 16):
        continue


async def read_websocket(page: ClientConnection) -> None:
    while True:
        await page.recv()


async def wait_until_ready(path: Path) -> None:
    """Until the model is loaded: before that a session that is not there is not what is wrong."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            client = await Connection.open(path)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        reply = await client.call(requests.Generate(2**63 - 1, 1))
        client.close()
        if isinstance(reply, responses.Err) and "unknown session" in reply.message:
            return
        await asyncio.sleep(0.05)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
