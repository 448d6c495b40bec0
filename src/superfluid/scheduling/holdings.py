"""Which prefixes lie in free lanes and in host memory, and what of that is news. Pure; lives in the worker."""

from dataclasses import dataclass

from superfluid.scheduling.prefix import PrefixIndex
from superfluid.scheduling.sequence import Lane
from superfluid.scheduling.token_tree import Tokens


@dataclass(frozen=True, slots=True)
class Holding:
    """Computed state that a job can begin with: in the free ``lane``, or in host memory where that is ``None``.

    ``number`` is used once. ``owner`` is the session whose tokens they are.
    """

    number: int
    lane: int | None
    owner: int | None
    tokens: Tokens
    adapter: int


class Holdings:
    """Reads lanes and index, when it is asked to; a look takes time in proportion to how many there are."""

    def __init__(self, lanes: list[Lane], index: PrefixIndex) -> None:
        self._lanes = lanes
        self._index = index
        self._in_lanes: dict[int, tuple[tuple[int, int], int]] = {}
        self._in_memory: dict[int, int] = {}
        self._last_number = 0

    def changes(self) -> tuple[list[Holding], list[int]]:
        """What there is since the last call, and the numbers of what is there no more."""
        added: list[Holding] = []
        removed: list[int] = []
        self._look_at_lanes(added, removed)
        self._look_at_memory(added, removed)
        return added, removed

    def _look_at_lanes(self, added: list[Holding], removed: list[int]) -> None:
        for lane in self._lanes:
            # A lane's content is the same as long as nobody has come and nothing was taken away.
            content = (lane.placed_tick, lane.length) if lane.sequence is None and lane.length else None
            told = self._in_lanes.get(lane.index)
            if told is not None and told[0] != content:
                removed.append(told[1])
                del self._in_lanes[lane.index]
            if content is not None and (told is None or told[0] != content):
                number = self._next_number()
                self._in_lanes[lane.index] = (content, number)
                added.append(Holding(number, lane.index, lane.owner, lane.held, lane.adapter))

    def _look_at_memory(self, added: list[Holding], removed: list[int]) -> None:
        there = {entry.entry_id: entry for entry in self._index if not entry.is_transient}
        gone = self._in_memory.keys() - there.keys()
        removed += [self._in_memory.pop(entry_id) for entry_id in gone]
        for entry_id, entry in there.items():
            if entry_id not in self._in_memory:
                self._in_memory[entry_id] = number = self._next_number()
                added.append(Holding(number, None, entry.owner, entry.tokens, entry.adapter))

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number
