"""Following a session for as long as it lives."""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from superfluid_client.async_watch import AsyncWatch
from superfluid_client.blocking import run
from superfluid_client.records import Event


class Watch(Iterator[Event]):
    """Yields a session's events, each once and in order, and ends when the session is purged, or by ``close``.

    A daemon that is gone is waited for, unless it is not there at the very beginning. ``cursor`` is the id of the event
    that comes next: a program that keeps it can go on later from there. Raises UnknownSession, SessionPurged (for one
    that was purged before), ServerUnreachable and UnexpectedReply. One thread at a time may read it.
    """

    def __init__(self, core: AsyncWatch) -> None:
        """Use ``Session.watch``."""
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core)

    @property
    def cursor(self) -> int:
        return self._core.cursor

    def __next__(self) -> Event:
        event = run(self._core.next_event())
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """Ends it, from any thread. A thread that waits for an event is woken up."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
