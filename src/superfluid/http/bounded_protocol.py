"""uvicorn's HTTP connection with two bounds that it lacks: on a request's head, in bytes and in time. In the daemon.

Without them anybody who reaches the port can make the daemon keep a header of any length, and hold connections for ever
by never finishing a request's first lines.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 31\r\n\r\nthe request's head is too large"
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """Bytes that complete neither a head nor a part of a body are counted: lines of a head, trailers behind a body."""

    head_seconds = HEAD_SECONDS

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._fruitless_bytes = 0
        self._is_fruitful = False
        self._head_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._head_deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_head()
        self._is_fruitful = False
        super().data_received(data)
        self._fruitless_bytes = 0 if self._is_fruitful else self._fruitless_bytes + len(data)
        if self._fruitless_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._is_fruitful = True
        self._have_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._is_fruitful = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_fruitful = True
        super().on_message_complete()

    def _expect_head(self) -> None:
        self._head_deadline = self.loop.call_later(self.head_seconds, self.transport.close)

    def _have_head(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None
