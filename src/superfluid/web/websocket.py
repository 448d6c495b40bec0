"""``/web/ws``: the whole session API on a WebSocket, a request or a reply a message. Runs in the daemon."""

import asyncio

from starlette.types import Receive, Send

from superfluid.native.connection import Connection
from superfluid.native.encodings import web_encoding
from superfluid.sessions.session_api import SessionApi

FAREWELL_SECONDS = 0.5
GOING_AWAY = 1001


class SocketEndpoint:
    """Serves the WebSockets that were let in, and ends them when the server stops."""

    def __init__(self, api: SessionApi) -> None:
        self._api = api
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._is_stopping = False

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def serve(self, protocol: str | None, receive: Receive, send: Send, left: asyncio.Event) -> None:
        """Accepts with the subprotocol agreed on. Returns when the connection is over. ``left``: the client is gone."""
        if (await receive())["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept", "subprotocol": protocol})
        connection = Connection(self._api, web_encoding(), "websocket")
        task = asyncio.create_task(_converse(connection, receive, send, left))
        self._connections[connection] = task
        if self._is_stopping:
            connection.finish(at_once=True)
        try:
            await asyncio.wait((task,))
        finally:
            del self._connections[connection]
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        task.result()

    async def drain(self, seconds: float) -> None:
        """Ends all connections. Requests in hand have that long to finish; then generations are cancelled."""
        self._is_stopping = True
        await self._finish(seconds, at_once=False)
        await self._finish(FAREWELL_SECONDS, at_once=True)

    async def _finish(self, seconds: float, *, at_once: bool) -> None:
        if not self._connections or not seconds:
            return
        for connection in self._connections:
            connection.finish(at_once=at_once)
        await asyncio.wait(list(self._connections.values()), timeout=seconds)


async def _converse(connection: Connection, receive: Receive, send: Send, left: asyncio.Event) -> None:
    reading = asyncio.create_task(_read(connection, receive))
    watching = asyncio.create_task(_watch(connection, left))
    writing = asyncio.create_task(_write(connection, send))
    try:
        await connection.run()
        # No deadline: a client that does not read holds up nobody else, and a stopping server cancels this.
        await writing
    finally:
        tasks = (reading, writing, watching)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _watch(connection: Connection, left: asyncio.Event) -> None:
    """While ``_read`` waits for room it does not receive, and so would not hear of the client's end."""
    await left.wait()
    connection.abandon()


async def _read(connection: Connection, receive: Receive) -> None:
    while True:
        # A message that waits for room keeps the server from reading the next.
        message = await receive()
        if message["type"] == "websocket.disconnect":
            connection.abandon()
            return
        text = message.get("text")
        await connection.inbox.put(message["bytes"] if text is None else text.encode())


async def _write(connection: Connection, send: Send) -> None:
    try:
        while (payload := await connection.outbox.take()) is not None:
            await send({"type": "websocket.send", "text": payload.decode()})
        await send({"type": "websocket.close", "code": GOING_AWAY})
    except OSError:
        # What servers raise, by the ASGI specification, once the client is gone.
        connection.abandon()
