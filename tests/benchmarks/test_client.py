"""The benchmark's own client, against a socket that sends what servers send, cut into awkward pieces."""

import asyncio
import json

import pytest
from benchmarks.client import Address, BenchmarkError, ChunkedBody, StreamRecord, complete_all

BODY = b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(BODY)])
def test_chunked_body_in_pieces_of_any_size_gives_the_payload(size: int) -> None:
    body = ChunkedBody()
    pieces = [body.feed(BODY[start : start + size]) for start in range(0, len(BODY), size)]
    assert b"".join(pieces) == b"hello world"
    assert body.is_complete


def test_chunked_body_before_its_last_chunk_is_not_complete() -> None:
    body = ChunkedBody()
    body.feed(BODY[:-5])
    assert not body.is_complete


async def serve_once(reply: bytes) -> tuple[asyncio.Server, Address]:
    """A server that answers each connection with ``reply``, in two pieces, and closes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in (reply[: len(reply) // 2], reply[len(reply) // 2 :]):
            writer.write(piece)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, Address("127.0.0.1", server.sockets[0].getsockname()[1])


def event(delta: dict[str, object], **more: object) -> bytes:
    payload = json.dumps({"choices": [{"index": 0, "delta": delta}], **more}).encode()
    return b"data: " + payload + b"\n\n"


EVENTS = (
    event({"role": "assistant", "content": None})
    + event({"role": "assistant", "content": ""})
    + event({"content": 'say "hi"'})
    + event({"content": " there"})
    + event({}, usage={"completion_tokens": 3})
    + b"data: [DONE]\n\n"
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(HEAD + b"\r\n" + EVENTS, id="until close"),
        pytest.param(HEAD + b"\r\n" + EVENTS.replace(b"\n", b"\r\n"), id="long line ends"),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(EVENTS), EVENTS), id="chunked"
        ),
    ],
)
async def test_stream_counts_only_events_that_carry_text(reply: bytes) -> None:
    server, address = await serve_once(reply)
    async with server:
        (record,) = await complete_all(address, "/v1/chat/completions", [{"stream": True}])
    assert len(record.text_times) == 2
    assert record.text() == 'say "hi" there'
    assert record.usage() == {"completion_tokens": 3}
    assert record.first_token_seconds > 0


async def test_stream_when_refused_raises_with_the_servers_words() -> None:
    server, address = await serve_once(b"HTTP/1.1 400 Bad Request\r\n\r\nwhat is that?")
    async with server:
        with pytest.raises(BenchmarkError, match="400: what is that"):
            await complete_all(address, "/v1/chat/completions", [{}])


def test_first_token_seconds_of_a_stream_without_text_is_an_error() -> None:
    with pytest.raises(BenchmarkError, match="without any text"):
        _ = StreamRecord(sent=0.0, status=200, text_times=[], events=[]).first_token_seconds
