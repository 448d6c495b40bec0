"""When guessing ahead is given up: for a request that guesses badly, and where nothing gets faster. Pure; worker."""

from dataclasses import dataclass, field
from typing import Final

from superfluid.domain.speculation import MAX_DRAFT_TOKENS, SpeculationRules

FAILURES_TO_END: Final = 2
KEEP_OF_OLD: Final = 0.75
"""What earlier drafts weigh, from one judgement to the next: a single bad one among good ones is no reason to stop."""
FIRST_PATIENCE_STEPS: Final = 1.0
PATIENCE_STEPS: Final = 0.5
"""A probe that has lost this many plain steps is over: text that copies nothing shows it with its first drafts."""


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
    """What is known of one job's drafts: how deep the next may be, and whether there may be one."""

    depth: int
    floor: YieldFloor

    def observe(self, proposed: int, accepted: int, *, is_adaptive: bool) -> None:
        """Of one draft."""
        self.floor.observe(accepted)
        if is_adaptive:
            self.depth = min(MAX_DRAFT_TOKENS, 2 * self.depth) if accepted >= proposed else max(1, accepted)


@dataclass(slots=True)
class ThroughputGate:
    """One count of lanes': what steps with drafts took, and what plain steps would have taken for their tokens."""

    rules: SpeculationRules
    _drafted: int = field(default=0, init=False)
    _seconds: float = field(default=0.0, init=False)
    _plain_seconds: float = field(default=0.0, init=False)
    _has_passed: bool = field(default=False, init=False)
    _has_closed: bool = field(default=False, init=False)
    _resting_steps: int = field(default=0, init=False)
    _next_rest_steps: int = field(init=False)

    def __post_init__(self) -> None:
        self._next_rest_steps = self.rules.reprobe_steps

    @property
    def is_open(self) -> bool:
        return self._resting_steps == 0

    def observe_plain(self) -> None:
        """A step without drafts."""
        self._resting_steps = max(0, self._resting_steps - 1)

    def observe(self, drafted: int, seconds: float, plain_seconds: float, step_seconds: float) -> None:
        """A step with ``drafted`` tokens took ``seconds``; plain steps, at ``step_seconds`` each, ``plain_seconds``."""
        self._drafted += drafted
        self._seconds += seconds
        self._plain_seconds += plain_seconds
        patience = PATIENCE_STEPS if self._has_closed else FIRST_PATIENCE_STEPS
        if not self._has_passed and self._seconds - self._plain_seconds > patience * step_seconds:
            self._close()
        elif self._drafted >= self.rules.gate_probe_tokens:
            self._judge()

    def _judge(self) -> None:
        if self._plain_seconds < self.rules.min_speedup * self._seconds:
            self._close()
            return
        self._drafted = 0
        self._seconds *= KEEP_OF_OLD
        self._plain_seconds *= KEEP_OF_OLD
        self._has_passed = True
        self._next_rest_steps = self.rules.reprobe_steps

    def _close(self) -> None:
        self._resting_steps = self._next_rest_steps
        self._next_rest_steps = min(2 * self._next_rest_steps, self.rules.reprobe_max_steps)
        self._drafted, self._seconds, self._plain_seconds = 0, 0.0, 0.0
        self._has_passed, self._has_closed = False, True
