"""Puts what a tick did into the message that tells the daemon. Pure but for the counters it keeps; in the worker."""

from collections.abc import Sequence
from dataclasses import astuple
from typing import NamedTuple

import msgspec

from superfluid.domain.job import Job
from superfluid.domain.reply import Finish
from superfluid.scheduling.plan import Retired, StepPlan, StepResult
from superfluid.scheduling.statistics import LaneView, SchedulerStatistics
from superfluid.worker.executor import Execution
from superfluid.worker.protocol import LaneOutput, LaneState, Tick, TickRecord, TickSpan, TickStarted, TokenScores


class TickTimes(NamedTuple):
    """When a tick began (unix and monotonic), when it was planned, when its work was done. Seconds."""

    begun_unix: float
    begun: float
    planned: float
    done: float


class _Output(msgspec.Struct):
    tokens: bytes = b""
    finish: Finish = Finish.NONE
    warm_tokens: int | None = None
    scores: list[TokenScores] = []
    is_waiting_again: bool = False
    guessed_tokens: int = 0
    right_guesses: int = 0


class TickReporter:
    """Collects what must be told and numbers the ticks. ``retire`` is for jobs that end between ticks."""

    def __init__(self) -> None:
        self._spans: list[TickSpan] = []
        self._ticks = 0
        self._sequence = 0
        self._outputs: dict[int, _Output] = {}
        self._fresh: set[int] = set()
        self._admitted: dict[int, float] = {}
        self._first_tokens: list[float] = []
        self._retirements = 0
        self.is_urgent = False
        """Whether there is more to tell than further tokens of running replies."""

    @property
    def has_news(self) -> bool:
        return bool(self._outputs)

    def submitted(self, job: Job) -> None:
        """The job's first token will be timed from its admission, unless it had one from an earlier worker."""
        if not job.is_resubmission:
            self._fresh.add(job.job_id)

    def retire(self, retired: Retired) -> None:
        self._output(retired.job_id).finish = retired.finish
        self._forget(retired.job_id)
        self._retirements += 1
        self.is_urgent = True

    def preempted(self, job_id: int) -> None:
        """The job waits again. Its tokens stay where they are; its next first token will be timed anew."""
        self._output(job_id).is_waiting_again = True
        self._admitted.pop(job_id, None)

    def discard(self, job_id: int) -> None:
        """The job was answered with a refusal: it gets no output."""
        self._outputs.pop(job_id, None)
        self._forget(job_id)

    def completed(self, plan: StepPlan, execution: Execution, result: StepResult, times: TickTimes) -> None:
        for preempted in plan.preemptions:
            self.preempted(preempted.job_id)
        self.is_urgent |= bool(result.admitted or result.first_tokens)
        for admitted in result.admitted:
            output = self._output(admitted.job_id)
            output.warm_tokens, output.is_waiting_again = admitted.warm_tokens, False
            if admitted.job_id in self._fresh:
                self._admitted[admitted.job_id] = times.begun
        for drawn in execution.drawn:
            output = self._output(drawn.job_id)
            output.tokens += drawn.token.to_bytes(4, "little")
            scores = execution.scores.get(drawn.job_id)
            if scores is not None:
                output.scores.append(scores)
        for drafted in execution.drafted:
            output = self._output(drafted.job_id)
            output.guessed_tokens += drafted.proposed
            output.right_guesses += drafted.accepted
        for job_id in result.first_tokens:
            admitted_at = self._admitted.pop(job_id, None)
            if admitted_at is not None:
                self._first_tokens.append(times.done - admitted_at)
        for retired in result.retired:
            if retired.finish is Finish.ERROR:
                self.discard(retired.job_id)
                self._retirements += 1
            else:
                self.retire(retired)

    def trace(self, plan: StepPlan, statistics: SchedulerStatistics, times: TickTimes) -> int:
        """Notes a span for the tick, which the next message carries; its number."""
        self._ticks += 1
        seconds = times.done - times.begun
        self._spans.append(
            TickSpan(self._ticks, times.begun_unix, seconds, sum(statistics.queue_depth), _jobs_of(plan))
        )
        return self._ticks

    def report(
        self,
        plan: StepPlan,
        execution: Execution,
        statistics: SchedulerStatistics,
        times: TickTimes,
        lanes: Sequence[LaneView] | None = None,
    ) -> Tick:
        """The message; everything collected so far is then told. ``lanes`` are told where they are given."""
        outputs = [
            LaneOutput(
                job_id,
                output.tokens,
                output.finish,
                output.warm_tokens,
                output.scores,
                output.is_waiting_again,
                output.guessed_tokens,
                output.right_guesses,
            )
            for job_id, output in self._outputs.items()
        ]
        record = self._record(plan, execution, statistics, times)
        if lanes is not None:
            record = msgspec.structs.replace(record, lanes=[LaneState(*astuple(lane)) for lane in lanes])
        spans, self._spans = self._spans, []
        self._outputs = {}
        self._first_tokens = []
        self._retirements = 0
        self.is_urgent = False
        self._sequence += 1
        return Tick(outputs, record, spans)

    def _forget(self, job_id: int) -> None:
        self._fresh.discard(job_id)
        self._admitted.pop(job_id, None)

    def _output(self, job_id: int) -> _Output:
        output = self._outputs.get(job_id)
        if output is None:
            output = self._outputs[job_id] = _Output()
        return output

    def _record(
        self, plan: StepPlan, execution: Execution, statistics: SchedulerStatistics, times: TickTimes
    ) -> TickRecord:
        counters = statistics.counters
        return TickRecord(
            sequence=self._sequence,
            started_unix=times.begun_unix,
            wall_seconds=times.done - times.begun,
            plan_seconds=times.planned - times.begun,
            engine_seconds=execution.engine_seconds,
            sample_seconds=execution.sample_seconds,
            prefill_tokens=execution.chunk_completed,
            prefill_lanes=int(plan.chunk is not None),
            decode_lanes=len(plan.decodes),
            admissions=len(plan.placements),
            retirements=self._retirements,
            lanes_active=statistics.lanes_active,
            queue_depth=statistics.queue_depth,
            pool_blocks_used=statistics.pool_blocks_used,
            pool_blocks_total=statistics.pool_blocks_total,
            chunk_budget_tokens=plan.chunk_budget_tokens,
            host_cache_bytes=statistics.host_cache_bytes,
            host_cache_entries=statistics.host_cache_entries,
            ticks_total=counters.ticks_total,
            prefill_tokens_total=counters.prefill_tokens_total,
            decode_tokens_total=counters.decode_tokens_total,
            warm_prefix_tokens_total=counters.warm_prefix_tokens_total,
            cold_admissions_total=counters.cold_admissions_total,
            host_saves_total=counters.host_saves_total,
            host_restores_total=counters.host_restores_total,
            first_token_seconds=self._first_tokens,
            preemptions_total=counters.preemptions_total,
            starvation_grants_total=counters.starvation_grants_total,
            admits_deferred_total=counters.admits_deferred_total,
            pressure_evictions_total=counters.pressure_evictions_total,
            pressure_bytes_evicted_total=counters.pressure_bytes_evicted_total,
            os_pressure_events_total=counters.os_pressure_events_total,
            pins_yielded_total=counters.pins_yielded_total,
            pins_expired_total=counters.pins_expired_total,
            pins_held=statistics.pins_held,
            pinned_bytes=statistics.pinned_bytes,
            memory_used_bytes=statistics.memory_used_bytes,
            memory_total_bytes=statistics.memory_total_bytes,
            spec_proposed_total=counters.spec_proposed_total,
            spec_accepted_total=counters.spec_accepted_total,
            decode_tokens=len(execution.drawn) if plan.decodes else 0,
            decode_grant_tokens=1 + max([len(lane.draft) + lane.draft_limit for lane in plan.decodes], default=0),
        )


def _jobs_of(plan: StepPlan) -> list[int]:
    """The jobs that the plan evaluates something for."""
    if plan.chunk is not None:
        return [plan.chunk.job_id]
    return [row.job_id for row in plan.rows]


def tick_started(plan: StepPlan) -> TickStarted:
    """What is told of a tick before it is carried out."""
    prefill_tokens = 0 if plan.chunk is None else plan.chunk.length
    return TickStarted(prefill_tokens, int(plan.chunk is not None), len(plan.decodes), len(plan.placements))
