"""Copies in host memory of what lies in free lanes, made while there is time, so that the lane costs nothing to whoever
gets it. Pure; lives in the worker.

A copy is an ordinary entry. While a lane holds the same it is the first to go; when the lane has gone on it is still a
prefix of that, and when the lane is lost it is all there is.
"""

from collections.abc import Callable

from superfluid.scheduling.losses import WORTH_KEEPING_TOKENS
from superfluid.scheduling.placement import SeedChooser
from superfluid.scheduling.prefix import HostEntry, PrefixIndex
from superfluid.scheduling.pressure import Pressure
from superfluid.scheduling.rates import Rates
from superfluid.scheduling.sequence import Lane
from superfluid.scheduling.statistics import SchedulerCounters
from superfluid.scheduling.token_tree import common_prefix


class Copies:
    """Reads lanes; adds entries to the index. ``tick`` is the number of the last plan. Called between two plans."""

    def __init__(
        self,
        lanes: list[Lane],
        index: PrefixIndex,
        chooser: SeedChooser,
        rates: Rates,
        pressure: Pressure,
        counters: SchedulerCounters,
        changed: Callable[[], None],
    ) -> None:
        """``changed`` is called when host memory has."""
        self._lanes = lanes
        self._index = index
        self._chooser = chooser
        self._rates = rates
        self._pressure = pressure
        self._counters = counters
        self._changed = changed
        self.tick = 0

    def can_copy(self, index: int) -> bool:
        """Whether a copy of what lies in the lane could be kept at all."""
        lane = self._lanes[index]
        return lane.length >= WORTH_KEEPING_TOKENS and self._chooser.losses.can_last(lane.length)

    def is_worth_copying(self, index: int, *, is_busy: bool = False) -> bool:
        """Whether a free lane holds what would have to be saved before somebody else gets it, and there is room for
        that without giving anything up. More is worth it while nothing runs than while others wait (``is_busy``)."""
        lane = self._lanes[index]
        assert lane.sequence is None
        losses = self._chooser.losses
        loss = losses.of(lane, 0)
        has_room = self._pressure.has_room(losses.added_bytes(lane, loss))
        return has_room and losses.is_worth_saving(lane, loss, is_idle=not is_busy)

    def is_resident(self, entry: HostEntry) -> bool:
        """Whether a lane holds all that ``entry`` does and could serve whoever would begin with it."""
        return any(self._holds(lane, entry) for lane in self._lanes)

    def add(self, index: int, size_bytes: int) -> tuple[int, list[int]]:
        """The lane was exported: the id of the entry that the state is to be kept under, and those of entries that are
        needless then and must be dropped."""
        lane = self._lanes[index]
        dropped = [] if self._chooser.can_truncate else self._index.drop_copies(lane.held, lane.adapter)
        entry = self._index.add(lane.held, self.tick, is_transient=False, owner=lane.owner, adapter=lane.adapter)
        entry.is_copy = True
        self._index.record_size(entry.entry_id, size_bytes)
        self._rates.observe_entry(lane.length, size_bytes)
        self._counters.host_saves_total += 1
        self._changed()
        return entry.entry_id, dropped

    def _holds(self, lane: Lane, entry: HostEntry) -> bool:
        is_long_enough = lane.length >= entry.length if self._chooser.can_truncate else lane.length == entry.length
        if not is_long_enough or lane.adapter != entry.adapter or lane.tokens[entry.length - 1] != entry.tokens[-1]:
            return False
        return common_prefix(lane.held, entry.tokens) == entry.length
