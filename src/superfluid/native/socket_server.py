"""The session API on a unix socket, postcard in length-prefixed frames. Runs in the daemon, on its event loop."""

import asyncio
import logging
import select
import struct
from contextlib import suppress
from pathlib import Path

from superfluid.native.bounded_queue import BoundedQueue
from superfluid.native.connection import Connection
from superfluid.native.encodings import socket_encoding
from superfluid.native.frames import FrameCutter, FrameError
from superfluid.native.unix_listener import UnixListener
from superfluid.sessions.session_api import SessionApi

logger = logging.getLogger("superfluid_daemon")

READ_BYTES = 256 * 1024
WRITE_BYTES = 256 * 1024
HANGUP_POLL_SECONDS = 0.1
FAREWELL_SECONDS = 0.5
# Clients of a unix socket do not wait for a place in the queue: their connect fails.
_BACKLOG = 2048
_LENGTH = struct.Struct("<I")


class SocketServer:
    """Serves ``api`` at ``path`` between ``start`` and ``stop``."""

    def __init__(self, api: SessionApi, path: Path) -> None:
        self._api = api
        self._path = path
        self._listener: UnixListener | None = None
        self._server: asyncio.Server | None = None
        self._clients: dict[_Client, asyncio.Task[None]] = {}

    @property
    def connections(self) -> int:
        return len(self._clients)

    async def start(self) -> None:
        """Listens. Raises UsageError and AddressUnavailableError as ``UnixListener`` does."""
        self._listener = UnixListener(self._path)
        self._server = await asyncio.start_unix_server(
            self._accept, sock=self._listener.socket, backlog=_BACKLOG, limit=READ_BYTES
        )

    async def stop(self, *, drain_seconds: float = 0.0) -> None:
        """Stops listening and ends all connections. Requests in hand have ``drain_seconds`` to finish; generations
        that still run are cancelled then, and their clients told. May be called again, to hurry up."""
        if self._server is not None and self._listener is not None:
            self._server.close()
            self._server = None
            self._listener.remove()
        await self._finish(drain_seconds, at_once=False)
        await self._finish(FAREWELL_SECONDS, at_once=True)
        left = list(self._clients.values())
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def _finish(self, seconds: float, *, at_once: bool) -> None:
        if not self._clients or not seconds:
            return
        for client in self._clients:
            client.connection.finish(at_once=at_once)
        await asyncio.wait(list(self._clients.values()), timeout=seconds)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(Connection(self._api, socket_encoding(), "socket"), reader, writer)
        task = asyncio.create_task(client.run(), name="session API client")
        self._clients[client] = task
        task.add_done_callback(lambda _: self._clients.pop(client))
        if self._server is None:
            client.connection.finish(at_once=True)


class _Client:
    """One connection's three tasks: reading, answering, writing."""

    def __init__(self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection = connection
        self._reader = reader
        self._writer = writer

    async def run(self) -> None:
        """Returns when the connection is closed."""
        reading = asyncio.create_task(self._read())
        writing = asyncio.create_task(self._write())
        try:
            await self.connection.run()
            # No deadlines: a client that does not read holds up nobody else, and ``stop`` cancels this.
            await writing
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()
        except Exception as error:
            # Supervision point: other connections go on.
            logger.error("a connection of the session API failed", exc_info=error)
        finally:
            self._writer.transport.abort()
            for task in (reading, writing):
                task.cancel()
            await asyncio.wait((reading, writing))

    async def _read(self) -> None:
        """Feeds the connection until the input ends; then waits for the client to go away."""
        try:
            await self._read_frames(self.connection.inbox)
        except FrameError as error:
            logger.debug(f"a client of the session API broke the framing: {error}")
        except OSError:
            self.connection.abandon()
            return
        self.connection.end_input()
        # A client may end its side and still read. Nothing tells when it goes away, if nothing is written meanwhile.
        while not self._has_hung_up():  # noqa: ASYNC110  (the transport has no event for it)
            await asyncio.sleep(HANGUP_POLL_SECONDS)
        self.connection.abandon()

    async def _read_frames(self, inbox: BoundedQueue) -> None:
        cutter = FrameCutter()
        while data := await self._reader.read(READ_BYTES):
            for payload in cutter.feed(data):
                if not inbox.put_now(payload):
                    await self._put(inbox, payload)
            # A length over the bound, behind the frames just given, is to end the connection now.
            cutter.feed(b"")
        cutter.finish()

    async def _put(self, inbox: BoundedQueue, payload: bytes) -> None:
        """Waits for room. The end of the input is not read meanwhile, so a client that goes away is looked for."""
        putting = asyncio.create_task(inbox.put(payload))
        try:
            while not putting.done():
                await asyncio.wait((putting,), timeout=HANGUP_POLL_SECONDS)
                if not putting.done() and self._has_hung_up():
                    self.connection.abandon()
        finally:
            putting.cancel()

    def _has_hung_up(self) -> bool:
        """Whether the client has closed both directions."""
        if self._writer.is_closing():
            return True
        poll = select.poll()
        poll.register(self._writer.get_extra_info("socket").fileno(), 0)
        return bool(poll.poll(0))

    async def _write(self) -> None:
        outbox = self.connection.outbox
        try:
            while (payload := await outbox.take()) is not None:
                await self._write_frames(payload, outbox)
        except OSError:
            self.connection.abandon()

    async def _write_frames(self, payload: bytes, outbox: BoundedQueue) -> None:
        """Sends ``payload`` and, as long as they are short, the ones behind it in one go."""
        parts: list[bytes] = []
        size = 0
        following: bytes | None = payload
        while following is not None:
            parts += (_LENGTH.pack(len(following)), following)
            size += len(following)
            following = outbox.take_now() if size < WRITE_BYTES else None
        view = memoryview(b"".join(parts))
        for start in range(0, len(view), WRITE_BYTES):
            if self._writer.is_closing():
                # uvloop raises RuntimeError where asyncio would not notice.
                raise ConnectionResetError("the client is gone")
            self._writer.write(view[start : start + WRITE_BYTES])
            await self._writer.drain()
