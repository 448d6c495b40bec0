"""WebSocket frames as no client sends them, on raw connections: how they end, while nobody else and no log notices."""

import asyncio
import logging
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from tests.fixtures.scripted_sessions import ScriptedSessions
from tests.fixtures.session_web import ORIGIN, TOKEN, RawResponse, WebListener, read_response, web_serving

HANDSHAKE = (
    "GET /web/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Origin: {ORIGIN}\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    f"Sec-WebSocket-Protocol: superfluid.v1, superfluid.token.{TOKEN}\r\n"
)
DEADLINE_SECONDS = 30
TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 0x81, 0x82, 0x80, 0x88, 0x89, 0x8A
BEGUN_TEXT, PART = 0x01, 0x00


class RawSocket:
    """A WebSocket after its handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, first: int, payload: bytes = b"", *, length: bytes | None = None, is_masked: bool = True) -> None:
        """One frame; ``length`` in place of the right one."""
        if length is None:
            size = len(payload)
            length = bytes([size]) if size < 126 else b"\x7f" + struct.pack(">Q", size)
        mask = 0x80 if is_masked else 0
        self.writer.write(bytes([first, length[0] | mask]) + length[1:] + (b"\0" * 4 if is_masked else b"") + payload)

    async def receive(self) -> tuple[int, bytes] | None:
        """(first byte, payload), or ``None`` at the end."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                first, size = await self.reader.readexactly(2)
                if size == 126:
                    (size,) = struct.unpack(">H", await self.reader.readexactly(2))
                elif size == 127:
                    (size,) = struct.unpack(">Q", await self.reader.readexactly(8))
                return first, await self.reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionResetError):
                return None

    async def close_code(self) -> int:
        """The server's, after which it closes the connection as well."""
        frame = await self.receive()
        while frame is not None and frame[0] != CLOSE:
            frame = await self.receive()
        assert frame is not None
        assert await self.receive() is None
        return int.from_bytes(frame[1][:2], "big")


@asynccontextmanager
async def raw_socket(web: WebListener) -> AsyncIterator[RawSocket]:
    response, socket = await shake_hands(web, HANDSHAKE)
    assert response.status == 101, response
    try:
        yield socket
    finally:
        socket.writer.transport.abort()


async def shake_hands(web: WebListener, head: str) -> tuple[RawResponse, RawSocket]:
    reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
    writer.write(head.encode("latin-1") + b"\r\n")
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await read_response(reader), RawSocket(reader, writer)


async def ask_list(socket: RawSocket) -> None:
    socket.send(TEXT, b'"List"')
    assert await socket.receive() == (TEXT, b'{"Sessions":{"ids":[]}}')


@pytest.fixture
def no_errors(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING)
    return caplog


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        pytest.param([(0x83, b"")], 1002, id="unknown data opcode"),
        pytest.param([(0x8B, b"")], 1002, id="unknown control opcode"),
        pytest.param([(0xC1, b'"List"')], 1002, id="reserved bit"),
        pytest.param([(0xF1, b'"List"')], 1002, id="all reserved bits"),
        pytest.param([(PART, b"x")], 1002, id="part of nothing"),
        pytest.param([(CONTINUATION, b"x")], 1002, id="last part of nothing"),
        pytest.param([(BEGUN_TEXT, b'"Li'), (TEXT, b'"List"')], 1002, id="message inside a message"),
        pytest.param([(0x09, b"")], 1002, id="ping in parts"),
        pytest.param([(PING, b"x" * 126)], 1002, id="long ping"),
        pytest.param([(CLOSE, b"\x03")], 1002, id="half a close code"),
        pytest.param([(CLOSE, b"\x00\x00")], 1002, id="close code 0"),
        pytest.param([(CLOSE, struct.pack(">H", 1005))], 1002, id="close code that is never sent"),
        pytest.param([(CLOSE, struct.pack(">H", 1000) + b"\xff")], 1007, id="close reason that is no text"),
        pytest.param([(TEXT, b"\xff\xfe")], 1007, id="text that is none"),
        pytest.param([(BEGUN_TEXT, b'"\xc3'), (CONTINUATION, b'x"')], 1007, id="text that is none, in parts"),
        pytest.param([(CLOSE, struct.pack(">H", 1000))], 1000, id="a right close"),
        pytest.param([(BEGUN_TEXT, b"x"), (CLOSE, struct.pack(">H", 1000))], 1002, id="close inside a message"),
    ],
)
async def test_frame_that_breaks_the_protocol_ends_its_connection_with_the_right_code_and_no_other(
    frames: list[tuple[int, bytes]], code: int, no_errors: pytest.LogCaptureFixture
) -> None:
    async with web_serving(ScriptedSessions()) as web, raw_socket(web) as socket, raw_socket(web) as other:
        await ask_list(socket)
        for first, payload in frames:
            socket.send(first, payload)
        assert await socket.close_code() == code
        await ask_list(other)
    assert no_errors.records == []


async def test_frame_that_is_not_masked_ends_its_connection(no_errors: pytest.LogCaptureFixture) -> None:
    async with web_serving(ScriptedSessions()) as web, raw_socket(web) as socket:
        socket.send(TEXT, b'"List"', is_masked=False)
        assert await socket.close_code() == 1002
    assert no_errors.records == []


@pytest.mark.parametrize("length", [2**26 + 1, 2**31, 2**62])
async def test_frame_over_the_bound_is_refused_by_its_length_alone(length: int) -> None:
    async with web_serving(ScriptedSessions()) as web, raw_socket(web) as socket:
        socket.send(TEXT, b"x", length=b"\x7f" + struct.pack(">Q", length))
        assert await socket.close_code() == 1009


async def test_length_whose_first_bit_is_set_is_refused() -> None:
    async with web_serving(ScriptedSessions()) as web, raw_socket(web) as socket:
        socket.send(TEXT, b"x", length=b"\x7f" + b"\xff" * 8)
        assert await socket.close_code() in (1002, 1009)


async def test_message_in_parts_over_the_bound_is_refused() -> None:
    async with web_serving(ScriptedSessions()) as web, raw_socket(web) as socket:
        part = b" " * (1 << 24)
        socket.send(BEGUN_TEXT, part)
        for _ in range(4):
            socket.send(PART, part)
        assert await socket.close_code() == 1009


async def test_message_in_very_many_parts_is_kept_as_one() -> None:
    async with web_serving(ScriptedSessions()) as web, raw_socket(web) as socket:
        socket.send(BEGUN_TEXT, b'"List"')
        empty = bytes([PART, 0x80, 0, 0, 0, 0])
        for _ in range(40):
            socket.writer.write(empty * 5000)
            await socket.writer.drain()
        socket.send(CONTINUATION, b" ")
        assert await socket.receive() == (TEXT, b'{"Sessions":{"ids":[]}}')


async def test_message_byte_by_byte_is_answered() -> None:
    async with web_serving(ScriptedSessions()) as web, raw_socket(web) as socket, raw_socket(web) as other:
        frame = bytes([TEXT, 0x86, 1, 2, 3, 4]) + bytes(
            byte ^ mask for byte, mask in zip(b'"List"', (1, 2, 3, 4, 1, 2), strict=True)
        )
        for byte in frame:
            socket.writer.write(bytes([byte]))
            await socket.writer.drain()
            await ask_list(other)
        assert await socket.receive() == (TEXT, b'{"Sessions":{"ids":[]}}')


async def test_pings_are_answered_with_what_they_hold_between_messages() -> None:
    async with web_serving(ScriptedSessions()) as web, raw_socket(web) as socket:
        socket.send(BEGUN_TEXT, b'"Li')
        socket.send(PING, b"there?")
        assert await socket.receive() == (PONG, b"there?")
        socket.send(PONG, b"unasked")
        socket.send(CONTINUATION, b'st"')
        assert await socket.receive() == (TEXT, b'{"Sessions":{"ids":[]}}')


async def test_client_that_pings_and_never_reads_is_not_read_without_bound() -> None:
    async with web_serving(ScriptedSessions()) as web, raw_socket(web) as socket, raw_socket(web) as other:
        socket.reader._transport.pause_reading()  # type: ignore[attr-defined]
        socket.writer.transport.set_write_buffer_limits(high=0)
        pings = (bytes([PING, 0xFD, 0, 0, 0, 0]) + b"x" * 125) * 500
        sent = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                while sent < 200_000_000:
                    socket.writer.write(pings)
                    await socket.writer.drain()
                    sent += len(pings)
        # What both sockets' buffers in the kernel hold, and no more.
        assert sent < 40_000_000
        await ask_list(other)


async def test_client_that_stops_reading_and_goes_on_gets_everything() -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web, raw_socket(web) as socket:
        socket.reader._transport.pause_reading()  # type: ignore[attr-defined]
        asked = 3000
        metrics = b'"Metrics"'
        for _ in range(asked):
            socket.send(TEXT, metrics)
        await asyncio.sleep(0.05)
        socket.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(asked):
            frame = await socket.receive()
            assert frame is not None
            assert frame[1].startswith(b'{"Text"')


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (HANDSHAKE.replace("dGhlIHNhbXBsZSBub25jZQ==", "short"), 400),
        (HANDSHAKE.replace("Version: 13", "Version: 8"), 400),
        (HANDSHAKE.replace("Sec-WebSocket-Key", "X-Key"), 400),
        (HANDSHAKE.replace("GET ", "POST "), 405),
        (HANDSHAKE + f"X-Long: {'x' * 9000}\r\n", 431),
        (HANDSHAKE.replace("/web/ws", f"/web/ws?{'x' * 9000}"), 414),
        (HANDSHAKE + "X-Many: x\r\n" * 300, 431),
    ],
)
async def test_handshake_that_is_wrong_is_refused_and_closed(head: str, status: int) -> None:
    async with web_serving(ScriptedSessions()) as web:
        response, socket = await shake_hands(web, head)
        assert response.status == status
        assert await socket.receive() is None
        async with raw_socket(web) as other:
            await ask_list(other)


async def test_client_that_leaves_during_the_handshake_is_no_error(no_errors: pytest.LogCaptureFixture) -> None:
    async with web_serving(ScriptedSessions()) as web:
        for extra in (b"", b"\x88\x80\0\0\0\0", b"\xff\xff\xff\xff", b"\x81\x86\0\0\0\0"):
            for _ in range(20):
                _, writer = await asyncio.open_connection("127.0.0.1", web.port)
                writer.write(HANDSHAKE.encode() + b"\r\n" + extra)
                await asyncio.sleep(0)
                writer.transport.abort()
        async with raw_socket(web) as other, asyncio.timeout(DEADLINE_SECONDS):
            await ask_list(other)
            while web.server.sockets > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    assert no_errors.records == []


async def test_frames_ahead_of_the_handshakes_answer_do_no_harm(no_errors: pytest.LogCaptureFixture) -> None:
    async with web_serving(ScriptedSessions()) as web:
        for frame in (b"\x83\x80\0\0\0\0", b"\x81\x82\0\0\0\0\xff\xff", b"\x88\x80\0\0\0\0"):
            reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
            writer.write(HANDSHAKE.encode() + b"\r\n")
            await writer.drain()
            writer.write(frame)
            async with asyncio.timeout(DEADLINE_SECONDS):
                await read_response(reader)
            writer.transport.abort()
        async with raw_socket(web) as other:
            await ask_list(other)
    assert no_errors.records == []


async def test_many_sockets_opened_and_left_leave_nothing_behind() -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web:
        sockets = [(await shake_hands(web, HANDSHAKE))[1] for _ in range(200)]
        await ask_list(sockets[0])
        assert web.server.sockets == 200
        for socket in sockets:
            socket.writer.transport.abort()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while web.server.sockets:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        async with raw_socket(web) as other:
            await ask_list(other)
