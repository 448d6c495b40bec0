"""Reply ids, and how many replies are running. Runs on the daemon's event loop."""

import asyncio
import itertools

from superfluid.errors import ShuttingDownError


class ReplyCounter:
    """Reply ids, rising and unique within the daemon; and how many replies are running, for the drain."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._running: set[int] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_draining = False

    @property
    def running(self) -> int:
        return len(self._running)

    def open(self) -> int:
        """A new id. Raises ShuttingDownError once the daemon drains."""
        if self.is_draining:
            raise ShuttingDownError("the server is shutting down and takes no new requests")
        reply_id = next(self._ids)
        self._running.add(reply_id)
        self._idle.clear()
        return reply_id

    def close(self, reply_id: int) -> None:
        """The reply has ended. Idempotent."""
        self._running.discard(reply_id)
        if not self._running:
            self._idle.set()

    async def wait_idle(self) -> None:
        await self._idle.wait()
