"""A network without sockets: links answer what a script says, and sleeping moves the clock."""

import asyncio
from collections import deque
from collections.abc import Iterable

from superfluid_client.network import Address

Step = bytes | Exception
"""What one ``receive`` gets: bytes (none at all is the end) or a failure."""


class ScriptedLink:
    """Hands out its steps one by one, and waits for ever behind the last."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.steps = deque(steps)
        self.sent = b""
        self.is_closed = False
        self.is_starving = asyncio.Event()

    async def send(self, data: bytes, timeout_seconds: float) -> None:
        self.sent += data

    async def receive(self, timeout_seconds: float | None) -> bytes:
        if not self.steps:
            self.is_starving.set()
            await asyncio.get_running_loop().create_future()
        step = self.steps.popleft()
        if isinstance(step, Exception):
            raise step
        return step

    def is_idle(self) -> bool:
        return not self.is_closed and not self.steps

    def close(self) -> None:
        self.is_closed = True


class ScriptedNetwork:
    """Hands out ``links`` one by one; an exception in their place is why there is none."""

    def __init__(self, *links: ScriptedLink | OSError) -> None:
        self.links = deque(links)
        self.addresses: list[Address] = []
        self.pauses: list[float] = []

    async def connect(self, address: Address, timeout_seconds: float) -> ScriptedLink:
        self.addresses.append(address)
        link = self.links.popleft()
        if isinstance(link, OSError):
            raise link
        return link

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
