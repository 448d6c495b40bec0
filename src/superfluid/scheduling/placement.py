"""Where a job begins: which lane, on top of which prefix, from where. Chosen by estimated seconds. Pure; worker."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from superfluid.scheduling.losses import MIN_MATCH_TOKENS, REUSE_CHANCE, WORTH_KEEPING_TOKENS, Losses
from superfluid.scheduling.prefix import HostEntry, PrefixIndex
from superfluid.scheduling.rates import Rates
from superfluid.scheduling.sequence import SEAM_TOKENS, Lane, Sequence
from superfluid.scheduling.token_tree import common_prefix

MIN_SHARED_TOKENS: Final = 64
"""A job waits for another one's prefill only for this many tokens more than it can have at once."""
EXPECTED_REPLY_TOKENS: Final = 64
MIN_SHARED_CHECKPOINT_TOKENS: Final = 1024
"""As ``MIN_SHARED_TOKENS`` for a model whose state cannot be cut: it must be saved at that very length."""


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """``host_cache_bytes`` 0 keeps nothing in host memory; ``can_truncate`` as in ``ModelFacts``."""

    host_cache_bytes: int
    can_truncate: bool


@dataclass(frozen=True, slots=True)
class Survey:
    """What a job could begin with now: its matches in lanes and in host memory; and the sequence that is computing
    ``coming_tokens`` of it, if that is more. A leader is never of a worse class, whose prompt is read later than the
    job's own would be."""

    lanes: tuple[tuple[Lane, int], ...]
    entries: tuple[tuple[HostEntry, int], ...]
    leader: Sequence | None
    coming_tokens: int

    @property
    def best_tokens(self) -> int:
        return max((keep for _, keep in (*self.lanes, *self.entries)), default=0)


@dataclass(frozen=True, slots=True)
class Seed:
    """A way to begin: ``keep`` tokens in ``lane``, which has them, or gets them from ``entry``, or from ``source`` by
    saving that."""

    lane: Lane
    keep: int
    seconds: float
    entry: HostEntry | None = None
    source: Lane | None = None


class SeedChooser:
    """Compares the ways to begin a job. Reads lanes and index; changes neither."""

    def __init__(self, lanes: list[Lane], index: PrefixIndex, rates: Rates, rules: PlacementRules) -> None:
        self._lanes = lanes
        self._index = index
        self._rates = rates
        self._rules = rules
        self.losses = Losses(
            lanes, index, rates, host_cache_bytes=rules.host_cache_bytes, can_truncate=rules.can_truncate
        )

    @property
    def can_truncate(self) -> bool:
        return self._rules.can_truncate

    def survey(self, sequence: Sequence, tick: int) -> Survey:
        """Lanes that were given away in this ``tick``'s plan cannot be read before the next."""
        lanes: list[tuple[Lane, int]] = []
        leader: Sequence | None = None
        coming = 0
        adapter = sequence.job.adapter
        for lane in self._lanes:
            if lane.placed_tick != tick and lane.adapter == adapter:
                keep = self.usable_tokens(sequence, common_prefix(lane.held, sequence.stream), lane.length)
                if keep:
                    lanes.append((lane, keep))
            other = lane.sequence
            can_lead = other is not None and other.job.qos <= sequence.job.qos and other.job.adapter == adapter
            if other is not None and can_lead:
                keep = self._coming_tokens(sequence, lane, other)
                if keep > coming and other.job_id != sequence.refused_leader:
                    leader, coming = other, keep
        matches = self._index.matches(sequence.stream, adapter)
        entries = tuple(
            (entry, keep) for entry, match in matches if (keep := self.usable_tokens(sequence, match, entry.length))
        )
        return Survey(tuple(lanes), entries, leader, coming)

    def is_worth_waiting(self, survey: Survey) -> bool:
        """Whether the leader's prefill will save more than handing it over takes."""
        gain = survey.coming_tokens - survey.best_tokens
        hand_over = self._save_seconds(survey.coming_tokens) + self._restore_seconds(survey.coming_tokens)
        return gain >= MIN_SHARED_TOKENS and gain * self._rates.prefill_seconds_per_token > hand_over

    def choose(self, sequence: Sequence, survey: Survey) -> Seed:
        """The cheapest way to begin now. There must be a free lane."""
        return min(self._seeds(sequence, survey), key=lambda seed: (seed.seconds, seed.lane.index))

    def is_worth_saving(self, lane: Lane, keep: int) -> bool:
        """Whether what ``lane`` loses when it is cut to ``keep`` tokens must go to host memory first."""
        return self.losses.is_worth_saving(lane, self.losses.of(lane, keep))

    def _seeds(self, sequence: Sequence, survey: Survey) -> Iterator[Seed]:
        expected = min(sequence.job.max_tokens, EXPECTED_REPLY_TOKENS)
        free = [lane for lane in self._lanes if lane.sequence is None]
        clearing = {lane.index: self._taking_seconds(lane, 0, free, expected) for lane in free}

        def cheapest(targets: Iterable[Lane]) -> Lane:
            return min(targets, key=lambda lane: (clearing[lane.index], lane.index))

        def begin(
            lane: Lane, keep: int, extra: float, entry: HostEntry | None = None, source: Lane | None = None
        ) -> Seed:
            prefill = (sequence.length - keep) * self._rates.prefill_seconds_per_token
            return Seed(lane, keep, prefill + extra, entry, source)

        target = cheapest(free)
        yield begin(target, 0, clearing[target.index])
        for entry, keep in survey.entries:
            yield begin(target, keep, clearing[target.index] + self._restore_seconds(entry.length), entry)
        for lane, keep in survey.lanes:
            if lane.sequence is None:
                yield begin(lane, keep, self._taking_seconds(lane, keep, free, expected))
            elsewhere = [other for other in free if other is not lane]
            if elsewhere:
                target = cheapest(elsewhere)
                move = self._save_seconds(lane.length) + self._restore_seconds(lane.length)
                yield begin(target, keep, clearing[target.index] + move, source=lane)

    def _coming_tokens(self, sequence: Sequence, lane: Lane, other: Sequence) -> int:
        """What the job will be able to begin with when ``other`` on ``lane`` has got that far."""
        match = common_prefix(other.stream, sequence.stream)
        if self._rules.can_truncate:
            return self.usable_tokens(sequence, match, match)
        # Cut once more, it must be where the lane stops and is saved on its way.
        keep = sequence.usable_tokens(other.images.kept(min(match, other.prefill_end - SEAM_TOKENS)))
        is_ahead = keep in other.checkpoints or lane.length + SEAM_TOKENS <= keep
        return keep if keep >= MIN_SHARED_CHECKPOINT_TOKENS and is_ahead and self.losses.can_last(keep) else 0

    def usable_tokens(self, sequence: Sequence, match: int, held: int) -> int:
        """How much of a state of ``held`` tokens, of which ``match`` are the job's, it may begin with; 0 if it is not
        worth the trouble."""
        if match < MIN_MATCH_TOKENS:
            return 0
        keep = sequence.usable_tokens(match)
        is_possible = keep >= MIN_MATCH_TOKENS and (self._rules.can_truncate or keep == held)
        return keep if is_possible else 0

    def _taking_seconds(self, lane: Lane, keep: int, free: list[Lane], expected_tokens: int) -> float:
        """What it costs to use ``lane``: losing or saving what it holds beyond ``keep``, or having that back from where
        else it is; and gaps between lane ids."""
        lost = self.losses.of(lane, keep)
        if self.losses.is_worth_saving(lane, lost):
            loss = self._save_seconds(lane.length) + self._restore_seconds(lane.length)
        elif lost.tokens >= WORTH_KEEPING_TOKENS:
            loss = self.losses.value_seconds(lane, lost)
        else:
            is_covered = lane.length - keep - lost.tokens >= MIN_MATCH_TOKENS
            loss = REUSE_CHANCE * self._restore_seconds(lane.length) if is_covered else 0.0
        busy = {other.index for other in self._lanes if other.sequence is not None}
        fewest = min(count_runs(busy | {other.index}) for other in free)
        gaps = count_runs(busy | {lane.index}) - fewest
        return loss + gaps * expected_tokens * self._rates.gap_seconds(len(busy) + 1)

    def _save_seconds(self, tokens: int) -> float:
        return self._rates.save_seconds(tokens)

    def _restore_seconds(self, tokens: int) -> float:
        return tokens * self._rates.restore_seconds_per_token


def count_runs(lanes: Iterable[int]) -> int:
    """Runs of consecutive lane ids: the engine computes one graph for each."""
    ordered = sorted(lanes)
    return sum(1 for index, lane in enumerate(ordered) if index == 0 or ordered[index - 1] != lane - 1)
