"""Reply ids, and which replies are running. Runs on the daemon's event loop."""

import asyncio
import itertools
from dataclasses import dataclass
from typing import Protocol

from superfluid.errors import ShuttingDownError


@dataclass(slots=True)
class RunningFacts:
    """What is known of a running reply. ``session`` is ``None`` until it has one, and for those that never get one."""

    session: int | None = None
    max_tokens: int = 0


class ReplyObserver(Protocol):
    """Told when a reply comes and goes. Must not block and must not raise."""

    def began(self, reply_id: int) -> None: ...

    def ended(self, reply_id: int, facts: RunningFacts) -> None: ...


class ReplyCounter:
    """Reply ids, rising and unique within the daemon; and which replies are running, for the drain and for monitors."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._running: dict[int, RunningFacts] = {}
        self.observer: ReplyObserver | None = None
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
        self._running[reply_id] = RunningFacts()
        self._idle.clear()
        if self.observer is not None:
            self.observer.began(reply_id)
        return reply_id

    def describe(self, reply_id: int, *, session: int | None = None, max_tokens: int | None = None) -> None:
        """Adds to what is known of a reply, if it is still running."""
        facts = self._running.get(reply_id)
        if facts is not None:
            facts.session = facts.session if session is None else session
            facts.max_tokens = facts.max_tokens if max_tokens is None else max_tokens

    def facts(self, reply_id: int) -> RunningFacts | None:
        """``None`` once the reply has ended."""
        return self._running.get(reply_id)

    def close(self, reply_id: int) -> None:
        """The reply has ended. Idempotent."""
        facts = self._running.pop(reply_id, None)
        if facts is not None and self.observer is not None:
            self.observer.ended(reply_id, facts)
        if not self._running:
            self._idle.set()

    async def wait_idle(self) -> None:
        await self._idle.wait()
