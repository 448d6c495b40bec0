"""What the daemon knows of the tick that is running in the worker. Pure; used in the daemon."""

from superfluid.domain.statistics import TickStatus
from superfluid.worker.protocol import TickRecord, TickStarted


class TickFlight:
    """A long tick announces itself with its plan. A short one is taken to begin when the one before it was told, with
    as many decoding lanes."""

    def __init__(self) -> None:
        self._begun = 0.0
        self._plan = TickStatus()

    def started(self, now: float, tick: TickStarted) -> None:
        self._begun = now
        self._plan = TickStatus(0.0, tick.prefill_tokens, tick.prefill_lanes, tick.decode_lanes, tick.admissions)

    def ended(self, now: float, record: TickRecord) -> None:
        self._begun = now
        self._plan = TickStatus(decode_lanes=record.decode_lanes)

    def status(self, now: float, *, is_busy: bool) -> TickStatus:
        """``is_busy``: a job has a lane. All 0 where none has."""
        if not is_busy:
            return TickStatus()
        plan = self._plan
        return TickStatus(
            max(0.0, now - self._begun), plan.prefill_tokens, plan.prefill_lanes, plan.decode_lanes, plan.admissions
        )
