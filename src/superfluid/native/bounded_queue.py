"""A queue of byte strings with room for so many, and for so many bytes. Between a connection and its transport."""

import asyncio
from collections import deque


class BoundedQueue:
    """First in, first out. Whoever puts waits for room, and those who wait get it in the order they came.

    One item larger than all the room there is passes when nothing else is queued.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._items: deque[bytes] = deque()
        self._bytes = 0
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._is_ended = False
        self._putting = asyncio.Lock()
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def queued_bytes(self) -> int:
        return self._bytes

    def put_now(self, item: bytes) -> bool:
        """``put``, if that need not wait; else false, and nothing is put."""
        if self._putting.locked() or not (self._is_ended or self._fits(item)):
            return False
        self._append(item)
        return True

    async def put(self, item: bytes) -> None:
        """Once the queue has ended, ``item`` is dropped."""
        async with self._putting:
            # No deadline: it is for the taker to take, or to close the queue.
            while not self._is_ended and not self._fits(item):
                self._has_room.clear()
                await self._has_room.wait()
            self._append(item)

    async def take(self) -> bytes | None:
        """The next item; ``None`` once the queue has ended and what waited was taken. One taker at a time."""
        # No deadline: an idle client may stay as long as it likes.
        while not self._items and not self._is_ended:
            self._changed.clear()
            await self._changed.wait()
        return self.take_now()

    def take_now(self) -> bytes | None:
        """The next item, if there is one."""
        if not self._items:
            return None
        item = self._items.popleft()
        self._bytes -= len(item)
        self._has_room.set()
        return item

    def end(self) -> None:
        """Takes no more items; what is queued can still be taken. Idempotent."""
        self._is_ended = True
        self._changed.set()
        self._has_room.set()

    def close(self) -> None:
        """``end``, and drops what is queued."""
        self._items.clear()
        self._bytes = 0
        self.end()

    def _append(self, item: bytes) -> None:
        if not self._is_ended:
            self._items.append(item)
            self._bytes += len(item)
            self._changed.set()

    def _fits(self, item: bytes) -> bool:
        if not self._items:
            return True
        return len(self._items) < self._max_items and self._bytes + len(item) <= self._max_bytes
