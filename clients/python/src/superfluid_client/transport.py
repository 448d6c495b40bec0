"""HTTP to the web listener: kept-alive connections, the token's headers, statuses turned into exceptions.

This is the one module that knows ``http.client``. Any number of threads may use a transport at the same time: each
request has a connection of its own while it lasts.
"""

import http.client
import json
import socket
import time
import urllib.parse
from collections import deque
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

from superfluid_client.credentials import TokenSource
from superfluid_client.errors import (
    ConnectionLost,
    Forbidden,
    ServerUnreachable,
    SuperfluidError,
    Throttled,
    Unauthorized,
    UnexpectedReply,
    refusal,
)
from superfluid_client.sse import SseDecoder

# Servers close idle connections after a few seconds; one that is about to be closed is not worth the risk.
_LONGEST_IDLE_SECONDS = 3.0
_MOST_IDLE_CONNECTIONS = 32
# A living stream says at least something every 15 s, be it a comment.
_LONGEST_SILENCE_SECONDS = 60.0
_LONGEST_ERROR_CHARACTERS = 200


class WebTransport:
    """Posts JSON to one listener."""

    def __init__(self, url: str, tokens: TokenSource, timeout_seconds: float) -> None:
        """Raises ValueError if ``url`` is no plain ``http://`` address."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"the server's address looks like http://127.0.0.1:8460, not {url!r}")
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        self._tokens = tokens
        self._timeout_seconds = timeout_seconds
        # Appending to a deque and popping from it are atomic.
        self._idle: deque[tuple[http.client.HTTPConnection, float]] = deque()

    def post(self, path: str, body: Any, *, can_repeat: bool) -> Any:
        """The JSON that answers ``body``, in one piece.

        ``can_repeat`` says that a request may be sent twice if the first connection dies before any answer. Raises
        Unauthorized, Forbidden, Throttled, RequestRefused, ServerUnreachable, ConnectionLost and UnexpectedReply.
        """
        with self.open(path, body, timeout_seconds=self._timeout_seconds, can_repeat=can_repeat) as exchange:
            content = exchange.read()
        return _json(content)

    def open(self, path: str, body: Any, *, timeout_seconds: float, can_repeat: bool) -> "Exchange":
        """Sends ``body`` and returns without waiting for the answer. Raises Unauthorized and ServerUnreachable."""
        content = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
        exchange = Exchange(self, path, content, timeout_seconds, can_repeat=can_repeat)
        exchange.send()
        return exchange

    def stream(self, path: str, body: Any) -> "Exchange":
        """As ``open``, for an answer that comes bit by bit: the time limit is for the silence between two bits."""
        silence = max(self._timeout_seconds, _LONGEST_SILENCE_SECONDS)
        return self.open(path, body, timeout_seconds=silence, can_repeat=False)

    def is_healthy(self) -> bool:
        """Whether the listener answers."""
        try:
            connection, _ = self.connect(min(self._timeout_seconds, 5.0), is_fresh=True)
            try:
                connection.request("GET", f"{self._base}/web/health")
                return connection.getresponse().status == HTTPStatus.OK
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ServerUnreachable):
            return False

    def close(self) -> None:
        """Closes what is idle. Exchanges under way are their users' to close."""
        while self._idle:
            self._idle.pop()[0].close()

    # ---- for exchanges

    def headers(self) -> dict[str, str]:
        token = self._tokens.token()
        return {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {token}",
            "X-Superfluid-CSRF": token,
        }

    def has_other_token(self, headers: dict[str, str]) -> bool:
        return self._tokens.renewed(headers["X-Superfluid-CSRF"])

    def target(self, path: str) -> str:
        return self._base + path

    def connect(self, timeout_seconds: float, *, is_fresh: bool) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it served before. Raises ServerUnreachable."""
        while not is_fresh:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                break
            if time.monotonic() - since < _LONGEST_IDLE_SECONDS and _is_quiet(connection):
                connection.sock.settimeout(timeout_seconds)
                return connection, True
            connection.close()
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_seconds)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            address = f"{self._host}:{connection.port}"
            raise ServerUnreachable(f"no server answers at {address}: {error.strerror or error}") from error
        return connection, False

    def give_back(self, connection: http.client.HTTPConnection) -> None:
        if len(self._idle) < _MOST_IDLE_CONNECTIONS:
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
        self._connection: http.client.HTTPConnection | None = None
        self._is_reused = False
        self._socket: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None
        self._sse = SseDecoder()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def send(self, *, is_fresh: bool = False) -> None:
        """Puts the request on a connection. Raises Unauthorized, ServerUnreachable and ConnectionLost."""
        self._headers = self._transport.headers()
        self._connection, self._is_reused = self._transport.connect(self._timeout_seconds, is_fresh=is_fresh)
        self._socket = self._connection.sock
        try:
            self._connection.request("POST", self._transport.target(self._path), self._content, self._headers)
        except (OSError, http.client.HTTPException) as error:
            self._repeat_or_raise(error)

    def read(self) -> bytes:
        """The whole body of the answer."""
        try:
            content = self._answer().read()
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        self._release()
        return content

    def next_event(self) -> str | None:
        """The data of the next server-sent event; waits for it. ``None`` at the end, be it a proper one or not.

        Raises what ``WebTransport.post`` raises.
        """
        try:
            response = self._answer()
            while line := response.readline():
                if not line.endswith(b"\n"):
                    raise http.client.IncompleteRead(line)
                data = self._sse.take_line(line)
                if data is not None:
                    return data
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        except UnicodeDecodeError as error:
            self.close()
            raise UnexpectedReply(f"the stream is not UTF-8: {error}") from error
        self._release()
        return None

    def set_timeout(self, seconds: float) -> None:
        """The longest wait of the reads that follow."""
        if self._connection is not None and self._socket is not None:
            # Not the connection's own attribute: it lets go of a socket that the server will close.
            self._socket.settimeout(seconds)

    def close(self) -> None:
        """Hangs up, unless the answer was read to its end. The daemon ends a generation whose stream is hung up on."""
        connection, self._connection = self._connection, None
        response, self._response = self._response, None
        if response is not None:
            response.close()
        if connection is not None:
            connection.close()

    # ----

    def _answer(self) -> http.client.HTTPResponse:
        """The answer's head was good; else raises what its status means."""
        if self._response is not None:
            return self._response
        response = self._receive()
        if response.status == HTTPStatus.UNAUTHORIZED and self._transport.has_other_token(self._headers):
            # The daemon was started anew. A request without the right token had no effect, so it may be sent again.
            self.close()
            self.send()
            response = self._receive()
        self._response = response
        if response.status != HTTPStatus.OK:
            content = response.read()
            self._release()
            raise _status_error(response, content)
        return response

    def _receive(self) -> http.client.HTTPResponse:
        if self._connection is None:
            raise ConnectionLost("the exchange was closed")
        try:
            return self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._repeat_or_raise(error)
            return self._connection.getresponse()

    def _repeat_or_raise(self, error: Exception) -> None:
        """Once more on a fresh connection, if the kept one had died and a repetition does no harm."""
        is_stale = self._is_reused and not isinstance(error, TimeoutError)
        if not (is_stale and self._can_repeat):
            raise self._lost(error) from error
        self.close()
        self.send(is_fresh=True)

    def _lost(self, error: Exception) -> ConnectionLost:
        self.close()
        if isinstance(error, TimeoutError):
            return ConnectionLost(f"the server was silent for {self._timeout_seconds:g} s")
        return ConnectionLost(f"the connection broke: {str(error) or type(error).__name__}")

    def _release(self) -> None:
        """The answer is read: its connection can serve the next request, unless the server closes it."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.sock is not None:
            self._transport.give_back(connection)


def _is_quiet(connection: http.client.HTTPConnection) -> bool:
    """Whether an idle connection is still open. One that can be read was closed, or has something nobody asked for."""
    try:
        connection.sock.setblocking(False)
        connection.sock.recv(1)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _status_error(response: http.client.HTTPResponse, content: bytes) -> SuperfluidError:
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    message = _error_message(body)
    text = message or f"HTTP {response.status} {response.reason}: {content[:_LONGEST_ERROR_CHARACTERS]!r}"
    match response.status:
        case HTTPStatus.UNAUTHORIZED:
            return Unauthorized(text)
        case HTTPStatus.FORBIDDEN:
            return Forbidden(text)
        case HTTPStatus.TOO_MANY_REQUESTS:
            seconds = _retry_after_seconds(body, response.getheader("Retry-After"))
            return Throttled(message or f"too many completions: try again in {seconds:g} s", seconds)
    # A request that the daemon cannot read is refused with 400 and a reason.
    return UnexpectedReply(text) if message is None else refusal(message)


def _error_message(body: Any) -> str | None:
    match body:
        case {"Err": {"message": str(message)}}:
            return message
    return None


def _retry_after_seconds(body: Any, header: str | None) -> float:
    match body:
        case {"Throttled": {"retry_after_ms": int(milliseconds)}}:
            return milliseconds / 1000
    return float(header) if header is not None and header.isdecimal() else 1.0


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise UnexpectedReply(f"the answer is no JSON: {content[:_LONGEST_ERROR_CHARACTERS]!r}") from error
