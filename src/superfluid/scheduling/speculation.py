"""Which lanes guess ahead in a decode step, and how far. Pure; lives in the worker.

A guess is the engine's to check: each token is drawn from the model's own logits as if nothing had been guessed, and
a draft only says for which further positions there are logits in the same step. So drafts change how fast a reply
comes and not what it says.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from superfluid.domain.job import Job
from superfluid.domain.speculation import SpeculationRules
from superfluid.scheduling.copying import WORTHWHILE, Copying, Guess
from superfluid.scheduling.gates import Guesser, ThroughputGate, YieldFloor
from superfluid.scheduling.lookup import MAX_MATCH_TOKENS
from superfluid.scheduling.plan import DecodeLane, StepOutcome, StepPlan
from superfluid.scheduling.sequence import Lane, Sequence
from superfluid.scheduling.statistics import SchedulerCounters
from superfluid.scheduling.token_tree import Tokens

STEP_TOKENS: Final = 64
"""A decode step with drafts has no more tokens than this, or than lanes: llama.cpp would cut it up again."""
WORTH_A_REST: Final = 1.15
"""What a copy must promise to be guessed from while the gate rests."""


@dataclass(slots=True)
class Speculation:
    """Reads the lanes. ``can_truncate`` as in ``ModelFacts``: where a state cannot be cut, nothing is ever guessed.

    ``budget_tokens`` bounds a decode step with its drafts; 0 does not.
    """

    rules: SpeculationRules
    lanes: list[Lane]
    counters: SchedulerCounters
    can_truncate: bool
    window_tokens: int
    budget_tokens: int = 0
    _gates: dict[int, ThroughputGate] = field(default_factory=dict, init=False)

    @property
    def is_on(self) -> bool:
        return self.rules.is_on and self.can_truncate

    def with_drafts(self, plain: tuple[DecodeLane, ...]) -> tuple[DecodeLane, ...]:
        """The lanes of a decode step with what each may guess."""
        if not plain or not self.is_on:
            return plain
        gate = self._gate(len(plain))
        room = min(STEP_TOKENS, self.budget_tokens or STEP_TOKENS) - len(plain)
        decodes: list[DecodeLane] = []
        for decode in plain:
            drafting = self._with_draft(decode, room, gate)
            decodes.append(drafting)
            room -= len(drafting.draft) + drafting.draft_limit
        return tuple(decodes)

    def completed(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """Learns from a decode step, before its tokens are taken in."""
        if not plan.decodes or not self.is_on:
            return
        if not outcome.drafted:
            if self.rules.has_gate:
                self._gate(len(plan.decodes)).observe_plain(outcome.decode_seconds)
            return
        lanes = {decode.job_id: self.lanes[decode.lane] for decode in plan.decodes}
        for drafted in outcome.drafted:
            self._guesser(_sequence(lanes[drafted.job_id])).observe(
                drafted.proposed,
                drafted.accepted,
                is_adaptive=self.rules.is_adaptive,
                can_fall=self.rules.strategy == "draft-model",
            )
        proposed = sum([drafted.proposed for drafted in outcome.drafted])
        self.counters.spec_proposed_total += proposed
        self.counters.spec_accepted_total += sum([drafted.accepted for drafted in outcome.drafted])
        if self.rules.has_gate:
            drawn = len(outcome.drawn) / (len(plan.decodes) - len(outcome.replayed))
            seconds = outcome.draft_seconds + outcome.decode_seconds
            self._gate(len(plan.decodes)).observe(proposed, drawn, seconds)

    def _gate(self, lanes: int) -> ThroughputGate:
        gate = self._gates.get(lanes)
        if gate is None:
            gate = self._gates[lanes] = ThroughputGate(self.rules, lanes)
        return gate

    def _with_draft(self, decode: DecodeLane, room: int, gate: ThroughputGate) -> DecodeLane:
        lane = self.lanes[decode.lane]
        sequence = _sequence(lane)
        if room < 1 or lane.length != sequence.length - 1 or not may_guess(sequence.job):
            return decode
        guesser = self._guesser(sequence)
        # With all guesses right one more token is drawn behind them.
        left = min(sequence.job.max_tokens - sequence.drawn_tokens, self.window_tokens - sequence.length) - 1
        depth = min(guesser.depth, left, room)
        if depth < 1 or not guesser.floor.is_open:
            return decode
        if self.rules.strategy != "draft-model":
            draft = self._looked_up(sequence.stream, guesser.copying, depth, gate)
            return replace(decode, draft=draft) if draft else decode
        return replace(decode, draft_limit=depth) if self._may_draft(gate) else decode

    def _may_draft(self, gate: ThroughputGate) -> bool:
        return not self.rules.has_gate or gate.is_open

    def _guesser(self, sequence: Sequence) -> Guesser:
        if sequence.guesser is None:
            sequence.guesser = Guesser(self.rules.draft_tokens, YieldFloor(self.rules))
        return sequence.guesser

    def _looked_up(self, stream: Tokens, copying: Copying, depth: int, gate: ThroughputGate) -> tuple[int, ...]:
        """Looked up is also what may not be used now: so the stream is known by the time that it may."""
        guess = copying.look_up(stream, depth)
        may_draft = self._may_draft(gate)
        if guess is None or not (may_draft or self._ends_rest(guess, gate)):
            return ()
        if not self.rules.is_adaptive:
            return guess.tokens
        wanted = WORTHWHILE if may_draft else WORTH_A_REST
        return guess.tokens[: copying.worthwhile_depth(guess, gate.costs, wanted)]

    def _ends_rest(self, guess: Guess, gate: ThroughputGate) -> bool:
        """A rest is for text that copies nothing: it ends when a copy is seen."""
        return self.rules.is_adaptive and not gate.is_measuring and guess.match.length >= MAX_MATCH_TOKENS


def may_guess(job: Job) -> bool:
    """Not where tokens come with scores or are pushed about by the request; nor where the result must not depend on
    what was measured, as the depth of a draft does."""
    return job.logprobs is None and not job.sampling.logit_bias and not job.is_batch_invariant


def _sequence(lane: Lane) -> Sequence:
    assert lane.sequence is not None
    return lane.sequence
