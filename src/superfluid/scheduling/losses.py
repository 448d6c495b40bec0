"""What is lost with a lane that is given away, and whether that is worth saving before. Pure; in the worker.

What it would cost to have it back is weighed against what the save costs those who wait for it: measured seconds both.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Final

from superfluid.scheduling.prefix import PrefixIndex
from superfluid.scheduling.rates import Rates
from superfluid.scheduling.sequence import Lane
from superfluid.scheduling.token_tree import Tokens, common_prefix

MIN_MATCH_TOKENS: Final = 16
"""A shorter common prefix is not worth the trouble: every prompt of a template begins alike."""
WORTH_KEEPING_TOKENS: Final = 32
"""Fewer tokens that nothing else holds are given up without being saved. A short question and its answer are more."""
REUSE_CHANCE: Final = 0.5
"""How likely it is taken to be that tokens in a free lane are wanted again."""
SHORT_BRANCH_REUSE_CHANCE: Final = 0.125
"""... behind what nearly all of the stream is, and others begin with: most such requests are made once."""
SHORT_BRANCH_SHARE: Final = 4
"""A branch is short if it is less than one part in so many of its stream. No other entry gives way to it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """``tokens`` of a stream of ``length`` that nothing else would still hold. ``is_branch``: what comes before them is
    not merely an earlier state of the same stream, but the beginning of others as well."""

    tokens: int
    length: int
    is_branch: bool = False

    @property
    def is_short_branch(self) -> bool:
        return self.is_branch and self.tokens * SHORT_BRANCH_SHARE < self.length


class Losses:
    """Reads lanes and index; changes neither."""

    def __init__(
        self, lanes: list[Lane], index: PrefixIndex, rates: Rates, *, host_cache_bytes: int, can_truncate: bool
    ) -> None:
        self._lanes = lanes
        self._index = index
        self._rates = rates
        self._host_cache_bytes = host_cache_bytes
        self._can_truncate = can_truncate
        self.pinned_lanes: Callable[[], Container[int]] = tuple
        """Lanes that must be saved before they are given away, however little that is worth by itself."""
        self.is_wanted_on_disk: Callable[[int], bool] = lambda _: False
        """Whether what lies in a lane would be written from what is saved of it, where host memory cannot keep that."""
        self.covered_on_disk: Callable[[Tokens], int] = lambda _: 0
        """How much of a stream could be read from a KV file."""
        self.has_room: Callable[[int], bool] = lambda _: True
        """Whether host memory takes so many bytes without giving something up."""

    def of(self, lane: Lane, keep: int) -> Loss:
        """What is lost when ``lane`` is cut to ``keep`` tokens for somebody who goes on differently from there."""
        if lane.length - keep < MIN_MATCH_TOKENS:
            return Loss(0, lane.length)
        held = lane.held
        kept, is_branch = keep, keep > 0
        covered, is_shared = self._index.coverage(held, lane.adapter)
        if covered > kept:
            kept, is_branch = covered, is_shared
        for other in self._lanes if self._can_truncate else ():
            if other is lane or other.length < kept or other.adapter != lane.adapter:
                continue
            match = common_prefix(other.held, held)
            if match > kept:
                kept, is_branch = match, False
            if match == kept:
                is_branch |= other.length > match
        return Loss(max(0, lane.length - kept), lane.length, is_branch)

    def is_worth_saving(self, lane: Lane, loss: Loss, *, is_idle: bool = False) -> bool:
        """Whether that must go to host memory first. ``is_idle``: nobody waits for the lane, nor for the engine."""
        is_pinned = loss.tokens > 0 and lane.index in self.pinned_lanes()
        if not (is_pinned or self._is_wanted(lane, loss, is_idle=is_idle)):
            return False
        return self.can_last(lane.length) or self.is_wanted_on_disk(lane.index)

    def is_saved(self) -> None:
        """A save is planned, and has the memory that was at hand."""
        self._rates.ready_bytes = 0

    def can_last(self, tokens: int) -> bool:
        """Whether an entry of ``tokens`` may stay in host memory."""
        return 0 < self._host_cache_bytes >= self._rates.entry_bytes(tokens)

    def added_bytes(self, lane: Lane, loss: Loss) -> int:
        """By how much host memory grows if ``lane`` is saved: an earlier state of the same stream that can be cut goes
        when the new one is there."""
        is_in_place = self._can_truncate and not loss.is_branch
        return self._rates.entry_bytes(loss.tokens if is_in_place else lane.length)

    def value_seconds(self, lane: Lane, loss: Loss) -> float:
        """What having it again would cost, from the disk or by computing, by the chance that it is wanted."""
        prefill = self._rates.prefill_seconds_per_token
        seconds = loss.tokens * prefill
        on_disk = 0 if lane.adapter else self.covered_on_disk(lane.held)
        if on_disk > lane.length - loss.tokens:
            read = on_disk * (self._rates.read_seconds_per_token + self._rates.restore_seconds_per_token)
            seconds = min(seconds, (lane.length - on_disk) * prefill + read)
        return seconds * (SHORT_BRANCH_REUSE_CHANCE if loss.is_short_branch else REUSE_CHANCE)

    def _is_wanted(self, lane: Lane, loss: Loss, *, is_idle: bool) -> bool:
        if loss.tokens < WORTH_KEEPING_TOKENS:
            return False
        if is_idle:
            # Time costs little, and there is room; so it counts what the tokens would be worth to whoever has them.
            value = REUSE_CHANCE * loss.tokens * self._rates.prefill_seconds_per_token
            return value > self._rates.save_seconds(lane.length)
        if self.value_seconds(lane, loss) <= self._rates.save_seconds(lane.length):
            return False
        return not loss.is_short_branch or self.has_room(self._rates.entry_bytes(lane.length))
