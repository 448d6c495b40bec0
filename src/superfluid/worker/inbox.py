"""What the tick loop has not taken yet: what the daemon has sent, and what came of KV files. Filled by the threads that
read the one and do the other; in the worker."""

import queue
from collections.abc import Callable
from typing import Final

from superfluid.kvfiles.service import KvEvent
from superfluid.worker.protocol import ToWorker

LONGEST_WAIT_SECONDS: Final = 3600.0
"""More than a few hundred years is more than the system's clock can wait for."""


class Inbox:
    """``on_arrival`` is called by the thread that puts, for every message, when it can be taken already."""

    def __init__(self) -> None:
        self.on_arrival: Callable[[ToWorker | KvEvent], None] = lambda _: None
        self._queue: queue.SimpleQueue[ToWorker | KvEvent] = queue.SimpleQueue()

    def put(self, message: ToWorker | KvEvent) -> None:
        self._queue.put(message)
        self.on_arrival(message)

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()

    def get(self, timeout_seconds: float | None = None) -> ToWorker | KvEvent | None:
        """Waits for a message; ``None`` when the time is over, or after an hour: whoever waits for something that is
        further away (a pin may be set for as long as its client likes) looks again then."""
        try:
            return self._queue.get(
                timeout=None if timeout_seconds is None else min(timeout_seconds, LONGEST_WAIT_SECONDS)
            )
        except queue.Empty:
            return None
