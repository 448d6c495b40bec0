"""What the client needs of a network. The rest of the package is written against this, once, as coroutines.

``AsyncClient`` runs them on asyncio (``asyncio_network``). ``Client`` runs the very same ones on sockets that block
(``blocking``): there, nothing ever suspends, so a coroutine is over when its first step is.
"""

from pathlib import Path
from typing import Protocol

Address = tuple[str, int] | Path
"""A host and its port, or the path of a unix socket."""


class Link(Protocol):
    """A connection. Failures are OSErrors, a wait that was too long is TimeoutError; the link is of no use after one,
    unless it was a wait for ``receive``."""

    async def send(self, data: bytes, timeout_seconds: float) -> None:
        """Returns when the system has taken all of it. Being cancelled may leave a part unsent."""

    async def receive(self, timeout_seconds: float | None) -> bytes:
        """What has arrived, at least one byte; nothing at the end. Being cancelled loses nothing."""

    def is_idle(self) -> bool:
        """Whether it can serve another request: open, and without anything unread."""

    def close(self) -> None:
        """Ends it at once, for a ``receive`` under way as well. From any thread, any number of times."""


class Network(Protocol):
    """Makes links, and waits."""

    async def connect(self, address: Address, timeout_seconds: float) -> Link:
        """Raises OSError."""

    async def sleep(self, seconds: float) -> None:
        """Waits."""
