"""Streams over plain ASGI: event framing, keep-alive, and a hang-up that ends the work at once. Runs in the daemon."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from starlette.types import Receive, Send

from superfluid.http.dialect import Framing

EVENT_STREAM = Framing(content_type=b"text/event-stream; charset=utf-8", keepalive=b": keep-alive\n\n")
FAREWELL_SECONDS = 0.5


async def until_hangup(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs ``work`` to its end, or until the client hangs up: it is then cancelled and awaited.

    The request's body must have been read. Being cancelled from outside cancels ``work`` likewise.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        # No deadline: a generation ends by itself, and its client may leave at any time.
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
    finally:
        watcher.cancel()
        is_cut = not task.done()
        task.cancel()
        await asyncio.wait((task, watcher))
    if not (is_cut and task.cancelled()):
        task.result()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class ResponseStream:
    """The body of one streamed response, between ``begin`` and ``finish``.

    Used as a context manager: leaving it stops the keep-alive, and nothing else.
    """

    def __init__(self, send: Send, framing: Framing, keepalive_seconds: float) -> None:
        self._send = send
        self._framing = framing
        self._interval = keepalive_seconds
        self._loop = asyncio.get_running_loop()
        self._last_write = self._loop.time()
        # A keep-alive that waits for a slow reader must neither pass nor be passed by the end of the body.
        self._turn = asyncio.Lock()
        self._keepalive: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keepalive is not None:
            self._keepalive.cancel()
            await asyncio.wait((self._keepalive,))
            if not self._keepalive.cancelled():
                self._keepalive.result()

    async def begin(self, frames: bytes) -> None:
        """Answers 200 and sends the first frames."""
        headers = [
            (b"content-type", self._framing.content_type),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.write(frames)
        if self._framing.keepalive:
            self._keepalive = asyncio.create_task(self._keep_alive())

    async def write(self, frames: bytes) -> None:
        """Sends whole frames at once. Waits while the client reads too slowly; afterwards they are on their way."""
        async with self._turn:
            await self._send({"type": "http.response.body", "body": frames, "more_body": True})
            self._last_write = self._loop.time()

    async def finish(self, frames: bytes) -> None:
        """Sends the last frames and ends the body."""
        async with self._turn:
            if self._keepalive is not None:
                self._keepalive.cancel()
            await self._send({"type": "http.response.body", "body": frames, "more_body": False})

    async def abandon(self, frames: bytes) -> None:
        """``finish`` for a task that is being cancelled: gives up on a client that does not read. The server sends
        nothing to one that has hung up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self.finish(frames)

    async def _keep_alive(self) -> None:
        while True:
            quiet = self._loop.time() - self._last_write
            if quiet >= self._interval:
                await self.write(self._framing.keepalive)
            else:
                await asyncio.sleep(self._interval - quiet)
