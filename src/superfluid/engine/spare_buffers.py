"""Memory for lane states that is in use already, so that an export need not wait for it. Runs in the worker."""

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_SIZE_STEPS: Final = 16
_LOOSE: Final = 2
"""A buffer this many times too large is left for another."""


class SpareBuffers:
    """Buffers of states that are gone, for the next ones: memory that was never touched takes up to fifty times as long
    as the export itself.

    At most two are kept, and none of more than ``limit_bytes``. ``put_back`` may be called by any thread.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._spares: deque[Bytes] = deque(maxlen=2)

    def take(self, size_bytes: int) -> Bytes:
        """At least so long; what is in it has no meaning. Raises MemoryError."""
        buffer = self._find(size_bytes)
        return _new_buffer(size_bytes) if buffer is None else buffer

    def put_back(self, buffer: Bytes) -> None:
        if len(buffer) <= self._limit_bytes:
            self._spares.append(buffer)

    @property
    def ready_bytes(self) -> int:
        """The largest there is."""
        return max(map(len, tuple(self._spares)), default=0)

    def clear(self) -> None:
        """Gives the memory back."""
        self._spares.clear()

    def _find(self, size_bytes: int) -> Bytes | None:
        try:
            for _ in range(len(self._spares)):
                spare = self._spares.popleft()
                if size_bytes <= len(spare) <= _LOOSE * size_bytes:
                    return spare
                self._spares.append(spare)
        except IndexError:
            # Only this one takes; but a full deque drops one when another is put back.
            pass
        return None


def _new_buffer(size_bytes: int) -> Bytes:
    """With room for a conversation that grows: sizes are rounded up to a sixteenth of the next power of two."""
    step = max(1, (1 << size_bytes.bit_length()) // _SIZE_STEPS)
    return np.empty(-(-size_bytes // step) * step, np.uint8)
