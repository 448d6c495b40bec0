"""The web listener's HTTP and WebSocket server, and its end. Runs in the daemon."""

import asyncio
import socket
from collections.abc import Iterable

from superfluid.config import Secret
from superfluid.http.server import HttpServer, listener_address
from superfluid.sessions.session_api import SessionApi
from superfluid.web.app import KEEPALIVE_SECONDS, WebApplication
from superfluid.web.websocket_protocol import WebSocketProtocol


class WebServer:
    """Serves ``api`` on a listening socket, which it owns from here on. The token must be in its file already."""

    def __init__(
        self,
        api: SessionApi,
        listener: socket.socket,
        token: Secret,
        origins: Iterable[str],
        *,
        drain_timeout_seconds: float,
        keepalive_seconds: float = KEEPALIVE_SECONDS,
    ) -> None:
        self._app = WebApplication(api, token, origins, keepalive_seconds=keepalive_seconds)
        self._address = listener_address(listener)
        self._drain_timeout_seconds = drain_timeout_seconds
        self._http = HttpServer(
            self._app, listener, drain_timeout_seconds=drain_timeout_seconds, websockets=WebSocketProtocol
        )
        self._stopping = asyncio.Event()
        self._stopping_at_once = asyncio.Event()

    @property
    def url(self) -> str:
        host, port = self._address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def sockets(self) -> int:
        """How many WebSockets are open."""
        return self._app.sockets.connections

    async def serve(self) -> None:
        """Returns when the server has stopped. Being cancelled closes the listener and cancels what runs."""
        stopping = asyncio.create_task(self._drain(), name="web listener's end")
        try:
            await self._http.serve()
        finally:
            stopping.cancel()
            await asyncio.wait((stopping,))
        if not stopping.cancelled():
            stopping.result()

    def stop(self, *, at_once: bool = False) -> None:
        """Lets running requests finish, for at most the drain timeout. ``at_once`` cancels them, and may follow."""
        self._stopping.set()
        if at_once:
            self._stopping_at_once.set()

    async def _drain(self) -> None:
        # WebSockets first: the HTTP server cuts them when it is told to stop.
        await self._stopping.wait()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._drain_timeout_seconds
        draining = asyncio.create_task(self._app.sockets.drain(self._drain_timeout_seconds))
        hurrying = asyncio.create_task(self._stopping_at_once.wait())
        try:
            await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)
            if not draining.done():
                draining.cancel()
                await self._app.sockets.drain(0)
            self._http.stop()
            # Event streams have what is left of the time.
            await asyncio.wait((hurrying,), timeout=max(0.0, deadline - loop.time()))
            self._http.stop(at_once=True)
        finally:
            draining.cancel()
            hurrying.cancel()
