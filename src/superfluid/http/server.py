"""The listener and the HTTP server around the application. Runs in the daemon, whose root owns the signals."""

import asyncio
import errno
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from superfluid.errors import AddressUnavailableError
from superfluid.http.bounded_protocol import BoundedHttpProtocol

BACKLOG = 2048
IDLE_CONNECTION_SECONDS = 65
MAX_WEBSOCKET_MESSAGE_BYTES = 64 * 1024 * 1024


def bind_listener(host: str, port: int) -> socket.socket:
    """A socket that listens on the address; port 0 takes a free one. Raises AddressUnavailableError naming the address.

    It listens at once: a socket that is only bound would not keep a second server from binding the same port.
    """
    name = host.strip("[]")
    if not 0 <= port <= 65535:
        # The resolver would take it modulo 65536.
        raise _unavailable(name, port, ValueError("there is no such port"))
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise _unavailable(name, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _unavailable(name, port, error) from error
    return listener


def _unavailable(host: str, port: int, error: Exception) -> AddressUnavailableError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        reason += "; another program listens there, and port 0 takes a free one"
    return AddressUnavailableError(f"cannot listen on {_authority(host, port)}: {reason}")


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listener_address(listener: socket.socket) -> tuple[str, int]:
    """Host and port it really listens on."""
    host, port, *_ = listener.getsockname()
    return host, port


class HttpServer:
    """Serves ``app`` on a listening socket, which it owns from here on.

    ``stop`` ends accepting and lets running requests finish, for at most ``drain_timeout_seconds``; what still runs is
    cancelled then. ``stop(at_once=True)`` cancels without waiting.

    ``websockets`` is the protocol to speak after an upgrade; without one, upgrades are not offered.
    """

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        *,
        drain_timeout_seconds: float,
        websockets: type[asyncio.Protocol] | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=BoundedHttpProtocol,
            ws="none" if websockets is None else websockets,
            ws_max_size=MAX_WEBSOCKET_MESSAGE_BYTES,
            # A client that is served slowly is not read, its pongs included; and on loopback a dead one is noticed.
            ws_ping_interval=None,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            log_level=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_CONNECTION_SECONDS,
            timeout_graceful_shutdown=math.ceil(drain_timeout_seconds),
        )
        self._server = _SignallessServer(config)
        self._listener = listener

    async def serve(self) -> None:
        """Returns when the server has stopped. Being cancelled closes the listener and cancels what runs."""
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            # A cancelled uvicorn leaves its listeners open, and uvloop's are copies of ours.
            for server in getattr(self._server, "servers", ()):
                server.close()
            self._listener.close()
            await self._cancel_requests()

    def stop(self, *, at_once: bool = False) -> None:
        """Takes effect within a tenth of a second. May be called again to hurry up."""
        self._server.should_exit = True
        self._server.force_exit |= at_once

    @property
    def is_accepting(self) -> bool:
        return self._server.started and not self._server.should_exit

    async def _cancel_requests(self) -> None:
        tasks = list(self._server.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _SignallessServer(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
