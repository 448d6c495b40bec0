"""When guessing ahead is given up: for a request that guesses badly, and where nothing gets faster. Pure; worker."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from superfluid.domain.speculation import MAX_DRAFT_TOKENS, SpeculationRules
from superfluid.scheduling.copying import Copying
from superfluid.scheduling.step_costs import ENOUGH_PLAIN_SAMPLES, StepCosts

FAILURES_TO_END: Final = 2
FIRST_PATIENCE_STEPS: Final = 1.0
PATIENCE_STEPS: Final = 0.5
"""A probe that has lost this many plain steps is over: text that copies nothing shows it with its first drafts."""
CREDIT_STEPS: Final = 6.0
"""What was won before counts for no more than this: a copy survives a change in it, and prose behind it ends drafts."""
JUDGED_STEPS: Final = 24


@dataclass(slots=True)
class YieldFloor:
    """One request's: how many tokens its drafts got accepted, span by span."""

    rules: SpeculationRules
    _rounds: int = field(default=0, init=False)
    _accepted: int = field(default=0, init=False)
    _failures: int = field(default=0, init=False)

    @property
    def is_open(self) -> bool:
        return self._failures < FAILURES_TO_END

    def observe(self, accepted: int) -> None:
        """Of one draft."""
        self._rounds += 1
        self._accepted += accepted
        if self._rounds < self.rules.yield_rounds:
            return
        has_passed = self._accepted >= self.rules.min_yield * self._rounds
        self._failures = 0 if has_passed else self._failures + 1
        self._rounds = self._accepted = 0


@dataclass(slots=True)
class Guesser:
    """One job's: how deep its next draft may be, whether there may be one, and what its stream repeats."""

    depth: int
    floor: YieldFloor
    copying: Copying = field(default_factory=Copying)

    def observe(self, proposed: int, accepted: int, *, is_adaptive: bool, can_fall: bool) -> None:
        """Of one draft. Its depth falls only where nothing else (``Copying``) says how deep it is to be."""
        self.floor.observe(accepted)
        if is_adaptive and accepted >= proposed:
            self.depth = min(MAX_DRAFT_TOKENS, 2 * self.depth)
        elif is_adaptive and can_fall:
            self.depth = max(1, accepted)


class _Step(NamedTuple):
    tokens: int
    drawn: float


@dataclass(slots=True)
class ThroughputGate:
    """One count of lanes': what its steps with drafts have won and cost, in plain steps.

    It keeps an account. A step with drafts pays in what it drew, in tokens a lane, and takes what it costs by
    ``costs``, which are those of undisturbed steps: so one disturbed step decides nothing. Overdrawn, the gate closes;
    also when the judged steps together are not worth ``min_speedup``. Before that the plain samples are taken anew if
    they are old, for the whole machine may have become slower. Times in seconds.
    """

    rules: SpeculationRules
    lanes: int = 1
    costs: StepCosts = field(init=False)
    _judged: deque[_Step] = field(default_factory=lambda: deque(maxlen=JUDGED_STEPS), init=False)
    _unbooked: list[_Step] = field(default_factory=list, init=False)
    _balance: float = field(default=FIRST_PATIENCE_STEPS, init=False)
    _unjudged_tokens: int = field(default=0, init=False)
    _resting_steps: int = field(default=0, init=False)
    _next_rest_steps: int = field(init=False)
    _checking_steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._next_rest_steps = self.rules.reprobe_steps
        self.costs = StepCosts(self.lanes)

    @property
    def is_open(self) -> bool:
        """Whether the next step may have drafts."""
        return self._resting_steps == 0 and not self.is_measuring

    @property
    def is_measuring(self) -> bool:
        """Whether the next step must be a plain one, to know what that takes."""
        return self._checking_steps > 0 or not self.costs.has_plain or self.costs.is_refresh_due

    def observe_plain(self, seconds: float) -> None:
        """A step without drafts."""
        self.costs.observe_plain(seconds)
        self._resting_steps = max(0, self._resting_steps - 1)
        if self._checking_steps:
            self._checking_steps -= 1
            if not self._checking_steps:
                self.costs.compare_anew(len(self._judged))

    def observe(self, tokens: int, drawn: float, seconds: float) -> None:
        """A step with ``tokens`` guessed tokens drew ``drawn`` a lane. If the gate was resting, that is over."""
        self._resting_steps = 0
        self.costs.observe(tokens, seconds)
        self._unbooked.append(_Step(tokens, drawn))
        self._unjudged_tokens += tokens
        if not self.costs.has_drafted:
            return
        for step in self._unbooked:
            self._judged.append(step)
            self._balance = min(CREDIT_STEPS, self._balance + step.drawn - self.costs.cost(step.tokens))
        self._unbooked.clear()
        if self._balance < 0:
            self._give_up()
        elif self._unjudged_tokens >= self.rules.gate_probe_tokens:
            self._judge()

    def _judge(self) -> None:
        drawn = sum([step.drawn for step in self._judged])
        if drawn < self.rules.min_speedup * sum([self.costs.cost(step.tokens) for step in self._judged]):
            self._give_up()
            return
        self._unjudged_tokens = 0
        self._next_rest_steps = self.rules.reprobe_steps

    def _give_up(self) -> None:
        self._balance, self._unjudged_tokens = PATIENCE_STEPS, 0
        if self.costs.is_stale:
            self._checking_steps = ENOUGH_PLAIN_SAMPLES
            self.costs.restart_plain()
            return
        self._judged.clear()
        self._resting_steps = self._next_rest_steps
        self._next_rest_steps = min(2 * self._next_rest_steps, self.rules.reprobe_max_steps)
