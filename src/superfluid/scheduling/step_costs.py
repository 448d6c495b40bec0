"""What guessed tokens add to a decode step, in units of a plain step, from times of which some are wrong. Pure; worker.

On a machine that is shared a step now and then takes ten times as long for no reason of its own. So nothing here is a
sum of times: what a plain step takes and what a guessed token adds is what the lower third of the samples say, as
disturbances only ever make steps longer.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

PLAIN_SAMPLES: Final = 5
ENOUGH_PLAIN_SAMPLES: Final = 3
"""From here on one of them may be wrong."""
DRAFTED_SAMPLES: Final = 24
ENOUGH_DRAFTED_SAMPLES: Final = 3
ASSUMED_EXTRA: Final = 0.6
"""What a guessed token adds to a step over one lane, in such steps: with llama.cpp on two cores 0.4 to 0.8."""
REFRESH_STEPS: Final = 16
"""After so many steps with drafts in a row a plain one is due: in a copy a hundredth of the time."""
STALE_STEPS: Final = 12
"""Before anything is decided to the drafts' disadvantage, the plain samples must be younger than this many steps."""


class _Plain(NamedTuple):
    seconds: float
    at_step: int


class _Drafted(NamedTuple):
    tokens: int
    seconds: float
    plain_seconds: float
    """A plain step's, as far as it was known then."""

    @property
    def extra(self) -> float:
        """What each guessed token added, in plain steps."""
        return (self.seconds / self.plain_seconds - 1) / self.tokens if self.plain_seconds > 0 else 0.0


@dataclass(slots=True)
class StepCosts:
    """One count of lanes'. ``tokens`` are those guessed in a step, of all lanes together."""

    lanes: int = 1
    _plain: deque[_Plain] = field(default_factory=lambda: deque(maxlen=PLAIN_SAMPLES), init=False)
    _drafted: deque[_Drafted] = field(default_factory=lambda: deque(maxlen=DRAFTED_SAMPLES), init=False)
    _steps: int = field(default=0, init=False)
    """Steps with drafts, ever."""
    _plain_seconds: float = field(default=0.0, init=False)

    @property
    def plain_seconds(self) -> float:
        """Of a plain step."""
        return self._plain_seconds

    @property
    def has_plain(self) -> bool:
        """Whether there are enough plain samples to compare with."""
        return len(self._plain) >= ENOUGH_PLAIN_SAMPLES

    @property
    def is_refresh_due(self) -> bool:
        return bool(self._plain) and self._steps - self._plain[-1].at_step >= REFRESH_STEPS

    @property
    def is_stale(self) -> bool:
        """Whether the machine may have become another since the plain samples were taken."""
        return not self.has_plain or self._steps - self._plain[-ENOUGH_PLAIN_SAMPLES].at_step > STALE_STEPS

    @property
    def has_drafted(self) -> bool:
        """With a single step there is nothing that could tell whether it was a disturbed one."""
        return len(self._drafted) > 1

    def observe_plain(self, seconds: float) -> None:
        self._plain.append(_Plain(seconds, self._steps))
        self._plain_seconds = _undisturbed([sample.seconds for sample in self._plain])

    def observe(self, tokens: int, seconds: float) -> None:
        self._drafted.append(_Drafted(tokens, seconds, self._plain_seconds))
        self._steps += 1

    def restart_plain(self) -> None:
        """The plain samples are doubted: new ones are to be taken."""
        self._plain.clear()

    def compare_anew(self, steps: int) -> None:
        """The newest ``steps`` steps with drafts are held against the plain samples of now."""
        first = len(self._drafted) - steps
        for index in range(max(0, first), len(self._drafted)):
            self._drafted[index] = self._drafted[index]._replace(plain_seconds=self._plain_seconds)

    def cost(self, tokens: int) -> float:
        """Of a step with that many guessed tokens, in plain steps; 1 if no step with drafts was seen.

        Steps of about that many tokens count, since each adds less the more there are; all where those are too few.
        """
        alike = self._extras(tokens.bit_length())
        if len(alike) < ENOUGH_DRAFTED_SAMPLES:
            alike = [sample.extra for sample in self._drafted]
        return max(0.0, 1 + tokens * _undisturbed(alike)) if alike else 1.0

    def expected(self, tokens: int) -> float:
        """What such a step will cost, for choosing how many tokens to guess. A size that was hardly tried is taken
        for rather too cheap, or it never would be; but a token for at least half of what it costs among fewer."""
        size = tokens.bit_length()
        alike = self._extras(size)
        if len(alike) >= ENOUGH_DRAFTED_SAMPLES:
            return 1 + tokens * max(0.0, _undisturbed(alike))
        smaller = [_undisturbed(extras) for extras in map(self._extras, range(1, size)) if len(extras) > 1]
        # A plain step over several lanes has several tokens already, and those behind the first add less.
        assumed = ASSUMED_EXTRA / (1 + 0.8 * (self.lanes - 1))
        return 1 + tokens * max([min([assumed, *alike]), *[extra / 2 for extra in smaller]])

    def _extras(self, size: int) -> list[float]:
        """What each token added in steps whose count of guessed tokens has ``size`` binary digits."""
        return [sample.extra for sample in self._drafted if sample.tokens.bit_length() == size]


def _undisturbed(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 3]
