"""WebSockets for the web listener's HTTP server: the frames of RFC 6455 on one side, ASGI messages on the other.

``websockets`` does the frames; this is the part around it that no client can make grow. Nothing is read while a message
waits for the application, or while the client leaves what it was sent unread (pongs included), but whether it is still
there is looked up; parts of a message are kept as one; what a client does wrong ends its connection and is no error of
the server's. Runs in the daemon.
"""

import asyncio
import logging
import select
from collections import deque
from http import HTTPStatus
from typing import Any, assert_never
from urllib.parse import unquote

from starlette.types import Message
from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Origin

logger = logging.getLogger("superfluid_daemon")

CLOSE_SECONDS = 10.0
HANGUP_POLL_SECONDS = 0.1
CLIENT_LEFT = "superfluid.client_left"
"""In ``scope["extensions"]``: an ``asyncio.Event`` that is set as soon as the client has left, whatever it sent before
waits to be received. An application that is busy does not receive, and would hear of it last."""
# Linux tells an end of the input behind unread bytes; elsewhere only a connection that is over in both directions.
_HANGUPS = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
_NO_STATUS, _ABNORMAL = 1005, 1006


class ClientLeftError(OSError):
    """What ``send`` raises, by the ASGI specification, once the client is gone."""


class _Handshake(ServerProtocol):
    """Leaves the Origin header to the application, which looks at every one of them."""

    def process_origin(self, headers: Headers) -> Origin | None:
        return None


class WebSocketProtocol(asyncio.Protocol):
    """uvicorn makes one for each upgrade, hands it the request's head, and calls ``shutdown`` when it stops."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        self._app = config.loaded_app
        self._state = server_state
        self._frames = _Handshake(max_size=config.ws_max_size, logger=logging.getLogger("uvicorn.error"))
        self._answer: Response | None = None
        self._refusal: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._has_left = False
        # Of a message that is not whole yet.
        self._parts: bytearray | None = None
        self._is_text = False
        self._messages: deque[Message] = deque()
        self._has_message = asyncio.Event()
        self._is_writable = asyncio.Event()
        self._is_writable.set()
        self._is_reading = True
        self._closing: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._left = asyncio.Event()

    # ---- the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        # uvicorn's type knows its own protocols only; it calls nothing but ``shutdown``.
        self._state.connections.add(self)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._leave(_NO_STATUS if self._is_open else _ABNORMAL)
        for timer in (self._closing, self._looking):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._has_left:
            return
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            if isinstance(event, Request):
                self._connect(event)
            elif isinstance(event, Frame) and not self._has_left:
                self._take(event)
        self._write()
        if self._frames.parser_exc is not None:
            sent = self._frames.close_sent
            self._leave(_ABNORMAL if sent is None else int(sent.code))
        elif self._frames.handshake_exc is not None:
            self._leave(_ABNORMAL)
        self._regulate()

    def pause_writing(self) -> None:
        self._is_writable.clear()
        self._regulate()

    def resume_writing(self) -> None:
        self._is_writable.set()
        self._regulate()

    def shutdown(self) -> None:
        """The server stops: a handshake is refused, a connection closed without waiting for the client."""
        if self._is_open:
            self._frames.send_close(CloseCode.SERVICE_RESTART)
            self._write()
        elif self._answer is not None and not self._has_left:
            self._reply(HTTPStatus.SERVICE_UNAVAILABLE, [], b"")
        self._leave(int(CloseCode.SERVICE_RESTART))

    # ---- what the client sends

    def _connect(self, request: Request) -> None:
        self._answer = self._frames.accept(request)
        if self._answer.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._frames.send_response(self._answer)
            self._write()
            self._leave(_ABNORMAL)
            return
        self._messages.append({"type": "websocket.connect"})
        self._has_message.set()
        task = asyncio.get_running_loop().create_task(self._run(self._scope(request)))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def _scope(self, request: Request) -> dict[str, Any]:
        path, _, query = request.path.partition("?")
        return {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": unquote(path),
            "raw_path": path.encode("ascii", "surrogateescape"),
            "query_string": query.encode("ascii", "surrogateescape"),
            "root_path": "",
            "headers": [
                (name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace"))
                for name, value in request.headers.raw_items()
            ],
            "client": self._transport.get_extra_info("peername"),
            "server": self._transport.get_extra_info("sockname"),
            "extensions": {"websocket.http.response": {}, CLIENT_LEFT: self._left},
        }

    def _take(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.BINARY:
                self._is_text = frame.opcode is Opcode.TEXT
                if frame.fin:
                    self._deliver(bytes(frame.data))
                else:
                    self._parts = bytearray(frame.data)
            case Opcode.CONT:
                assert self._parts is not None
                self._parts += frame.data
                if frame.fin:
                    whole, self._parts = bytes(self._parts), None
                    self._deliver(whole)
            case Opcode.CLOSE:
                received = self._frames.close_rcvd
                self._write()
                self._leave(_NO_STATUS if received is None else int(received.code))
            case Opcode.PING | Opcode.PONG:
                # The pong is among what ``_write`` sends.
                return
            case _:
                assert_never(frame.opcode)

    def _deliver(self, data: bytes) -> None:
        if self._frames.state is not State.OPEN:
            return
        if not self._is_text:
            message: Message = {"type": "websocket.receive", "bytes": data}
        else:
            try:
                message = {"type": "websocket.receive", "text": data.decode()}
            except UnicodeDecodeError:
                self._frames.fail(CloseCode.INVALID_DATA, "not UTF-8")
                self._write()
                self._leave(int(CloseCode.INVALID_DATA))
                return
        self._messages.append(message)
        self._has_message.set()

    # ---- the application

    async def _run(self, scope: dict[str, Any]) -> None:
        try:
            await self._app(scope, self._receive, self._send)
        except ClientLeftError:
            return
        except Exception as error:
            # Supervision point: other connections go on.
            logger.error("a WebSocket failed", exc_info=error)
            if self._frames.state is State.CONNECTING and not self._has_left:
                self._reply(HTTPStatus.INTERNAL_SERVER_ERROR, [], b"")
        finally:
            if self._closing is None:
                self._leave(_ABNORMAL)

    async def _receive(self) -> Message:
        # No deadline: an idle client may stay as long as it likes.
        while not self._messages:
            self._has_message.clear()
            await self._has_message.wait()
        message = self._messages.popleft()
        self._regulate()
        return message

    async def _send(self, message: Message) -> None:
        await self._is_writable.wait()
        if self._has_left:
            raise ClientLeftError
        match message["type"]:
            case "websocket.accept":
                self._accept(message)
            case "websocket.send":
                self._frames.send_text(message["text"].encode())
                self._write()
            case "websocket.close":
                self._close(message.get("code", 1000))
            case "websocket.http.response.start":
                self._refusal = message["status"], list(message["headers"])
            case "websocket.http.response.body":
                assert self._refusal is not None
                self._reply(*self._refusal, message["body"])
                self._leave(_ABNORMAL)
            case kind:
                raise AssertionError(f"{kind} is no message of a WebSocket application")

    def _accept(self, message: Message) -> None:
        assert self._answer is not None
        if message.get("subprotocol") is not None:
            self._answer.headers["Sec-WebSocket-Protocol"] = message["subprotocol"]
        self._frames.send_response(self._answer)
        self._write()
        self._regulate()

    def _close(self, code: int) -> None:
        """The client has a while to answer; what it sends meanwhile is dropped."""
        if self._frames.state is State.OPEN:
            self._frames.send_close(code)
            self._write()
            self._messages.clear()
            self._closing = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._leave, code)
            self._regulate()

    def _reply(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Instead of the handshake."""
        fields = Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers])
        fields["Connection"] = "close"
        fields["Content-Length"] = str(len(body))
        self._frames.send_response(Response(status, HTTPStatus(status).phrase, fields, body))
        self._write()

    # ----

    @property
    def _is_open(self) -> bool:
        return self._frames.state is State.OPEN and not self._has_left

    def _write(self) -> None:
        data = b"".join(self._frames.data_to_send())
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _leave(self, code: int) -> None:
        """Closes the transport, after what was written, and tells the application. Only the first call counts."""
        if self._has_left:
            return
        self._has_left = True
        self._messages.append({"type": "websocket.disconnect", "code": code})
        self._has_message.set()
        self._left.set()
        # Whoever waits to send must hear of it.
        self._is_writable.set()
        self._transport.close()

    def _regulate(self) -> None:
        """Reads only what there is room for. Until the handshake is answered nothing may come behind it."""
        is_connecting = self._answer is not None and self._frames.state is State.CONNECTING
        may_read = not self._messages and self._is_writable.is_set() and not is_connecting
        if self._transport.is_closing() or may_read == self._is_reading:
            return
        self._is_reading = may_read
        if may_read:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
            if self._looking is None:
                self._look_later()

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(HANGUP_POLL_SECONDS, self._look)

    def _look(self) -> None:
        """Nothing tells of a client that goes away while nothing is read."""
        self._looking = None
        if self._is_reading or self._transport.is_closing():
            return
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), _HANGUPS)
        if poll.poll(0):
            self._leave(_ABNORMAL)
        else:
            self._look_later()
