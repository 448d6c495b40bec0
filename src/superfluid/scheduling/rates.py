"""What things cost on this machine with this model, learned from measured steps. Pure: durations are arguments."""

from math import inf
from typing import Final

KEEP_OF_OLD: Final = 0.7
MIN_CHUNK_TOKENS: Final = 16
MAX_CHUNK_TOKENS: Final = 4096
FIRST_CHUNK_TOKENS: Final = 32
GAP_SHARE_OF_STEP: Final = 0.25
"""What one more run of lane ids costs, as a share of a decode step: 5 of about 20 ms with llama.cpp on two cores."""

_ASSUMED_PREFILL_SECONDS: Final = 0.005
_ASSUMED_SAVE_SHARE: Final = 1 / 200
_ASSUMED_RESTORE_SHARE: Final = 1 / 1000
_ASSUMED_WRITE_SHARE: Final = 1 / 200
_ASSUMED_READ_SHARE: Final = 1 / 200
"""Of a token's prefill. They are those of llama.cpp on a CPU; where they are too kind, the first transfer tells."""


class Rates:
    """Moving averages. An average that has no sample yet is assumed, except where that would size a chunk."""

    def __init__(self) -> None:
        self._prefill: float | None = None
        self._save: float | None = None
        self._restore: float | None = None
        self._write: float | None = None
        self._read: float | None = None
        self._bytes_per_token: float | None = None
        self._new_memory: float | None = None
        self.ready_bytes = 0
        """Memory for the next state that was in use before."""
        self._decode: dict[int, float] = {}

    @property
    def prefill_seconds_per_token(self) -> float:
        return _ASSUMED_PREFILL_SECONDS if self._prefill is None else self._prefill

    def save_seconds(self, tokens: int) -> float:
        """Of a state of ``tokens``, in memory that is at hand or, beyond that, new."""
        new_bytes = max(0, self.entry_bytes(tokens) - self.ready_bytes)
        return self._save_seconds_per_token * tokens + (self._new_memory or 0.0) * new_bytes

    @property
    def restore_seconds_per_token(self) -> float:
        if self._restore is None:
            return self.prefill_seconds_per_token * _ASSUMED_RESTORE_SHARE
        return self._restore

    @property
    def write_seconds_per_token(self) -> float:
        """Of the thread that writes KV files."""
        return self.prefill_seconds_per_token * _ASSUMED_WRITE_SHARE if self._write is None else self._write

    @property
    def read_seconds_per_token(self) -> float:
        return self.prefill_seconds_per_token * _ASSUMED_READ_SHARE if self._read is None else self._read

    def decode_seconds(self, lanes: int) -> float:
        """Of one step over ``lanes`` lanes; an unseen count is scaled from the nearest seen one. 0 if none was seen."""
        known = self._decode.get(lanes)
        if known is not None:
            return known
        if not lanes or not self._decode:
            return 0.0
        nearest = min(self._decode, key=lambda seen: (abs(seen - lanes), seen))
        return self._decode[nearest] * max(1.0, lanes / nearest)

    def gap_seconds(self, lanes: int) -> float:
        """Of one more run of lane ids in each step over ``lanes`` lanes."""
        return GAP_SHARE_OF_STEP * self.decode_seconds(lanes)

    def entry_bytes(self, tokens: int) -> int:
        """Estimated size of ``tokens`` in host memory; 0 if no entry has been seen."""
        return int((self._bytes_per_token or 0.0) * tokens)

    def tokens_in(self, size_bytes: float) -> float:
        """Estimated length of an entry of that size; infinite if no entry has been seen."""
        return size_bytes / self._bytes_per_token if self._bytes_per_token else inf

    def chunk_tokens(self, decoding_lanes: int, target_seconds: float) -> int:
        """How long the next chunk may be so that it and a decode step of the others fit ``target_seconds``."""
        if self._prefill is None:
            return FIRST_CHUNK_TOKENS
        spare = target_seconds - self.decode_seconds(decoding_lanes)
        if self._prefill <= 0.0:
            return MAX_CHUNK_TOKENS
        return max(MIN_CHUNK_TOKENS, min(MAX_CHUNK_TOKENS, int(spare / self._prefill)))

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        """Chunks below the smallest regular one say little about a token's price and count only as a first sample."""
        if tokens >= MIN_CHUNK_TOKENS or (tokens and self._prefill is None):
            self._prefill = _mixed(self._prefill, seconds / tokens)

    def observe_decode(self, lanes: int, seconds: float) -> None:
        self._decode[lanes] = _mixed(self._decode.get(lanes), seconds)

    def observe_save(self, tokens: int, seconds: float, new_bytes: int = 0) -> None:
        """``new_bytes`` of the memory it went to had never been used: that can take twenty times as long as all the
        rest, and is counted apart."""
        if new_bytes:
            extra = max(0.0, seconds - tokens * self._save_seconds_per_token)
            self._new_memory = _mixed(self._new_memory, extra / new_bytes)
        else:
            self._save = _mixed(self._save, seconds / tokens)

    def observe_restore(self, tokens: int, seconds: float) -> None:
        self._restore = _mixed(self._restore, seconds / tokens)

    def observe_write(self, tokens: int, seconds: float) -> None:
        self._write = _mixed(self._write, seconds / tokens)

    def observe_read(self, tokens: int, seconds: float) -> None:
        self._read = _mixed(self._read, seconds / tokens)

    def observe_entry(self, tokens: int, size_bytes: int) -> None:
        self._bytes_per_token = _mixed(self._bytes_per_token, size_bytes / tokens)

    @property
    def _save_seconds_per_token(self) -> float:
        return self.prefill_seconds_per_token * _ASSUMED_SAVE_SHARE if self._save is None else self._save


def _mixed(old: float | None, new: float) -> float:
    return new if old is None else KEEP_OF_OLD * old + (1 - KEEP_OF_OLD) * new
