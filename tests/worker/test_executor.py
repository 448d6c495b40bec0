"""Plans carried out on the fake engine."""

import math

import msgspec
import numpy as np
import pytest
from tests.fixtures.tick_loop import SteppedClock, make_job, words

from superfluid.domain.reply import Finish
from superfluid.domain.request import SamplingParams
from superfluid.engine.fake import FakeEngine
from superfluid.engine.interface import Row, StepResult
from superfluid.engine.lane_state import State
from superfluid.errors import EngineFaultError
from superfluid.scheduling.scheduler import Scheduler, SchedulerSettings
from superfluid.worker.executor import Execution, Executor


class _Bench:
    """Scheduler and executor over one engine."""

    def __init__(self, engine: FakeEngine, lanes: int = 1) -> None:
        self.engine = engine
        self.scheduler = Scheduler(
            SchedulerSettings(lanes=lanes, window_tokens=8192, vocabulary_tokens=268, host_cache_bytes=10**6)
        )
        self.executor = Executor(engine, self.scheduler, SteppedClock())

    def tick(self) -> Execution:
        plan = self.scheduler.plan()
        execution = self.executor.execute(plan)
        for retired in self.scheduler.complete(plan, execution.outcome()).retired:
            self.executor.forget(retired.job_id)
        self.scheduler.check_integrity()
        self.executor.check_integrity()
        return execution

    def finish(self, tokens: list[int]) -> None:
        self.scheduler.submit(make_job(tokens, max_tokens=1))
        while not self.scheduler.is_idle:
            self.tick()


class _Forgetful(FakeEngine):
    """Exports what no engine will import."""

    def export_lane(self, lane: int) -> State:
        return bytes(super().export_lane(lane))[:-1]


class _Crowded(FakeEngine):
    """There is no memory to import anything."""

    def import_lane(self, lane: int, state: State, length: int) -> bool:
        raise MemoryError


class _Unexportable(FakeEngine):
    def export_lane(self, lane: int) -> State:
        raise EngineFaultError("no export today")


class _Growing(FakeEngine):
    """A hundred bytes of each state go to new memory."""

    def export_lane(self, lane: int) -> State:
        self.spare_memory.new_bytes_total += 100
        return super().export_lane(lane)


class _AbortedOnce(FakeEngine):
    """The first step ends after ten tokens."""

    def step(self, rows: list[Row]) -> StepResult:  # type: ignore[override]
        if self.length(0) == 0:
            super().step([rows[0]._replace(tokens=rows[0].tokens[:10], wants_logits="none")])
            return StepResult(np.empty((0, 268), np.float32), (10,))
        return super().step(rows)


def test_execute_refused_import_leaves_the_lane_cold_and_the_job_starts_over() -> None:
    bench = _Bench(_Forgetful(lanes=1))
    bench.finish(words(1, 200))
    bench.finish(words(2, 200))
    bench.scheduler.submit(make_job(words(1, 200), max_tokens=1))
    execution = bench.tick()
    assert (execution.cold_lanes, execution.chunk_completed) == ([0], 0)
    assert bench.tick().chunk_completed > 0


def test_execute_import_without_memory_for_it_is_planned_again_and_counted() -> None:
    bench = _Bench(_Crowded(lanes=1))
    bench.finish(words(1, 200))
    bench.finish(words(2, 200))
    bench.finish(words(1, 200))
    assert bench.scheduler.statistics().counters.admits_deferred_total == 1


def test_execute_failed_export_is_a_lost_entry() -> None:
    bench = _Bench(_Unexportable(lanes=1))
    bench.finish(words(1, 200))
    bench.scheduler.submit(make_job(words(2, 200), max_tokens=1))
    execution = bench.tick()
    assert (execution.lost_entries, execution.entry_bytes) == ([0], {})
    assert len(bench.executor.host_cache) == 0


@pytest.mark.parametrize(("engine", "new_bytes"), [(FakeEngine, 0), (_Growing, 100)])
def test_execute_save_tells_how_much_of_it_went_to_new_memory(engine: type[FakeEngine], new_bytes: int) -> None:
    bench = _Bench(engine(lanes=1))
    bench.finish(words(1, 200))
    bench.scheduler.submit(make_job(words(2, 200), max_tokens=1))
    execution = bench.tick()
    assert len(execution.entry_bytes) == 1
    assert execution.outcome().new_bytes == new_bytes


def test_execute_aborted_chunk_goes_on_where_it_ended() -> None:
    bench = _Bench(_AbortedOnce(lanes=1))
    job = make_job(words(1, 30), max_tokens=1)
    bench.scheduler.submit(job)
    assert bench.tick().chunk_completed == 10
    plan = bench.scheduler.plan()
    assert plan.chunk is not None
    assert (plan.chunk.start, plan.chunk.length) == (10, 20)
    outcome = bench.executor.execute(plan).outcome()
    assert [retired.finish for retired in bench.scheduler.complete(plan, outcome).retired] == [Finish.LENGTH]


class _Partial(FakeEngine):
    """Always prefers token 7, and then 5."""

    def step(self, rows: list[Row]) -> StepResult:  # type: ignore[override]
        result = super().step(rows)
        logits = np.zeros_like(result.logits)
        logits[:, 7], logits[:, 5] = 2.0, 1.0
        return result._replace(logits=logits)


def test_execute_greedy_rows_of_one_step_keep_their_own_biases() -> None:
    """One that bars the greatest, one that lowers another token, and one that raises one."""
    bench = _Bench(_Partial(lanes=4), lanes=4)
    biases: list[dict[int, float]] = [{}, {7: -math.inf}, {5: -1.0}, {5: 9.0}]
    for seed, bias in enumerate(biases, 1):
        job = make_job(words(seed, 20), max_tokens=20)
        bench.scheduler.submit(msgspec.structs.replace(job, sampling=SamplingParams(temperature=0, logit_bias=bias)))
    execution = bench.tick()
    while len(execution.drawn) < len(biases):
        execution = bench.tick()
    assert [drawn.token for drawn in execution.drawn] == [7, 5, 7, 5]
    bench.scheduler.cancel(execution.drawn[3].job_id)
    bench.executor.forget(execution.drawn[3].job_id)
    assert [drawn.token for drawn in bench.tick().drawn] == [7, 5, 7], "all at once"


def test_execute_decode_rows_are_one_step_of_views() -> None:
    steps: list[list[Row]] = []

    class _Watched(FakeEngine):
        def step(self, rows: list[Row]) -> StepResult:  # type: ignore[override]
            steps.append(list(rows))
            return super().step(rows)

    bench = _Bench(_Watched(lanes=4), lanes=4)
    for seed in range(1, 5):
        bench.scheduler.submit(make_job(words(seed, 20), max_tokens=50))
    for _ in range(20):
        bench.tick()
    assert [row.lane for row in steps[-1]] == [0, 1, 2, 3]
    assert all(len(row.tokens) == 1 and row.tokens.base is not None for row in steps[-1])


class _Spoiled(FakeEngine):
    """What is in ``spoiled`` lanes makes all logits NaN until it is overwritten; in ``hopeless`` ones ever after."""

    spoiled: frozenset[int] = frozenset()
    is_hopeless = False

    def step(self, rows: list[Row]) -> StepResult:  # type: ignore[override]
        result = super().step(rows)
        if any(row.lane in self.spoiled for row in rows):
            return StepResult(np.full_like(result.logits, np.nan), result.completed)
        return result

    def scrub(self, lane: int) -> None:
        super().scrub(lane)
        if not self.is_hopeless:
            self.spoiled = self.spoiled - {lane}


def _spoiled_reply(engine: _Spoiled, *, after: int) -> tuple[list[int], list[str]]:
    """Tokens and faults of a job whose lane is spoiled after so many ticks."""
    bench = _Bench(engine)
    bench.scheduler.submit(make_job(words(1, 50), max_tokens=6))
    tokens: list[int] = []
    faults: list[str] = []
    for tick in range(40):
        if tick == after:
            engine.spoiled = frozenset({0})
        execution = bench.tick()
        tokens += [drawn.token for drawn in execution.drawn]
        faults += execution.faults.values()
        if bench.scheduler.is_idle:
            break
    assert bench.scheduler.is_idle
    return tokens, faults


def test_job_on_a_lane_that_somebody_spoiled_starts_over_and_says_what_it_would_have() -> None:
    expected, _ = _spoiled_reply(_Spoiled(lanes=1), after=99)
    for after in (0, 1, 3):
        assert _spoiled_reply(_Spoiled(lanes=1), after=after) == (expected, [])


def test_job_that_gets_no_numbers_from_a_clean_lane_either_fails() -> None:
    engine = _Spoiled(lanes=1)
    engine.is_hopeless = True
    tokens, faults = _spoiled_reply(engine, after=2)
    assert faults == ["the model's logits are of no use: the greatest is nan"]
    assert len(tokens) < 6
