"""The index of prefixes kept in host memory: what is there, what it costs, what goes first. Pure; lives in the worker.

It holds token ids and sizes. The state blobs are the executor's, under the same entry ids.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from superfluid.scheduling.sequence import Tokens

_PROBE_TOKENS = 64


def common_prefix(left: Tokens, right: Tokens) -> int:
    """How many tokens both streams begin with."""
    length = min(len(left), len(right))
    probe = min(length, _PROBE_TOKENS)
    equal = _equal_tokens(left[:probe], right[:probe])
    if equal < probe or probe == length:
        return equal
    return _equal_tokens(left[:length], right[:length])


def _equal_tokens(left: Tokens, right: Tokens) -> int:
    if not len(left):
        return 0
    differs = left != right
    first = int(differs.argmax())
    return first if differs[first] else len(left)


@dataclass(slots=True, eq=False)
class HostEntry:
    """A lane's state in host memory. ``size_bytes`` is 0 until the executor has reported it. A transient entry hands a
    prefix from lane to lane where nothing may stay in host memory; it lives for one plan."""

    entry_id: int
    tokens: Tokens
    last_used_tick: int
    is_transient: bool
    size_bytes: int = 0

    @property
    def length(self) -> int:
        return len(self.tokens)


class PrefixIndex:
    """The host entries, bounded in bytes, least recently used first out.

    ``is_nesting``: a state can be cut, so that an entry makes every prefix of it redundant.
    """

    def __init__(self, *, limit_bytes: int, is_nesting: bool) -> None:
        self._limit_bytes = limit_bytes
        self._is_nesting = is_nesting
        self._entries: dict[int, HostEntry] = {}
        self._fresh: set[int] = set()
        self._next_id = 0
        self._size_bytes = 0

    def __iter__(self) -> Iterator[HostEntry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def add(self, tokens: Tokens, tick: int, *, is_transient: bool) -> HostEntry:
        """Promises an entry for ``tokens`` (copied); it counts as there from now on."""
        entry = HostEntry(self._next_id, tokens.copy(), tick, is_transient)
        self._next_id += 1
        self._entries[entry.entry_id] = entry
        self._fresh.add(entry.entry_id)
        return entry

    def covered_tokens(self, tokens: Tokens) -> int:
        """The longest prefix of ``tokens`` that a lasting entry holds and a lane could be given."""
        longest = 0
        for entry in self._entries.values():
            if entry.is_transient:
                continue
            equal = common_prefix(entry.tokens, tokens)
            if equal > longest and (self._is_nesting or equal == entry.length):
                longest = equal
        return longest

    def record_size(self, entry_id: int, size_bytes: int) -> None:
        entry = self._entries[entry_id]
        self._size_bytes += size_bytes - entry.size_bytes
        entry.size_bytes = size_bytes

    def discard(self, entry_id: int) -> None:
        """The entry is gone, or was never made."""
        entry = self._entries.pop(entry_id, None)
        self._fresh.discard(entry_id)
        if entry is not None:
            self._size_bytes -= entry.size_bytes

    def tidy(self) -> list[int]:
        """Removes transient and redundant entries, then the least recently used ones over the bound; returns their ids.

        Called before a plan makes use of entries, so that none is dropped under a placement.
        """
        if not self._fresh:
            return []
        dropped: list[int] = []
        for entry in list(self._entries.values()):
            if entry.is_transient:
                self._drop(entry.entry_id, dropped)
        for fresh in sorted(self._fresh) if self._is_nesting else ():
            if fresh in self._entries:
                for redundant in self._made_redundant_by(fresh):
                    self._drop(redundant, dropped)
        self._fresh.clear()
        while self._size_bytes > self._limit_bytes:
            oldest = min(self._entries.values(), key=lambda entry: (entry.last_used_tick, entry.entry_id))
            self._drop(oldest.entry_id, dropped)
        return dropped

    def check_integrity(self) -> None:
        """Raises AssertionError if the books are wrong."""
        assert self._size_bytes == sum(entry.size_bytes for entry in self._entries.values())
        assert self._fresh <= self._entries.keys()
        assert all(entry.entry_id == key for key, entry in self._entries.items())
        assert all(entry.length > 0 for entry in self._entries.values())
        settled = [entry for entry in self._entries.values() if entry.entry_id not in self._fresh]
        assert not any(entry.is_transient for entry in settled)
        if not self._fresh:
            assert self._size_bytes <= self._limit_bytes
        if self._is_nesting:
            assert not any(_is_prefix(short, long) for short in settled for long in settled if short is not long)

    def _drop(self, entry_id: int, dropped: list[int]) -> None:
        self.discard(entry_id)
        dropped.append(entry_id)

    def _made_redundant_by(self, fresh: int) -> list[int]:
        entry = self._entries[fresh]
        others = [other for other in self._entries.values() if other is not entry]
        redundant = [other.entry_id for other in others if _is_prefix(other, entry)]
        if any(_is_prefix(entry, other) and other.length > entry.length for other in others):
            redundant.append(fresh)
        return redundant


def _is_prefix(short: HostEntry, long: HostEntry) -> bool:
    return short.length <= long.length and common_prefix(short.tokens, long.tokens) == short.length
