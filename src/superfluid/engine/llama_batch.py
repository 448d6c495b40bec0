"""The arrays behind a ``llama_batch``, filled through numpy without a Python object per token. Runs in the worker."""

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from superfluid.engine.interface import Row

CPU_MICRO_BATCH_TOKENS: Final = 256
"""The unit of what an abort keeps. A prompt is read 7 to 10 % faster than by 64, and by 512 no faster than by this."""
GPU_MICRO_BATCH_TOKENS: Final = 512


class BatchArrays:
    """One reusable batch of at most ``capacity`` tokens. All memory is numpy's, so llama.cpp must not free it."""

    def __init__(self, binding: Any, capacity: int) -> None:
        self.capacity = capacity
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._lanes = np.zeros(capacity, np.int32)
        self._lane_counts = np.ones(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        base = self._lanes.ctypes.data
        # llama.cpp wants a pointer to the sequence ids of every token; each points at its own element of one array.
        self._lane_pointers = (base + 4 * np.arange(capacity)).astype(np.uintp)
        self.batch = binding.llama_batch()
        self.batch.token = _pointer(self._tokens, ctypes.c_int32)
        self.batch.pos = _pointer(self._positions, ctypes.c_int32)
        self.batch.n_seq_id = _pointer(self._lane_counts, ctypes.c_int32)
        self.batch.seq_id = _pointer(self._lane_pointers, ctypes.POINTER(ctypes.c_int32))
        self.batch.logits = _pointer(self._wanted, ctypes.c_int8)

    def fill(self, rows: Sequence[Row]) -> int:
        """Lays out the rows one behind the other and returns the count of logits they ask for."""
        if len(rows) > 1 and all(len(row.tokens) == 1 and row.wants_logits != "none" for row in rows):
            return self._fill_with_single_tokens(rows)
        wanted = self._wanted
        start = outputs = 0
        for lane, position, tokens, wants in rows:
            count = len(tokens)
            end = start + count
            self._tokens[start:end] = tokens
            self._lanes[start:end] = lane
            self._positions[start:end] = position if count == 1 else np.arange(position, position + count)
            wanted[start:end] = wants == "all"
            if wants == "last":
                wanted[end - 1] = 1
            outputs += 0 if wants == "none" else count if wants == "all" else 1
            start = end
        self.batch.n_tokens = start
        return outputs

    def _fill_with_single_tokens(self, rows: Sequence[Row]) -> int:
        """A decode step of several lanes."""
        count = len(rows)
        self._tokens[:count] = [row.tokens[0] for row in rows]
        self._lanes[:count] = [row.lane for row in rows]
        self._positions[:count] = [row.position for row in rows]
        self._wanted[:count] = 1
        self.batch.n_tokens = count
        return count


class EmbeddingBatch:
    """A batch of ``embeddings`` (one row a token) in the place of tokens, for one lane from ``position`` on."""

    def __init__(self, binding: Any, embeddings: NDArray[np.float32], lane: int, position: int, *, has_output: bool):
        count = len(embeddings)
        self._embeddings = np.ascontiguousarray(embeddings)
        self._positions = np.arange(position, position + count, dtype=np.int32)
        self._lane = np.full(1, lane, np.int32)
        self._lane_counts = np.ones(count, np.int32)
        self._lane_pointers = np.full(count, self._lane.ctypes.data, np.uintp)
        self._wanted = np.zeros(count, np.int8)
        self._wanted[-1] = has_output
        self.batch = binding.llama_batch()
        self.batch.n_tokens = count
        self.batch.embd = _pointer(self._embeddings, ctypes.c_float)
        self.batch.pos = _pointer(self._positions, ctypes.c_int32)
        self.batch.n_seq_id = _pointer(self._lane_counts, ctypes.c_int32)
        self.batch.seq_id = _pointer(self._lane_pointers, ctypes.POINTER(ctypes.c_int32))
        self.batch.logits = _pointer(self._wanted, ctypes.c_int8)


def _pointer(array: Any, element: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(element))
