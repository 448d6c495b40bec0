"""The network of ``AsyncClient``: asyncio's streams."""

import asyncio
import select
from contextlib import suppress

from superfluid_client.network import Address, Link

_PIECE_BYTES = 65_536


class AsyncioLink:
    """``network.Link`` over a pair of streams. It belongs to the loop it was made on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes, timeout_seconds: float) -> None:
        self._writer.write(data)
        async with asyncio.timeout(timeout_seconds):
            await self._writer.drain()

    async def receive(self, timeout_seconds: float | None) -> bytes:
        async with asyncio.timeout(timeout_seconds):
            return await self._reader.read(_PIECE_BYTES)

    def is_idle(self) -> bool:
        # A loop that was busy has not read what tells that the other side is gone.
        return self._is_home() and not self._writer.is_closing() and not self._is_readable()

    def close(self) -> None:
        transport = self._writer.transport
        if self._is_home():
            transport.abort()
            return
        # What is dropped unread may be collected anywhere. A loop that is closed has let go of its sockets.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(transport.abort)

    def _is_readable(self) -> bool:
        poller = select.poll()
        poller.register(self._writer.get_extra_info("socket"), select.POLLIN)
        return self._reader.at_eof() or bool(poller.poll(0))

    def _is_home(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False


class AsyncioNetwork:
    """``network.Network`` for tasks."""

    async def connect(self, address: Address, timeout_seconds: float) -> Link:
        async with asyncio.timeout(timeout_seconds):
            if isinstance(address, tuple):
                return AsyncioLink(*await asyncio.open_connection(*address))
            return AsyncioLink(*await asyncio.open_unix_connection(address))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
