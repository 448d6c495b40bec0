"""When kept prefixes must give way, and how many: watermarks, and what the operating system says. Pure; in the worker.

The memory that counts is what lanes and the host cache may hold together. Lanes with a job never give way.
"""

import enum
from typing import Final

from superfluid.domain.memory import MemoryRules
from superfluid.domain.statistics import blocks
from superfluid.scheduling.plan import EvictionLook
from superfluid.scheduling.prefix import PrefixIndex
from superfluid.scheduling.rates import Rates
from superfluid.scheduling.sequence import Lane
from superfluid.scheduling.statistics import SchedulerCounters

CALM: Final = 1 << 20
"""More steps than anybody asks for."""


class PressureLevel(enum.IntEnum):
    """What the operating system says of its memory."""

    NONE = 0
    WARNING = 1
    CRITICAL = 2


class Pressure:
    """Takes entries out of the index. ``host_bytes`` is what that may hold."""

    def __init__(
        self,
        lanes: list[Lane],
        index: PrefixIndex,
        rates: Rates,
        rules: MemoryRules,
        counters: SchedulerCounters,
        *,
        host_bytes: int,
        window_tokens: int,
    ) -> None:
        self._lanes = lanes
        self._index = index
        self._rates = rates
        self._rules = rules
        self._counters = counters
        self._host_bytes = host_bytes
        self._window_tokens = window_tokens
        self._signal = PressureLevel.NONE
        self._is_critical = False
        self.look: EvictionLook | None = None
        """Of the last ``relieve``, if it came to a decision."""
        self.is_system_short = False
        """Whether that was on the operating system's word."""

    @property
    def total_bytes(self) -> int:
        return self._host_bytes + self._rates.entry_bytes(len(self._lanes) * self._window_tokens)

    @property
    def used_bytes(self) -> int:
        return self._index.size_bytes + self._running_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether host memory can take so much, within its bound and under the low mark."""
        is_within = self._index.size_bytes + size_bytes <= self._host_bytes
        return is_within and (self.used_bytes + size_bytes) * 100 <= self.total_bytes * self._rules.pressure_low_percent

    def signal(self, level: PressureLevel) -> None:
        """The operating system's word, to be acted on in the next plan."""
        self._counters.os_pressure_events_total += level > PressureLevel.NONE
        self._signal = level
        self._is_critical = level is PressureLevel.CRITICAL

    def takes_background_lanes(self) -> bool:
        """Whether running background jobs must wait again. True once for each signal."""
        is_critical, self._is_critical = self._is_critical, False
        return is_critical

    def calm_steps(self, step_tokens: int) -> int:
        """In how many plans from now on there is nothing to relieve, if each step adds so many tokens to running lanes
        and nothing else happens: rather too few than too many."""
        if self._signal is not PressureLevel.NONE or self._is_critical:
            return 0
        if not self._index.size_bytes:
            return CALM
        room_bytes = self.total_bytes * self._rules.pressure_high_percent / 100 - self._index.size_bytes
        room = self._rates.tokens_in(room_bytes) - self._running_tokens
        # A plan less, since sizes are rounded.
        return max(0, int(min(CALM, room / step_tokens)) - 1)

    def relieve(self) -> list[int]:
        """Removes what must go now; returns the ids."""
        self.look = None
        level, self._signal = self._signal, PressureLevel.NONE
        self.is_system_short = level is not PressureLevel.NONE
        if level is PressureLevel.NONE and not self._is_over(self._rules.pressure_high_percent):
            return []
        self.look = EvictionLook(
            sum([blocks(lane.length) for lane in self._lanes]),
            len(self._lanes) * blocks(self._window_tokens),
            self._index.evictable_bytes(),
        )
        before = self._index.size_bytes
        dropped: list[int] = []
        if level is not PressureLevel.NONE:
            dropped += self._index.evict(0, spares_protected=True)
        if self._is_over(self._rules.pressure_low_percent):
            target = self.total_bytes * self._rules.pressure_low_percent // 100 - self._running_bytes
            dropped += self._index.evict(max(0, target), spares_protected=False)
        freed = before - self._index.size_bytes
        self._counters.pressure_evictions_total += freed > 0
        self._counters.pressure_bytes_evicted_total += freed
        return dropped

    @property
    def _running_tokens(self) -> int:
        return sum([lane.length for lane in self._lanes if lane.sequence is not None])

    @property
    def _running_bytes(self) -> int:
        return self._rates.entry_bytes(self._running_tokens)

    def _is_over(self, percent: int) -> bool:
        """At the mark or over it, and there is something to give."""
        return self._index.size_bytes > 0 and self.used_bytes * 100 >= self.total_bytes * percent
