"""The index of prefixes kept in host memory: what is there, what it costs, what goes first. Pure; lives in the worker.

It holds token ids and sizes. The state blobs are the executor's, under the same entry ids.
"""

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from superfluid.scheduling.token_tree import Tokens, TokenTree

_LOOKED_AT: Final = 16


class CheckpointKind(enum.Enum):
    """Why a state was saved while a prompt was read: it is where a conversation ends, or where others go apart."""

    INPUT = enum.auto()
    SHARED = enum.auto()


@dataclass(slots=True, eq=False)
class HostEntry:
    """A lane's state in host memory. ``size_bytes`` is 0 until the executor has reported it. A transient entry hands a
    prefix from lane to lane where nothing may stay in host memory; it lives for one plan, or as long as a queued job
    holds it. ``owner`` is the session whose tokens they are; ``uses`` counts the jobs that began with it.
    ``adapter`` is the one they were computed with. ``is_copy``: it was made while its lane was free."""

    entry_id: int
    tokens: Tokens
    last_used_tick: int
    is_transient: bool
    size_bytes: int = 0
    owner: int | None = None
    holders: int = 0
    uses: int = 0
    checkpoint: CheckpointKind | None = None
    adapter: int = 0
    is_from_disk: bool = False
    is_copy: bool = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def is_shared(self) -> bool:
        """Several jobs have begun with it, or are about to."""
        return self.uses > 1 or self.checkpoint is CheckpointKind.SHARED


class PrefixIndex:
    """The host entries, bounded in bytes, least recently used first out.

    ``is_nesting``: a state can be cut, so that an entry makes every prefix of it redundant. Each adapter's entries are
    a tree of their own: nothing that was computed with one is found for a job of another.
    """

    def __init__(self, *, limit_bytes: int, is_nesting: bool) -> None:
        self._limit_bytes = limit_bytes
        self._is_nesting = is_nesting
        self._entries: dict[int, HostEntry] = {}
        self._fresh: set[int] = set()
        self._next_id = 0
        self._size_bytes = 0
        self._trees: dict[int, TokenTree] = {}
        self.protected: frozenset[int] = frozenset()
        """Entries that pins hold: the last to go."""
        self.is_resident: Callable[[HostEntry], bool] = lambda _: False
        """Whether a lane holds the same as an entry, which then is the first to go."""

    def __iter__(self) -> Iterator[HostEntry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def is_tidy(self) -> bool:
        """Whether ``tidy`` would find nothing to do: nothing was added since, and nothing is held."""
        return not self._fresh

    def add(
        self, tokens: Tokens, tick: int, *, is_transient: bool, owner: int | None = None, adapter: int = 0
    ) -> HostEntry:
        """Promises an entry for ``tokens`` (copied); it counts as there from now on."""
        entry = HostEntry(self._next_id, tokens.copy(), tick, is_transient, owner=owner, adapter=adapter)
        self._next_id += 1
        self._entries[entry.entry_id] = entry
        self._trees.setdefault(adapter, TokenTree()).insert(entry.tokens, entry.entry_id)
        self._fresh.add(entry.entry_id)
        return entry

    def matches(self, tokens: Tokens, adapter: int = 0) -> list[tuple[HostEntry, int]]:
        """Entries worth a look, with the tokens each has in common with ``tokens``: those that lie wholly within it,
        and a short one of those that have most in common with it."""
        passed, length, reaching = self._walk(tokens, adapter)
        found = [(entry, entry.length) for entry in map(self._entries.__getitem__, passed)]
        if length:
            looked_at = map(self._entries.__getitem__, islice(reaching, _LOOKED_AT))
            best = min(looked_at, key=lambda entry: (entry.length, entry.entry_id))
            if best.length > length:
                found.append((best, length))
        return found

    def coverage(self, tokens: Tokens, adapter: int = 0) -> tuple[int, bool]:
        """The longest prefix of ``tokens`` that a lasting entry holds and a lane could be given, and whether others
        begin with it as well: an entry goes on differently, or several jobs have begun with one."""
        passed, length, reaching = self._walk(tokens, adapter)
        if self._is_nesting:
            lasting = (entry for key in reaching if not (entry := self._entries[key]).is_transient)
            looked_at = list(islice(lasting, _LOOKED_AT))
            if looked_at:
                return length, any(entry.length > length or entry.is_shared for entry in looked_at)
        whole = [entry for key in passed if not (entry := self._entries[key]).is_transient]
        longest = max(whole, key=lambda entry: entry.length, default=None)
        return (0, False) if longest is None else (longest.length, longest.is_shared)

    def has(self, tokens: Tokens, adapter: int = 0) -> bool:
        """Whether some entry holds exactly these."""
        passed, _, _ = self._walk(tokens, adapter)
        return any(self._length(key) == len(tokens) for key in passed)

    def drop_input_checkpoints(self, tokens: Tokens, adapter: int = 0) -> list[int]:
        """Removes those of earlier turns of the conversation ``tokens``; returns their ids."""
        passed, _, _ = self._walk(tokens, adapter)
        earlier = [self._entries[key] for key in passed]
        dropped: list[int] = []
        for entry in earlier:
            if entry.checkpoint is CheckpointKind.INPUT and not self._is_kept(entry):
                self._drop(entry.entry_id, dropped)
        return dropped

    def drop_copies(self, tokens: Tokens, adapter: int = 0) -> list[int]:
        """Removes those of earlier turns of the conversation ``tokens``; returns their ids."""
        passed, _, _ = self._walk(tokens, adapter)
        dropped: list[int] = []
        for entry in [self._entries[key] for key in passed]:
            if entry.is_copy and not self._is_kept(entry):
                self._drop(entry.entry_id, dropped)
        return dropped

    def drop_checkpoints_over(self, count: int) -> list[int]:
        """Removes the checkpoints used longest ago until there are no more than ``count``; returns their ids."""
        checkpoints = [entry for entry in self._entries.values() if entry.checkpoint is not None]
        checkpoints.sort(key=lambda entry: (entry.last_used_tick, entry.entry_id))
        dropped: list[int] = []
        for entry in checkpoints[: max(0, len(checkpoints) - count)]:
            if not self._is_kept(entry):
                self._drop(entry.entry_id, dropped)
        return dropped

    def record_size(self, entry_id: int, size_bytes: int) -> None:
        entry = self._entries[entry_id]
        self._size_bytes += size_bytes - entry.size_bytes
        entry.size_bytes = size_bytes

    def hold(self, entry_id: int) -> None:
        """A job that has no lane yet is going to need the entry."""
        self._entries[entry_id].holders += 1

    def release(self, entry_id: int) -> None:
        """It does not any more. The entry may be gone already."""
        entry = self._entries.get(entry_id)
        if entry is not None:
            entry.holders -= 1

    def discard(self, entry_id: int) -> None:
        """The entry is gone, or was never made."""
        entry = self._entries.pop(entry_id, None)
        self._fresh.discard(entry_id)
        if entry is not None:
            tree = self._trees[entry.adapter]
            tree.remove(entry_id)
            if not len(tree):
                del self._trees[entry.adapter]
            self._size_bytes -= entry.size_bytes

    def tidy(self) -> list[int]:
        """Removes transient and redundant entries, then the least recently used ones over the bound; returns their ids.

        Called before a plan makes use of entries, so that none is dropped under a placement.
        """
        if not self._fresh:
            return []
        dropped: list[int] = []
        held = {entry.entry_id for entry in self._entries.values() if entry.holders}
        for entry in list(self._entries.values()):
            if entry.is_transient and not entry.holders:
                self._drop(entry.entry_id, dropped)
        for fresh in sorted(self._fresh - held) if self._is_nesting else ():
            if fresh in self._entries:
                for redundant in self._made_redundant_by(self._entries[fresh]):
                    self._drop(redundant, dropped)
        # What is held is looked at again next time, and counts for nothing until then.
        self._fresh = held
        held_bytes = sum(self._entries[entry_id].size_bytes for entry_id in held)
        while self._size_bytes - held_bytes > self._limit_bytes:
            lasting = (entry for entry in self._entries.values() if not entry.holders)
            oldest = min(lasting, key=self._rank)
            self._drop(oldest.entry_id, dropped)
        return dropped

    def covering(self, tokens: Tokens) -> HostEntry | None:
        """The lasting entry of the model alone that holds most of ``tokens``, so that a lane could be given it."""
        passed, length, reaching = self._walk(tokens, 0)
        if self._is_nesting and length:
            found = [self._entries[key] for key in islice(reaching, _LOOKED_AT)]
        else:
            found = [self._entries[key] for key in passed]
        lasting = [entry for entry in found if not entry.is_transient]
        return max(lasting, key=lambda entry: (min(entry.length, length), -entry.length), default=None)

    def evictable_bytes(self) -> int:
        """What ``evict`` could free without touching pins."""
        entries = (entry for entry in self._entries.values() if not entry.holders)
        return sum(entry.size_bytes for entry in entries if entry.entry_id not in self.protected)

    def evict(self, size_bytes: int, *, spares_protected: bool) -> list[int]:
        """Removes entries until no more than ``size_bytes`` are left: those that a lane holds as well, then those that
        one job at most has begun with, then the shared ones, then (unless spared) those that pins hold; of each the
        least recently used first. Returns their ids. Entries that a queued job holds stay."""
        dropped: list[int] = []
        entries = sorted(
            (entry for entry in self._entries.values() if not entry.holders and not entry.is_transient),
            key=lambda entry: (*self._rank(entry)[:2], entry.uses > 1, *self._rank(entry)[2:]),
        )
        for entry in entries:
            if self._size_bytes <= size_bytes or (spares_protected and entry.entry_id in self.protected):
                break
            self._drop(entry.entry_id, dropped)
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
        for tree in self._trees.values():
            tree.check_integrity()
        assert sum(map(len, self._trees.values())) == len(self._entries)
        if self._is_nesting and not self._fresh:
            assert not any(self._trees[entry.adapter].extensions(key) for key, entry in self._entries.items())

    def _walk(self, tokens: Tokens, adapter: int) -> tuple[list[int], int, Iterable[int]]:
        tree = self._trees.get(adapter)
        return ([], 0, ()) if tree is None else tree.walk(tokens)

    def _drop(self, entry_id: int, dropped: list[int]) -> None:
        self.discard(entry_id)
        dropped.append(entry_id)

    def _is_kept(self, entry: HostEntry) -> bool:
        return entry.holders > 0 or entry.entry_id in self.protected

    def _rank(self, entry: HostEntry) -> tuple[bool, bool, int, int]:
        """What goes first has the least."""
        is_protected = entry.entry_id in self.protected
        return is_protected, not self.is_resident(entry), entry.last_used_tick, entry.entry_id

    def _made_redundant_by(self, fresh: HostEntry) -> list[int]:
        passed, _, reaching = self._walk(fresh.tokens, fresh.adapter)
        is_extended = any(self._length(key) > fresh.length and not self._entries[key].holders for key in reaching)
        return [key for key in passed if not self._entries[key].holders and (key != fresh.entry_id or is_extended)]

    def _length(self, entry_id: int) -> int:
        return self._entries[entry_id].length
