"""What the tick loop has not taken yet: what the daemon has sent, and what came of KV files. Filled by the threads that
read the one and do the other; in the worker."""

import queue
from collections.abc import Callable

from superfluid.kvfiles.service import KvEvent
from superfluid.worker.protocol import ToWorker


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
        """Waits for a message; ``None`` when the time is over."""
        try:
            return self._queue.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
