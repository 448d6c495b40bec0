"""Requests that never get to their point: endless heads and trailers, heads that come slowly or not at all."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.fixtures.http_server import FrontEnd

from superfluid.http.bounded_protocol import MAX_HEAD_BYTES, BoundedHttpProtocol

DEADLINE_SECONDS = 30
# Beyond the bound, what lies in the buffers of both sockets is still taken.
ENDLESS = 64 * 1024 * 1024
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
MODELS = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def pour(self, head: bytes, filling: bytes, *, most: int = ENDLESS) -> int:
        """Sends ``head`` and then ``filling`` again and again, until the server hangs up. How many bytes it took."""
        self.writer.write(head)
        sent = 0
        try:
            while sent < most:
                self.writer.write(filling)
                await self.writer.drain()
                sent += len(filling)
        except (BrokenPipeError, ConnectionResetError):
            return sent
        raise AssertionError(f"the server took {sent} bytes")

    async def status(self) -> int:
        async with asyncio.timeout(DEADLINE_SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            await self.reader.readexactly(length)
        return int(head.split()[1])

    async def is_closed(self) -> bool:
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True


@pytest.fixture
async def address() -> AsyncIterator[tuple[str, int]]:
    async with FrontEnd().serve() as served:
        yield served


async def connect(address: tuple[str, int]) -> RawClient:
    return RawClient(*await asyncio.open_connection(*address))


@pytest.mark.parametrize(
    ("head", "filling"),
    [
        pytest.param(b"GET /health HTTP/1.1\r\nX-A: ", b"x" * 65536, id="a header's value"),
        pytest.param(b"GET /health HTTP/1.1\r\n", b"x" * 65536, id="a header's name"),
        pytest.param(b"GET /health HTTP/1.1\r\n", b"X-A: x\r\n" * 8192, id="headers"),
        pytest.param(b"GET /", b"x" * 65536, id="a path"),
        pytest.param(
            b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            b"X-A: x\r\n" * 8192,
            id="trailers",
        ),
    ],
)
async def test_head_without_end_is_cut_off(address: tuple[str, int], head: bytes, filling: bytes) -> None:
    client = await connect(address)
    await client.pour(head, filling)
    other = await connect(address)
    other.writer.write(MODELS)
    assert await other.status() == 200


async def test_head_over_the_bound_is_refused_by_its_status(address: tuple[str, int]) -> None:
    client = await connect(address)
    client.writer.write(b"GET /v1/models HTTP/1.1\r\nX-A: " + b"x" * (MAX_HEAD_BYTES + 1))
    assert await client.status() == 431
    assert await client.is_closed()


async def test_head_within_the_bound_and_a_body_far_over_it_are_served(address: tuple[str, int]) -> None:
    client = await connect(address)
    for _ in range(2):
        client.writer.write(MODELS[:-2] + b"X-A: " + b"x" * 30_000 + b"\r\n\r\n")
        assert await client.status() == 200
        body = b'{"model": 1, "prompt": "' + b"x" * (10 * MAX_HEAD_BYTES) + b'"}'
        client.writer.write(POST % len(body) + body)
        assert await client.status() == 400


async def test_pipelined_requests_are_all_answered(address: tuple[str, int]) -> None:
    client = await connect(address)
    client.writer.write(MODELS * 500)
    for _ in range(500):
        assert await client.status() == 200


async def test_head_that_comes_byte_by_byte_is_served(address: tuple[str, int]) -> None:
    client = await connect(address)
    for byte in MODELS:
        client.writer.write(bytes([byte]))
        await client.writer.drain()
    assert await client.status() == 200


@pytest.mark.parametrize("earlier", [0, 2])
@pytest.mark.parametrize("beginning", [b"", b"G", b"GET /v1/models HTTP/1.1\r\nX-A: "])
async def test_head_that_does_not_come_in_time_ends_the_connection(
    earlier: int, beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "head_seconds", 0.3)
    async with FrontEnd().serve() as address:
        client = await connect(address)
        for _ in range(earlier):
            client.writer.write(MODELS)
            assert await client.status() == 200
        client.writer.write(beginning)
        # Between requests a client may rest longer.
        if beginning or not earlier:
            assert await client.is_closed()


async def test_request_that_takes_longer_than_a_head_may_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "head_seconds", 0.3)
    async with FrontEnd().serve() as address:
        client = await connect(address)
        body = b'{"model": 1}'
        client.writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        await client.writer.drain()
        await asyncio.sleep(0.5)
        client.writer.write(body)
        assert await client.status() == 400


async def test_many_connections_that_say_nothing_keep_nobody_else_from_being_served(address: tuple[str, int]) -> None:
    silent = [await connect(address) for _ in range(300)]
    for client in silent[::2]:
        client.writer.write(b"GET /v1/mo")
    other = await connect(address)
    other.writer.write(MODELS)
    assert await other.status() == 200
    for client in silent:
        client.writer.transport.abort()
