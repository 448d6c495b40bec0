"""Following a session for as long as it lives, for asyncio; ``watch`` has its blocking face.

It goes over the daemon's unix socket: the one door for subscriptions that every daemon has open, to its own user and
without a setting. (A WebSocket needs ``--web``, and an origin that ``--web-origin`` names.)

    connect ──▶ Subscribe(cursor) ──▶ Subscribed ──▶ SubEvent ... ──▶ SubEnded
       ▲                ▲                                                 │
       │                └── lagged: at once; publisher closed: in a moment ┤
       └── the connection broke: with growing pauses                       └── purged: the end
"""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from superfluid_client.errors import (
    ModelLoading,
    RequestRefused,
    ServerStopping,
    ServerUnreachable,
    SessionPurged,
    UnexpectedReply,
    refusal,
)
from superfluid_client.frames import FrameConnection
from superfluid_client.network import Network
from superfluid_client.postcard import MalformedFrameError, decode_reply, encode_subscribe
from superfluid_client.reading import reading
from superfluid_client.records import SHOWN_CHANNELS, Chunk, Event

DEFAULT_PATIENCE_SECONDS = 300.0

_CONNECT_SECONDS = 10.0
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


class AsyncWatch(AsyncIterator[Event]):
    """Yields a session's events, each once and in order, and ends when the session is purged, or by ``close``.

    A daemon that is gone is waited for, unless it is not there at the very beginning. ``cursor`` is the id of the event
    that comes next: a program that keeps it can go on later from there. Raises UnknownSession, SessionPurged (for one
    that was purged before), ServerUnreachable and UnexpectedReply. Being cancelled loses no event: read on, or
    ``close``. One task at a time may read it.
    """

    def __init__(
        self,
        session_id: int,
        socket_path: Path,
        network: Network,
        cursor: int,
        on_provisional: Callable[[Chunk], None] | None,
        patience_seconds: float,
    ) -> None:
        """Use ``AsyncSession.watch``. Raises ValueError for a cursor that is none."""
        self.cursor = cursor
        self._connection: FrameConnection | None = None
        self._is_over = False
        self._session_id = session_id
        self._socket_path = socket_path
        self._network = network
        self._on_provisional = on_provisional
        self._patience_seconds = patience_seconds
        self._has_begun = False
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._gone_since: float | None = None
        self._subscribe_payload()

    def __repr__(self) -> str:
        return f"<watch on session {self._session_id}, next is event {self.cursor}>"

    async def next_event(self) -> Event | None:
        """The next event, ``None`` at the end."""
        try:
            while not self._is_over:
                event = await self._step()
                if event is not None:
                    return event
        except (RequestRefused, ServerUnreachable, UnexpectedReply):
            self.close()
            raise
        return None

    def close(self) -> None:
        """Ends it; not to be awaited. Whoever waits for an event is woken up."""
        self._is_over = True
        self._drop_connection()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._drop_connection()

    # ----

    async def _step(self) -> Event | None:
        try:
            if self._connection is None:
                await self._connect()
                return None
            payload = await self._connection.receive()
        except OSError as error:
            self._drop_connection()
            if not self._is_over:
                await self._wait_for_return(error)
            return None
        except MalformedFrameError as error:
            raise UnexpectedReply(f"a frame that this client cannot read: {error}") from error
        with reading("subscription"):
            name, fields = decode_reply(payload)
        return await self._take(name, fields)

    async def _connect(self) -> None:
        link = await self._network.connect(self._socket_path, _CONNECT_SECONDS)
        self._connection = FrameConnection(link)
        await self._connection.send(self._subscribe_payload(), _CONNECT_SECONDS)

    async def _take(self, name: str, fields: Any) -> Event | None:
        match name:
            case "Subscribed":
                self._has_begun = True
                self._gone_since = None
            case "SubEvent":
                with reading(name):
                    return self._news(Event.from_json(fields["event"]))
            case "SubProvisional":
                kind = SHOWN_CHANNELS.get(fields["channel"])
                if kind is not None and self._on_provisional is not None:
                    self._on_provisional(Chunk(kind, fields["text"]))
            case "SubEnded":
                await self._take_end(fields["reason"])
            case "Err":
                await self._take_refusal(refusal(fields["message"]))
        return None

    def _news(self, event: Event) -> Event | None:
        if event.id > self.cursor:
            raise UnexpectedReply(f"event {self.cursor} of session {self._session_id} was left out")
        if event.id < self.cursor:
            return None
        self.cursor = event.id + 1
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        return event

    async def _take_end(self, reason: str) -> None:
        if reason == "purged":
            self.close()
            return
        # A connection has one subscription at a time; the next one begins where this one ended.
        self._drop_connection()
        if reason != "lagged":
            await self._pause()

    async def _take_refusal(self, refused: RequestRefused) -> None:
        self._drop_connection()
        match refused:
            case SessionPurged() if self._has_begun:
                # It was purged while the connection was gone.
                self.close()
            case ModelLoading() | ServerStopping():
                await self._wait_for_return(refused)
            case _:
                raise refused

    async def _wait_for_return(self, error: OSError | RequestRefused) -> None:
        """Raises ServerUnreachable when the patience is over."""
        now = time.monotonic()
        if self._gone_since is None:
            self._gone_since = now
        is_there = isinstance(error, RequestRefused)
        if now - self._gone_since >= self._patience_seconds or not (self._has_begun or is_there):
            reason = error.message if isinstance(error, RequestRefused) else error.strerror or str(error)
            raise ServerUnreachable(f"no server answers at {self._socket_path}: {reason}") from error
        await self._pause()

    async def _pause(self) -> None:
        pause, self._pause_seconds = self._pause_seconds, min(self._pause_seconds * 2, _LONGEST_PAUSE_SECONDS)
        await self._network.sleep(pause)

    def _subscribe_payload(self) -> bytes:
        wants_provisional = self._on_provisional is not None
        return encode_subscribe(self._session_id, self.cursor, provisional=wants_provisional)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
