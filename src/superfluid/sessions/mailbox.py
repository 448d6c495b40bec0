"""One producer on the event loop, one reader: items are handed over in batches, then comes an end or a failure."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Generic, TypeVar

from superfluid.errors import SuperfluidError

_T = TypeVar("_T")


class Mailbox(Generic[_T]):
    """Unbounded: its producer must be bounded by something of its own, as a generation is by its ``max_tokens``."""

    def __init__(self) -> None:
        self._items: list[_T] = []
        self._waiter: asyncio.Future[None] | None = None
        self._error: SuperfluidError | None = None
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can be put in."""
        return self._is_closed

    @property
    def error(self) -> SuperfluidError | None:
        return self._error

    def put(self, items: Iterable[_T]) -> None:
        """Ignored once closed."""
        if not self._is_closed:
            self._items.extend(items)
            if self._items:
                self._wake()

    def close(self) -> None:
        self._is_closed = True
        self._wake()

    def fail(self, error: SuperfluidError) -> None:
        """Closes; the reader gets what is in the box, then ``error``. Without effect on a closed one."""
        if not self._is_closed:
            self._error = error
            self.close()

    async def batches(self) -> AsyncIterator[list[_T]]:
        """What comes in, in non-empty batches, until closed. Raises the failure, if it ended in one."""
        while True:
            if self._items:
                batch, self._items = self._items, []
                yield batch
            elif self._error is not None:
                raise self._error
            elif self._is_closed:
                return
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
