"""The load: many streaming completions from one process, read by hand so that the client hardly uses the cores that
the server under test needs. The same code drives every server. It understands what they send: HTTP/1.1, chunked or
closed at the end, one ``data:`` line per event.
"""

import asyncio
import json
import re
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import uvloop

_TEXT = re.compile(rb'"(?:content|text)":\s*"(?!")')
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
DEFAULT_DEADLINE_SECONDS = 600.0

Result = TypeVar("Result")


class BenchmarkError(Exception):
    """A contender did not do what the comparison needs; the message says which and what."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int


@dataclass(slots=True)
class StreamRecord:
    """One finished (or cut) stream. Times are ``time.perf_counter`` seconds, one for each event that carried text."""

    sent: float
    status: int
    text_times: list[float]
    events: list[bytes] = field(repr=False)

    @property
    def first_token_seconds(self) -> float:
        """From sending the request to the first text. Raises BenchmarkError if there was none."""
        if not self.text_times:
            raise BenchmarkError(f"a stream ended without any text (status {self.status})")
        return self.text_times[0] - self.sent

    def text(self) -> str:
        """All the text of the stream."""
        return "".join(_text_of(choice) for event in self._objects() for choice in event.get("choices") or [])

    def event_texts(self) -> list[str]:
        """The text of each event that carried some, in the order of ``text_times``."""
        events = [json.loads(event) for event in self.events if _TEXT.search(event)]
        return ["".join(_text_of(choice) for choice in event.get("choices") or []) for event in events]

    def usage(self) -> dict[str, Any]:
        """The last usage object of the stream, or an empty one if the server sends none."""
        return next((event["usage"] for event in reversed(self._objects()) if event.get("usage")), {})

    def _objects(self) -> list[dict[str, Any]]:
        return [json.loads(event) for event in self.events if event != b"[DONE]"]


def _text_of(choice: dict[str, Any]) -> str:
    value = choice["delta"].get("content") if "delta" in choice else choice.get("text")
    return value or ""


class EventStream(asyncio.Protocol):
    """One request and its event stream. ``started`` resolves once ``start_count`` events carried text."""

    def __init__(self, request: bytes, start_count: int) -> None:
        loop = asyncio.get_running_loop()
        self.record = StreamRecord(sent=0.0, status=0, text_times=[], events=[])
        self.started: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.failure = bytearray()
        self._request = request
        self._start_count = start_count
        self._head = bytearray()
        self._is_head_read = False
        self._body = ChunkedBody()
        self._is_chunked = False
        self._line = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without inheriting from it
        self.record.sent = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._is_head_read:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            data = bytes(self._head[end + 4 :])
            self._read_head(bytes(self._head[:end]))
        payload = self._body.feed(data) if self._is_chunked else data
        if self.record.status != 200:
            self.failure += payload
        else:
            self._read_lines(payload, now)
        if self._is_chunked and self._body.is_complete:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.started, self.ended):
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Ends the connection: a cut stream is cancelled by every server here."""
        if self._transport is not None:
            self._transport.abort()

    def _read_head(self, head: bytes) -> None:
        self._is_head_read = True
        match = _STATUS.match(head)
        self.record.status = int(match.group(1)) if match else 0
        self._is_chunked = b"transfer-encoding: chunked" in head.lower()

    def _read_lines(self, payload: bytes, now: float) -> None:
        lines = (self._line + payload).split(b"\n")
        self._line = lines.pop()
        record = self.record
        for line in lines:
            if line.startswith(b"data:"):
                event = line[5:].strip()
                record.events.append(event)
                if _TEXT.search(event):
                    record.text_times.append(now)
        if len(record.text_times) >= self._start_count and not self.started.done():
            self.started.set_result(None)


class ChunkedBody:
    """Undoes HTTP/1.1 chunked transfer coding, piece by piece."""

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0
        self.is_complete = False

    def feed(self, data: bytes) -> bytes:
        """The payload bytes that ``data`` completes."""
        self._buffer += data
        pieces: list[bytes] = []
        while self._buffer and not self.is_complete:
            if self._left == 0:
                line, mark, rest = self._buffer.partition(b"\r\n")
                if not mark:
                    break
                if not line:
                    self._buffer = rest
                    continue
                self._left = int(line.split(b";")[0], 16)
                self._buffer = rest
                self.is_complete = self._left == 0
                continue
            piece = self._buffer[: self._left]
            self._left -= len(piece)
            self._buffer = self._buffer[len(piece) :]
            pieces.append(piece)
        return b"".join(pieces)


async def open_stream(
    address: Address, path: str, body: dict[str, Any], start_count: int = 1, *, headers: Mapping[str, str] | None = None
) -> EventStream:
    """Sends the request on a connection of its own and returns at once."""
    payload = json.dumps(body).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nContent-Type: application/json\r\n"
        f"{more}Accept: text/event-stream\r\nConnection: close\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(
        lambda: EventStream(head.encode() + payload, start_count), address.host, address.port
    )
    return stream


async def finish(stream: EventStream, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> StreamRecord:
    """Waits for the stream's end. Raises BenchmarkError on a refusal and when the deadline passes."""
    try:
        await asyncio.wait_for(asyncio.shield(stream.ended), deadline_seconds)
    except TimeoutError:
        stream.close()
        raise BenchmarkError(f"a stream did not end within {deadline_seconds:.0f} s") from None
    if stream.record.status != 200:
        raise BenchmarkError(f"a request was refused with {stream.record.status}: {stream.failure.decode()[:500]}")
    return stream.record


async def complete_all(address: Address, path: str, bodies: list[dict[str, Any]]) -> list[StreamRecord]:
    """Sends all requests together and waits for all of their streams."""
    streams = [await open_stream(address, path, body) for body in bodies]
    return [await finish(stream) for stream in streams]


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs a client's coroutine on a fresh uvloop."""
    return uvloop.run(work)
