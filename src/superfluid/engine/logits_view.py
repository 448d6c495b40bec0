"""The logits that llama.cpp has computed, as an array over its own memory. Runs in the worker."""

import ctypes
from typing import Any

import numpy as np

from superfluid.engine.interface import Logits


class LogitsView:
    """Makes the array anew only when it lies elsewhere or has another size: one step after the other has the same."""

    def __init__(self, vocabulary_tokens: int) -> None:
        self._columns = vocabulary_tokens
        self._address = 0
        self._view: Logits = self.none

    @property
    def none(self) -> Logits:
        """Of a step that asked for none."""
        return np.empty((0, self._columns), np.float32)

    def at(self, pointer: Any, rows: int) -> Logits | None:
        """The first ``rows`` rows behind a pointer to floats; ``None`` if that is null."""
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        if address is None:
            return None
        if address != self._address or rows != len(self._view):
            floats = (ctypes.c_float * (rows * self._columns)).from_address(address)
            flat = np.frombuffer(memoryview(floats).cast("B"), np.float32)
            self._address, self._view = address, flat.reshape(rows, self._columns)
        return self._view
