"""Tokens of texts that were tokenized before: a conversation that comes back one turn longer pays for that turn only.
Daemon."""

import array
import threading
from collections import OrderedDict
from typing import NamedTuple


class TokenCacheStatistics(NamedTuple):
    entries: int
    held_bytes: int
    hits: int
    misses: int


class TokenCache:
    """Least recently used texts go first, once ``max_bytes`` of texts and tokens are held. Thread-safe."""

    _OVERHEAD_BYTES = 200

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[str, bool], array.array[int]] = OrderedDict()
        self._held_bytes = 0
        self._hits = 0
        self._misses = 0
        self._lock = threading.Lock()

    def get(self, text: str, follows_marker: bool) -> "array.array[int] | None":
        key = (text, follows_marker)
        with self._lock:
            tokens = self._entries.get(key)
            if tokens is None:
                self._misses += 1
                return None
            self._hits += 1
            self._entries.move_to_end(key)
            return tokens

    def put(self, text: str, follows_marker: bool, tokens: list[int]) -> None:
        key = (text, follows_marker)
        packed = array.array("i", tokens)
        size = self._size(text, packed)
        if size > self._max_bytes // 2:
            return
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = packed
            self._held_bytes += size
            while self._held_bytes > self._max_bytes:
                (oldest, _), gone = self._entries.popitem(last=False)
                self._held_bytes -= self._size(oldest, gone)

    def statistics(self) -> TokenCacheStatistics:
        with self._lock:
            return TokenCacheStatistics(len(self._entries), self._held_bytes, self._hits, self._misses)

    def check_integrity(self) -> None:
        """Raises AssertionError if the books do not add up."""
        with self._lock:
            assert self._held_bytes == sum(self._size(text, tokens) for (text, _), tokens in self._entries.items())
            assert self._held_bytes <= self._max_bytes

    def _size(self, text: str, tokens: "array.array[int]") -> int:
        # Four bytes a character is the most a string takes; one is what nearly all take.
        characters = len(text) if text.isascii() else 4 * len(text)
        return self._OVERHEAD_BYTES + characters + 4 * len(tokens)
