"""Adds up tick records over the workers a model has had, so that counters never fall. Pure; used in the daemon."""

from bisect import bisect_left
from typing import NamedTuple

from superfluid.domain.request import QosClass
from superfluid.domain.statistics import DurationHistogram, EngineRates, LanePhase, LaneStatus
from superfluid.worker.protocol import LaneState, TickRecord

FIRST_TOKEN_BOUNDS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)
_BOUNDS_MILLISECONDS = tuple(round(bound * 1000) for bound in FIRST_TOKEN_BOUNDS_SECONDS)


class Counters(NamedTuple):
    """The counters of a tick record."""

    ticks: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    warm_prefix_tokens: int = 0
    cold_admissions: int = 0
    host_saves: int = 0
    host_restores: int = 0
    preemptions: int = 0
    starvation_grants: int = 0
    admits_deferred: int = 0
    pressure_evictions: int = 0
    pressure_bytes_evicted: int = 0
    os_pressure_events: int = 0
    pins_yielded: int = 0
    pins_expired: int = 0
    spec_proposed: int = 0
    spec_accepted: int = 0


class TickTotals:
    """Takes each tick's record. ``last`` is the newest of the present worker, ``None`` before its first."""

    def __init__(self) -> None:
        self.last: TickRecord | None = None
        self._earlier = Counters()
        self._buckets = [0] * (len(_BOUNDS_MILLISECONDS) + 1)
        self._sum_milliseconds = 0
        self.lanes: tuple[LaneStatus, ...] = ()
        self.rates = EngineRates()
        self.first_token_last_seconds = 0.0

    def add(self, record: TickRecord) -> None:
        self.last = record
        if record.lanes is not None:
            self.lanes = tuple([_lane_status(lane) for lane in record.lanes])
        self.rates = _rates(record, self.rates)
        for seconds in record.first_token_seconds:
            milliseconds = round(seconds * 1000)
            self._buckets[bisect_left(_BOUNDS_MILLISECONDS, milliseconds)] += 1
            self._sum_milliseconds += milliseconds
            self.first_token_last_seconds = seconds

    def worker_lost(self) -> None:
        """The next record's counters begin at 0 again."""
        self._earlier = self.counters()
        self.last = None
        self.lanes = ()

    def counters(self) -> Counters:
        last = self.last
        if last is None:
            return self._earlier
        present = (
            last.ticks_total,
            last.prefill_tokens_total,
            last.decode_tokens_total,
            last.warm_prefix_tokens_total,
            last.cold_admissions_total,
            last.host_saves_total,
            last.host_restores_total,
            last.preemptions_total,
            last.starvation_grants_total,
            last.admits_deferred_total,
            last.pressure_evictions_total,
            last.pressure_bytes_evicted_total,
            last.os_pressure_events_total,
            last.pins_yielded_total,
            last.pins_expired_total,
            last.spec_proposed_total,
            last.spec_accepted_total,
        )
        return Counters(*(a + b for a, b in zip(self._earlier, present, strict=True)))

    def first_token(self) -> DurationHistogram:
        return DurationHistogram(FIRST_TOKEN_BOUNDS_SECONDS, tuple(self._buckets), self._sum_milliseconds / 1000)


def _lane_status(lane: LaneState) -> LaneStatus:
    phase: LanePhase = "free" if lane.job_id == 0 else "prefill" if lane.is_prefilling else "decode"
    return LaneStatus(
        lane.lane,
        lane.job_id,
        phase,
        QosClass(lane.qos),
        lane.held_tokens,
        lane.stream_tokens,
        lane.prompt_tokens,
        lane.warm_tokens,
        lane.warm_from,
    )


def _rates(record: TickRecord, before: EngineRates) -> EngineRates:
    """A tick prefills or decodes: the other rate stays what it was."""
    seconds = record.engine_seconds
    if seconds <= 0.0:
        return before
    if record.prefill_tokens:
        return EngineRates(before.decode_tokens_per_second, record.prefill_tokens / seconds)
    if record.decode_lanes:
        tokens = max(record.decode_tokens, record.decode_lanes)
        return EngineRates(tokens / seconds, before.prefill_tokens_per_second)
    return before
