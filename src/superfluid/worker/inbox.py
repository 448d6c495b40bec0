"""What the daemon has sent and the tick loop has not taken yet. Filled by the reader thread; in the worker."""

import queue
from collections.abc import Callable

from superfluid.worker.protocol import ToWorker


class Inbox:
    """``on_arrival`` is called by the thread that puts, for every message, when it can be taken already."""

    def __init__(self) -> None:
        self.on_arrival: Callable[[ToWorker], None] = lambda _: None
        self._queue: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()

    def put(self, message: ToWorker) -> None:
        self._queue.put(message)
        self.on_arrival(message)

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()

    def get(self, timeout_seconds: float | None = None) -> ToWorker | None:
        """Waits for a message; ``None`` when the time is over."""
        try:
            return self._queue.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
