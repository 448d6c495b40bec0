"""Requests to the web listener: kept-alive connections, the token's headers, statuses turned into exceptions.

Any number of threads, or of tasks, may use a transport at the same time: each request has a connection of its own
while it lasts.
"""

import json
import time
import urllib.parse
from collections import deque
from http import HTTPStatus
from typing import Any

from superfluid_client.answers import read_json, status_error
from superfluid_client.credentials import TokenSource
from superfluid_client.errors import ConnectionLost, ServerUnreachable, SuperfluidError, UnexpectedReply
from superfluid_client.http1 import Head, HttpConnection, MalformedHttpError
from superfluid_client.network import Network
from superfluid_client.sse import SseDecoder

DEFAULT_PORT = 80
# Servers close idle connections after a few seconds; one that is about to be closed is not worth the risk.
_LONGEST_IDLE_SECONDS = 3.0
_MOST_IDLE_CONNECTIONS = 32
# A living stream says at least something every 15 s, be it a comment.
_LONGEST_SILENCE_SECONDS = 60.0
_LONGEST_HEALTH_SECONDS = 5.0


class WebTransport:
    """Posts JSON to one listener."""

    def __init__(self, url: str, tokens: TokenSource, timeout_seconds: float, network: Network) -> None:
        """Raises ValueError if ``url`` is no plain ``http://`` address."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"the server's address looks like http://127.0.0.1:8460, not {url!r}")
        self._address = parts.hostname, parts.port or DEFAULT_PORT
        self._host = parts.netloc.rpartition("@")[2]
        self._base = parts.path.rstrip("/")
        self._tokens = tokens
        self._timeout_seconds = timeout_seconds
        self._network = network
        # Appending to a deque and popping from it are atomic.
        self._idle: deque[tuple[HttpConnection, float]] = deque()

    async def post(self, path: str, body: Any, *, can_repeat: bool) -> Any:
        """The JSON that answers ``body``, in one piece.

        ``can_repeat`` says that a request may be sent twice if the first connection dies before any answer. Raises
        Unauthorized, Forbidden, Throttled, RequestRefused, ServerUnreachable, ConnectionLost and UnexpectedReply.
        """
        exchange = await self.open(path, body, timeout_seconds=self._timeout_seconds, can_repeat=can_repeat)
        try:
            content = await exchange.read()
        finally:
            exchange.close()
        return read_json(content)

    async def open(self, path: str, body: Any, *, timeout_seconds: float, can_repeat: bool) -> "Exchange":
        """Sends ``body`` and returns without waiting for the answer. Raises Unauthorized and ServerUnreachable."""
        content = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
        exchange = Exchange(self, path, content, timeout_seconds, can_repeat=can_repeat)
        try:
            await exchange.send()
        except BaseException:
            exchange.close()
            raise
        return exchange

    async def stream(self, path: str, body: Any) -> "Exchange":
        """As ``open``, for an answer that comes bit by bit: the time limit is for the silence between two bits."""
        silence = max(self._timeout_seconds, _LONGEST_SILENCE_SECONDS)
        return await self.open(path, body, timeout_seconds=silence, can_repeat=False)

    async def is_healthy(self) -> bool:
        """Whether the listener answers."""
        try:
            timeout_seconds = min(self._timeout_seconds, _LONGEST_HEALTH_SECONDS)
            connection, _ = await self.connect(timeout_seconds, is_fresh=True)
            try:
                await connection.send("GET", f"{self._base}/web/health", {})
                return (await connection.read_head()).status == HTTPStatus.OK
            finally:
                connection.close()
        except (OSError, MalformedHttpError, ServerUnreachable):
            return False

    def close(self) -> None:
        """Closes what is idle. Exchanges under way are their users' to close."""
        while self._idle:
            self._idle.pop()[0].close()

    # ---- for exchanges

    def headers(self) -> dict[str, str]:
        """Raises Unauthorized."""
        token = self._tokens.token()
        return {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {token}",
            "X-Superfluid-CSRF": token,
        }

    def has_other_token(self, headers: dict[str, str]) -> bool:
        """Whether the token was changed since ``headers`` were made. Raises Unauthorized."""
        return self._tokens.renewed(headers["X-Superfluid-CSRF"])

    def target(self, path: str) -> str:
        return self._base + path

    async def connect(self, timeout_seconds: float, *, is_fresh: bool) -> tuple[HttpConnection, bool]:
        """A connection, and whether it served before. Raises ServerUnreachable."""
        while not is_fresh:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                break
            if time.monotonic() - since < _LONGEST_IDLE_SECONDS and connection.can_serve_again:
                connection.timeout_seconds = timeout_seconds
                return connection, True
            connection.close()
        try:
            link = await self._network.connect(self._address, timeout_seconds)
        except OSError as error:
            problem = f"no server answers at {self._host}: {error.strerror or error}"
            raise ServerUnreachable(f"{problem}; `superfluid serve --web {self._host}` starts one") from error
        return HttpConnection(link, self._host, timeout_seconds), False

    def give_back(self, connection: HttpConnection) -> None:
        """Keeps a connection for the next request if it can serve one."""
        if len(self._idle) < _MOST_IDLE_CONNECTIONS and connection.can_serve_again:
            self._idle.append((connection, time.monotonic()))
        else:
            connection.close()


class Exchange:
    """One request and its answer, on a connection of its own until the answer is read to its end or given up."""

    def __init__(
        self, transport: WebTransport, path: str, content: bytes, timeout_seconds: float, *, can_repeat: bool
    ) -> None:
        self._transport = transport
        self._path = path
        self._content = content
        self._timeout_seconds = timeout_seconds
        self._can_repeat = can_repeat
        self._headers: dict[str, str] = {}
        self._connection: HttpConnection | None = None
        self._is_reused = False
        self._has_head = False
        self._sse = SseDecoder()

    async def send(self, *, is_fresh: bool = False) -> None:
        """Puts the request on a connection. Raises Unauthorized, ServerUnreachable and ConnectionLost."""
        self._headers = self._transport.headers()
        connection, self._is_reused = await self._transport.connect(self._timeout_seconds, is_fresh=is_fresh)
        self._connection = connection
        try:
            await connection.send("POST", self._transport.target(self._path), self._headers, self._content)
        except OSError as error:
            await self._repeat_or_raise(error)

    async def read(self) -> bytes:
        """The whole body of the answer."""
        try:
            connection = await self._answer()
            content = await _read_all(connection)
        except (OSError, MalformedHttpError) as error:
            raise self._lost(error) from error
        self._release()
        return content

    async def next_event(self) -> str | None:
        """The data of the next server-sent event; waits for it. ``None`` at the end, be it a proper one or not.

        Raises what ``WebTransport.post`` raises.
        """
        try:
            connection = await self._answer()
            while (event := self._sse.next_event()) is None:
                piece = await connection.read_piece()
                if not piece:
                    break
                self._sse.feed(piece)
            else:
                return event
        except (OSError, MalformedHttpError) as error:
            raise self._lost(error) from error
        except UnicodeDecodeError as error:
            self.close()
            raise UnexpectedReply(f"the stream is not UTF-8: {error}") from error
        self._release()
        return None

    def set_timeout(self, seconds: float) -> None:
        """The longest wait of the reads that follow."""
        if self._connection is not None:
            self._connection.timeout_seconds = seconds

    def close(self) -> None:
        """Hangs up, unless the answer was read to its end. The daemon ends a generation whose stream is hung up on."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # ----

    async def _answer(self) -> HttpConnection:
        """The connection to read the body from: the answer's head was good. Else raises what its status means."""
        if not self._has_head:
            head = await self._receive_head()
            if head.status == HTTPStatus.UNAUTHORIZED and self._transport.has_other_token(self._headers):
                # The daemon was started anew. A request without the right token had no effect, so it may be sent again.
                self.close()
                await self.send()
                head = await self._receive_head()
            self._has_head = True
            if head.status != HTTPStatus.OK:
                content = await _read_all(self._open_connection())
                self._release()
                raise status_error(head, content)
        return self._open_connection()

    async def _receive_head(self) -> Head:
        try:
            return await self._open_connection().read_head()
        except OSError as error:
            await self._repeat_or_raise(error)
            return await self._open_connection().read_head()

    def _open_connection(self) -> HttpConnection:
        if self._connection is None:
            raise ConnectionLost("the exchange was closed")
        return self._connection

    async def _repeat_or_raise(self, error: OSError) -> None:
        """Once more on a fresh connection, if the kept one had died and a repetition does no harm."""
        is_stale = self._is_reused and not isinstance(error, TimeoutError)
        if not (is_stale and self._can_repeat):
            raise self._lost(error) from error
        self.close()
        await self.send(is_fresh=True)

    def _lost(self, error: Exception) -> SuperfluidError:
        self.close()
        if isinstance(error, MalformedHttpError):
            return UnexpectedReply(f"the server does not speak HTTP as it should: {error}")
        if isinstance(error, TimeoutError):
            return ConnectionLost(f"the server was silent for {self._timeout_seconds:g} s")
        return ConnectionLost(f"the connection broke: {str(error) or type(error).__name__}")

    def _release(self) -> None:
        """The answer is read: its connection can serve the next request, unless the server closes it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._transport.give_back(connection)


async def _read_all(connection: HttpConnection) -> bytes:
    content = bytearray()
    while piece := await connection.read_piece():
        content += piece
    return bytes(content)
