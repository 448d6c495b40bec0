"""What the daemon has asked to be erased of sessions' KV state, in the worker and on the disk. On its event loop."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

from superfluid.errors import StoreUnavailableError
from superfluid.kvfiles.erasing import erase_files
from superfluid.worker.protocol import Forget


class Erasures:
    """Requests to a worker without an answer yet."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def ask(self, sessions: Sequence[int]) -> "tuple[Forget, asyncio.Future[None]]":
        """The message to send, and what is done when the worker has erased, or is gone."""
        request = Forget(next(self._ids), list(sessions))
        answer = self._waiting[request.request_id] = asyncio.get_running_loop().create_future()
        return request, answer

    def answered(self, request_id: int) -> None:
        """Answers that nobody waits for are ignored."""
        answer = self._waiting.pop(request_id, None)
        if answer is not None and not answer.done():
            answer.set_result(None)

    def worker_lost(self) -> None:
        """It has taken along what it kept in memory."""
        for request_id in list(self._waiting):
            self.answered(request_id)


async def erase_from_disk(directory: Path, sessions: Sequence[int]) -> None:
    """Raises StoreUnavailableError if the disk does not let a file go."""
    try:
        await asyncio.to_thread(erase_files, directory, sessions)
    except OSError as error:
        raise StoreUnavailableError(f"KV files of erased sessions stay on the disk: {error.strerror}") from error
