"""A blocking client of the session API over the unix socket. For the command line and monitors, in their processes."""

import socket
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from superfluid.errors import ConnectionLostError, RequestRefusedError, ServerUnreachableError
from superfluid.native import postcard
from superfluid.native.frames import MAX_FRAME_BYTES, FrameCutter, FrameError, encode_frame
from superfluid.native.requests import Request
from superfluid.native.responses import Err, Response
from superfluid.native.schema import CodecError

CONNECT_SECONDS = 5.0
REPLY_SECONDS = 60.0

_READ_BYTES = 256 * 1024
_MAX_UNANSWERED = 16
"""Requests sent ahead: fewer than the server holds unread, so that neither side waits for the other to read."""

R = TypeVar("R", bound=Response)


class SessionClient:
    """One connection. Replies come in the order of the requests. Not thread-safe.

    Raises ServerUnreachableError if nobody answers at ``path``. A method that raises ConnectionLostError leaves the
    connection of no further use.
    """

    def __init__(self, path: Path, *, reply_seconds: float = REPLY_SECONDS) -> None:
        self.path = path
        self._reply_seconds = reply_seconds
        self._cutter = FrameCutter()
        self._payloads: deque[bytes] = deque()
        self._socket = _connect(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """A generation of this connection is cancelled by that."""
        self._socket.close()

    def ask(self, request: Request, reply_type: type[R]) -> R:
        """The reply. Raises RequestRefusedError if it is an ``Err``."""
        self.send(request)
        return require_reply(self._await_reply(), reply_type)

    def ask_all(self, requests: Sequence[Request]) -> list[Response]:
        """One reply a request, each of which may be an ``Err``. Sends ahead, so that the waits add up to less."""
        replies: list[Response] = []
        for start in range(0, len(requests), _MAX_UNANSWERED):
            window = requests[start : start + _MAX_UNANSWERED]
            for request in window:
                self.send(request)
            replies += [self._await_reply() for _ in window]
        return replies

    def send(self, request: Request) -> None:
        """Raises RequestRefusedError, without sending it, if it is too long for a frame."""
        payload = _encoded(request)
        if len(payload) > MAX_FRAME_BYTES:
            raise RequestRefusedError(f"the request takes {len(payload)} bytes, and a frame holds {MAX_FRAME_BYTES}")
        self._socket.settimeout(self._reply_seconds)
        try:
            self._socket.sendall(encode_frame(payload))
        except OSError as error:
            raise self._lost(error.strerror or "it does not read") from error

    def receive(self, timeout_seconds: float) -> Response | None:
        """The next reply, or ``None`` if none is complete after so long. 0 looks only at what is there."""
        deadline = time.monotonic() + timeout_seconds
        while not self._payloads:
            left = deadline - time.monotonic()
            if left <= 0 < timeout_seconds or not self._read(max(left, 0.0)):
                return None
        payload = self._payloads.popleft()
        try:
            return postcard.response_codec().decode(payload)
        except CodecError as error:
            raise ConnectionLostError(f"what answers at {self.path} is no superfluid server: {error}") from error

    # ----

    def _await_reply(self) -> Response:
        reply = self.receive(self._reply_seconds)
        if reply is None:
            raise ConnectionLostError(f"the server at {self.path} has not answered for {self._reply_seconds:g} s")
        return reply

    def _read(self, timeout_seconds: float) -> bool:
        """Reads once, and keeps the frames that completes. False if nothing came."""
        self._socket.settimeout(timeout_seconds)
        try:
            data = self._socket.recv(_READ_BYTES)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from error
        if not data:
            raise self._lost("it closed the connection")
        try:
            self._payloads.extend(self._cutter.feed(data))
        except FrameError as error:
            raise ConnectionLostError(f"what answers at {self.path} is no superfluid server: {error}") from error
        return True

    def _lost(self, why: str) -> ConnectionLostError:
        return ConnectionLostError(f"lost the server at {self.path}: {why}")


def require_reply(reply: Response, reply_type: type[R]) -> R:
    """``reply``, which must be of the type. Raises RequestRefusedError for an ``Err``, else ConnectionLostError."""
    if isinstance(reply, reply_type):
        return reply
    if isinstance(reply, Err):
        raise RequestRefusedError(reply.message)
    raise ConnectionLostError(f"the server answered {type(reply).__name__} where {reply_type.__name__} was due")


def _encoded(request: Request) -> bytes:
    try:
        return postcard.request_codec().encode(request)
    except CodecError as error:
        raise RequestRefusedError(f"the request cannot be sent: {error}") from error


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(CONNECT_SECONDS)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        connection.close()
        raise ServerUnreachableError(f"no server answers at {path}; `superfluid serve` starts one") from error
    except OSError as error:
        connection.close()
        raise ServerUnreachableError(f"cannot reach a server at {path}: {error.strerror or error}") from error
    return connection
