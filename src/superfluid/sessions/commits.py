"""What is on its way from the open sessions to the store, and who is told when it is there. Runs on the event loop.

Everything sent in one turn of the loop reaches the store together.
"""

import asyncio
from collections.abc import Callable, Sequence

from superfluid.domain.events import Event
from superfluid.errors import SuperfluidError
from superfluid.sessions.open_session import OpenSession
from superfluid.store.interface import Batch, SessionStore, Write

Part = tuple[OpenSession, list[Event]]


class _Commit:
    """One batch: what to tell, and whom."""

    __slots__ = ("future", "parts", "writes")

    def __init__(self, parts: Sequence[Part], writes: Sequence[Write], future: "asyncio.Future[list[Event]]") -> None:
        self.parts = parts
        self.writes = writes
        self.future = future


class CommitQueue:
    """``on_refused`` is called for each session of a batch that the store did not take."""

    def __init__(self, store: SessionStore, *, on_refused: Callable[[OpenSession, SuperfluidError], None]) -> None:
        self._store = store
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._unsent: list[_Commit] = []
        self._is_flush_scheduled = False

    def send(self, parts: Sequence[Part], writes: Sequence[Write]) -> "asyncio.Future[list[Event]]":
        """Queues ``writes``, which hold the events of ``parts``. The future has the first part's events once all is
        durable, or StoreUnavailableError; watchers are told before it is done."""
        future: asyncio.Future[list[Event]] = self._loop.create_future()
        for opened, _ in parts:
            opened.waiting += 1
        self._unsent.append(_Commit(parts, writes, future))
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)
        return future

    async def write(self, batch: Batch) -> None:
        """Commits what belongs to no open session, behind all that was sent before. Raises StoreUnavailableError."""
        # In the same queue: what is dropped here may be what a session that was sent in this turn forks from.
        await self.send((), batch)

    async def settled(self) -> None:
        """Waits until everything sent so far is durable or refused."""
        done = asyncio.Event()

        def answered(_: Sequence[SuperfluidError | None]) -> None:
            self._loop.call_soon_threadsafe(done.set)

        # Behind the flush that this turn of the loop may have scheduled.
        self._loop.call_soon(self._store.commit, (), answered)
        await done.wait()

    # ----

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        commits, self._unsent = self._unsent, []

        def done(errors: Sequence[SuperfluidError | None]) -> None:
            self._loop.call_soon_threadsafe(self._committed, commits, errors)

        self._store.commit([commit.writes for commit in commits], done)

    def _committed(self, commits: list[_Commit], errors: Sequence[SuperfluidError | None]) -> None:
        for commit, refusal in zip(commits, errors, strict=True):
            error = refusal
            for opened, _ in commit.parts:
                opened.waiting -= 1
                # A commit without events does not show that those before it failed: it must not pass for a success.
                error = error or opened.failure
            if error is None:
                self._publish(commit)
            else:
                self._refuse(commit, error)

    def _publish(self, commit: _Commit) -> None:
        for opened, events in commit.parts:
            opened.durable_events += len(events)
            for watcher in tuple(opened.watchers):
                watcher.committed(events)
        if not commit.future.done():
            commit.future.set_result(commit.parts[0][1] if commit.parts else [])

    def _refuse(self, commit: _Commit, error: SuperfluidError) -> None:
        for opened, _ in commit.parts:
            self._on_refused(opened, error)
        if not commit.future.done():
            commit.future.set_exception(error)
            # Nobody may be waiting for it (a tick's records): that is no reason for a warning about a lost exception.
            commit.future.exception()
