"""Whether a decode step can simply be planned once more, since nothing has happened. Pure; lives in the worker.

Most ticks are such steps. The engine has thrown everything else out of the processor's caches by then, so that each
question a plan asks costs several times what it does in a loop by itself.
"""

from dataclasses import dataclass, field
from typing import Final

from superfluid.scheduling.admission import Admission
from superfluid.scheduling.plan import StepPlan
from superfluid.scheduling.prefix import PrefixIndex
from superfluid.scheduling.pressure import Pressure
from superfluid.scheduling.sequence import Lane

MOST_REPEATS: Final = 64
"""Then a plan is made anew: what it tells beside the step, the budget of a chunk, is not to grow old."""


@dataclass(slots=True)
class Repeats:
    """Keeps the last plan for as long as a new one would be equal. Whoever changes what a plan depends on (jobs, lanes,
    rules, signals) calls ``end``; what is in host memory, and how it fills, is looked at here."""

    lanes: list[Lane]
    index: PrefixIndex
    admission: Admission
    pressure: Pressure
    _plan: StepPlan | None = field(default=None, init=False)
    _left: int = field(default=0, init=False)

    def end(self) -> None:
        """Something has happened: the next plan is a new one."""
        self._plan = None

    def take(self) -> StepPlan | None:
        """The last plan, if it holds once more."""
        if self._plan is None or self._left <= 0 or not self.index.is_tidy:
            return None
        self._left -= 1
        return self._plan

    def note(self, plan: StepPlan) -> None:
        """``plan`` has just been made, and every decode turn is like the one before."""
        self._plan = plan if self._is_repeatable(plan) else None
        if self._plan is not None:
            self._left = min(MOST_REPEATS, self.pressure.calm_steps(len(plan.decodes)))

    def _is_repeatable(self, plan: StepPlan) -> bool:
        """A step of all jobs that have a lane, which came to pass without moves and leaves nothing to be decided."""
        if not plan.decodes or plan.has_moves or plan.eviction_look is not None or not self.admission.is_settled:
            return False
        running = [lane.sequence for lane in self.lanes if lane.sequence is not None]
        is_whole = len(plan.decodes) == len(running)
        return is_whole and not any(sequence.checkpoints for sequence in running)
