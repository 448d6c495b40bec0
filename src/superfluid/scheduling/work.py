"""What the engine does in a tick: a decode step or a chunk of one prompt, and how much of it. Pure; in the worker."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from superfluid.domain.scheduling import SchedulingRules
from superfluid.scheduling.fillers import fillers
from superfluid.scheduling.plan import Chunk, DecodeLane
from superfluid.scheduling.rates import MAX_CHUNK_TOKENS, MIN_CHUNK_TOKENS, Rates
from superfluid.scheduling.sequence import Lane, Sequence
from superfluid.scheduling.statistics import SchedulerCounters

IDLE_TARGET_SECONDS: Final = 1.0
"""How long a chunk may take while nobody decodes and it can be ended early: what another prompt then waits for."""
INTERACTIVE_SHARE: Final = 0.25
"""Of the target, while a chat or a completion is being written: somebody is reading along."""
ALONE_CHUNK_TOKENS: Final = 512
"""The chunks of a job that runs alone: always the same, so that measured rates have no part in its result."""
LARGER_CHUNK_TOKENS: Final = 64
"""From so many on a token of a chunk costs less, as llama.cpp computes attention in another way: 2.5 against 2.9 ms."""
OVERSHOOT: Final = 1.1
"""The last chunk of a prompt may be this much longer than its budget where a short one is saved by it."""
MIN_PAUSE_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Work:
    """``decodes`` with ``fillers``, or ``chunk``, or a pause, or nothing. The budget is what bounded the chunk, or
    would have."""

    decodes: tuple[DecodeLane, ...] = ()
    chunk: Chunk | None = None
    chunk_budget_tokens: int = 0
    pause_seconds: float = 0.0
    fillers: tuple[DecodeLane, ...] = ()


@dataclass(slots=True)
class WorkChooser:
    """Reads the lanes; owns whose turn it is. ``background_divisor`` may be set at any time.

    ``can_cut_chunks``: a chunk in flight can be ended early. ``fills_gaps``: tokens of prompts may be read in decode
    steps, one by one. ``micro_batch_tokens``: what the engine computes at a time of a longer chunk; 0 if it does not
    tell.
    """

    lanes: list[Lane]
    rates: Rates
    rules: SchedulingRules
    counters: SchedulerCounters
    can_cut_chunks: bool
    background_divisor: int = 1
    fills_gaps: bool = False
    micro_batch_tokens: int = 0
    is_waited_for: bool = False
    """Others get on only when jobs that run end, so that nobody is slowed. May be set at any time."""
    _is_chunk_due: bool = field(default=True, init=False)
    _room_tokens: int = field(default=0, init=False)
    """What a chunk that was cut short has left of its turn; 0 is all of it."""
    _turn: int = field(default=0, init=False)
    """Decode turns, those left out included. A turn is a step for each adapter that is wanted in it."""
    _steps_left: list[list[DecodeLane]] = field(default_factory=list, init=False)
    """What is left of the present decode turn, one step an adapter."""

    def choose(self, now: float) -> Work:
        """While there is both to do they take turns; a prompt gets the turns that no decoding lane may use."""
        prefilling = [lane for lane in self.lanes if lane.is_prefilling]
        decoding = [lane for lane in self.lanes if lane.is_decoding]
        budget = self._budget(decoding)
        if prefilling and self._is_chunk_due:
            room = min(budget, self._room_tokens) if decoding and self._room_tokens else budget
            self._is_chunk_due, self._room_tokens = False, 0
            return Work(chunk=self._chunk(prefilling, room, now), chunk_budget_tokens=budget)
        step = self._next_step(decoding)
        if step:
            self._is_chunk_due = not self._steps_left
            riders = fillers(self.lanes, step, self.rules.decode_budget_tokens) if self.fills_gaps else ()
            return Work(step, chunk_budget_tokens=budget, fillers=riders)
        if prefilling:
            return Work(chunk=self._chunk(prefilling, budget, now), chunk_budget_tokens=budget)
        return Work(chunk_budget_tokens=budget, pause_seconds=self._pause(decoding) if decoding else 0.0)

    @property
    def is_steady(self) -> bool:
        """Whether the next turn of the same lanes is like this one: a step of all of them."""
        return self.background_divisor == 1 and not self._steps_left

    def repeat(self) -> None:
        """The step that was chosen last is taken once more, in a new turn."""
        self._turn += 1

    def completed_chunk(self, chunk: Chunk, seconds: float, *, is_cut: bool) -> None:
        """Prompts that were passed by an older one have no claim, those passed by a younger one have waited. What a
        chunk that was cut short has left of its turn is for whom it was cut."""
        served = _sequence(self.lanes[chunk.lane])
        served.is_cut_short = is_cut
        ticks = seconds / self.rules.tick_target_seconds
        for other in self.lanes:
            sequence = other.sequence
            if sequence is not None and other.is_prefilling:
                sequence.passed_ticks = sequence.passed_ticks + ticks if sequence.order < served.order else 0.0
        left = chunk.length * (1 - seconds / chunk.expected_seconds) if is_cut and chunk.expected_seconds else 0
        if left >= MIN_CHUNK_TOKENS:
            self._is_chunk_due, self._room_tokens = True, int(left)

    # ---- decode steps

    def _next_step(self, decoding: list[Lane]) -> tuple[DecodeLane, ...]:
        """The rows of the next decode step, all with the same adapter, since the engine applies one to a whole step. A
        turn has a step for each, the model alone first. Who has left since the turn began is left out."""
        if self._steps_left:
            there = {lane.decode for lane in decoding}
            left = [[row for row in rows if row in there] for rows in self._steps_left]
            step, *self._steps_left = [rows for rows in left if rows] or [[]]
            if step:
                return tuple(step)
        self._turn += 1
        groups: dict[int, list[DecodeLane]] = {}
        for lane in self._rows(decoding):
            assert lane.decode is not None
            groups.setdefault(lane.adapter, []).append(lane.decode)
        steps = [groups[adapter] for adapter in sorted(groups)]
        self._steps_left = steps[1:]
        return tuple(steps[0]) if steps else ()

    def _turn_seconds(self, decoding: list[Lane]) -> float:
        """What a decode turn of all lanes takes."""
        counts = Counter([lane.adapter for lane in decoding])
        return sum([self.rates.decode_seconds(count) for count in counts.values()])

    def _rows(self, decoding: list[Lane]) -> list[Lane]:
        """The lanes that decode in this turn, in the order of their ids."""
        if self.background_divisor > 1 and self._turn % self.background_divisor and not self.is_waited_for:
            decoding = [lane for lane in decoding if not lane.is_background]
        budget = self.rules.decode_budget_tokens
        if not 0 < budget < len(decoding):
            return decoding
        for sequence in map(_sequence, decoding):
            if sequence.decoded_turn < 0:
                sequence.decoded_turn = self._turn - 1
        chosen = sorted(decoding, key=self._decode_order)[:budget]
        for lane in chosen:
            sequence = _sequence(lane)
            self.counters.starvation_grants_total += self._is_starving(sequence)
            sequence.decoded_turn = self._turn
        return sorted(chosen, key=lambda lane: lane.index)

    def _decode_order(self, lane: Lane) -> tuple[bool, int, int]:
        sequence = _sequence(lane)
        return not self._is_starving(sequence), sequence.job.qos, sequence.order

    def _is_starving(self, sequence: Sequence) -> bool:
        return self._turn - sequence.decoded_turn > self.rules.starvation_ticks

    def _pause(self, decoding: list[Lane]) -> float:
        """As long as the turns that are left out would have taken, so that a divisor divides the rate and not only the
        count of turns. Several turns at once if they are short."""
        turn_seconds = max(self._turn_seconds(decoding), MIN_PAUSE_SECONDS / self.background_divisor)
        left_out = self.background_divisor - self._turn % self.background_divisor
        turns = min(left_out, ceil(MIN_PAUSE_SECONDS / turn_seconds))
        self._turn += turns - 1
        return turns * turn_seconds

    # ---- chunks

    def _budget(self, decoding: list[Lane]) -> int:
        """Tokens of the next chunk at most."""
        target = self.rules.tick_target_seconds
        if not decoding and self.can_cut_chunks:
            target = max(target, IDLE_TARGET_SECONDS)
        elif any(not lane.is_background for lane in decoding):
            target *= INTERACTIVE_SHARE
        if len({lane.adapter for lane in decoding}) > 1:
            target -= self._turn_seconds(decoding) - self.rates.decode_seconds(len(decoding))
        tokens = self.rates.chunk_tokens(len(decoding), target)
        limit = self.rules.prefill_budget_tokens
        return min(tokens, limit) if limit else tokens

    def _chunk(self, prefilling: list[Lane], budget: int, now: float) -> Chunk:
        plain = {lane.index: _plain_prefill_order(lane, now) for lane in prefilling}
        lane = min(prefilling, key=lambda lane: (not self._has_starved(_sequence(lane)), plain[lane.index]))
        sequence = _sequence(lane)
        self.counters.starvation_grants_total += plain[lane.index] > min(plain.values())
        if sequence.job.is_batch_invariant:
            return next_chunk(lane, lambda rest: min(rest, ALONE_CHUNK_TOKENS))
        most = min(self.rules.prefill_budget_tokens or MAX_CHUNK_TOKENS, int(budget * OVERSHOOT))
        return next_chunk(lane, lambda rest: part_of(rest, budget, most, self.micro_batch_tokens))

    def _has_starved(self, sequence: Sequence) -> bool:
        return sequence.passed_ticks >= self.rules.starvation_ticks


def next_chunk(lane: Lane, part: Callable[[int], int]) -> Chunk:
    """The next chunk: a whole run of an image, or as much of the text as ``part`` says of what is left of it; none
    leaves one token over."""
    sequence = _sequence(lane)
    image = sequence.images.at(lane.length)
    if image is not None:
        return Chunk(sequence.job_id, lane.index, lane.length, image.length, image.end == sequence.length, True)
    remaining = sequence.images.text_end(lane.length, sequence.chunk_stop(lane.length)) - lane.length
    length = part(remaining)
    if remaining - length == 1:
        length -= 1
    is_last = lane.length + length == sequence.length
    return Chunk(sequence.job_id, lane.index, lane.length, length, is_last)


def part_of(rest: int, budget: int, most: int, micro_batch: int = 0) -> int:
    """How much of ``rest`` tokens to read next: chunks of one size, as many as chunks of ``budget`` tokens would be; or
    all, if that is at most ``most`` tokens and ``budget`` of them would leave a short rest. Where equal chunks would be
    short all of them, ``budget`` tokens. Chunks that have room for a micro-batch consist of whole ones."""
    if micro_batch and micro_batch < rest and micro_batch <= budget:
        return _in_micro_batches(rest, budget, micro_batch)
    if rest <= min(most, budget + LARGER_CHUNK_TOKENS - 1):
        return rest
    size = ceil(rest / ceil(rest / budget))
    return size if size >= LARGER_CHUNK_TOKENS else budget


def _in_micro_batches(rest: int, budget: int, micro_batch: int) -> int:
    """All that fit, the last of a prompt filled or not. Where that would be a short one, it is left together with the
    one before: those two are halved."""
    whole = min(rest, budget) // micro_batch * micro_batch
    if not 0 < rest - whole < LARGER_CHUNK_TOKENS:
        return rest if rest <= budget else whole
    return whole - micro_batch or ceil(rest / 2)


def _plain_prefill_order(lane: Lane, now: float) -> tuple[int, int, int]:
    """The better class first, then the shorter rest, then the older job: before anybody is passed over."""
    sequence = _sequence(lane)
    return sequence.held_class(now), sequence.prefill_end - lane.length, sequence.order


def _sequence(lane: Lane) -> Sequence:
    assert lane.sequence is not None
    return lane.sequence
