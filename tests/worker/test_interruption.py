"""Chunks that are ended early: what is a reason, when, and what becomes of the jobs."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from tests.fixtures.tick_loop import (
    CostlyEngine,
    CutStepEngine,
    Received,
    SteppedClock,
    SteppedLoop,
    cold_reply,
    make_job,
    make_settings,
    words,
)

from superfluid.domain.job import Job
from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass
from superfluid.engine.fake import MICRO_BATCH_TOKENS, FakeEngine
from superfluid.engine.fake_script import FakeScript
from superfluid.engine.interface import Row, StepResult
from superfluid.scheduling.plan import Chunk
from superfluid.worker.interruption import WORTHWHILE_SECONDS, Interruption
from superfluid.worker.protocol import Cancel, Ping, Submit, ToWorker

INTERACTIVE, COMPLETION, AGENT, BACKGROUND = QosClass
URGENT = (INTERACTIVE, COMPLETION)


def _job(**fields: Any) -> Job:
    return msgspec.structs.replace(make_job(words(1, 20)), **fields)


class _Engine(FakeEngine):
    """Counts what it is asked."""

    def __init__(self, script: FakeScript | None = None) -> None:
        super().__init__(script, lanes=1)
        self.calls: list[str] = []

    def abort(self) -> None:
        self.calls.append("abort")

    def resume(self) -> None:
        self.calls.append("resume")


@pytest.mark.parametrize(
    ("message", "is_reason"),
    [
        (Submit(_job(qos=INTERACTIVE)), True),
        (Submit(_job(qos=COMPLETION)), True),
        (Submit(_job(qos=AGENT)), False),
        (Submit(_job(qos=INTERACTIVE, is_batch_invariant=True)), False),
        (Cancel(7), True),
        (Cancel(8), False),
        (Ping(1), False),
    ],
)
@pytest.mark.parametrize("moment", ["during", "after the plan"])
def test_arrival_during_a_chunk_or_just_before_it_ends_it_if_there_is_reason(
    message: ToWorker, is_reason: bool, moment: str
) -> None:
    engine = _Engine()
    interruption = Interruption(engine, SteppedClock())
    interruption.taking_messages()
    if moment == "after the plan":
        interruption.arrived(message)
    with interruption.during(Chunk(7, 0, 0, 100, False, yields_to=URGENT, expected_seconds=1.0)):
        if moment == "during":
            interruption.arrived(message)
    assert engine.calls == [*(["abort"] if is_reason else []), "resume"]


def test_arrival_that_is_in_the_plan_already_ends_nothing() -> None:
    engine = _Engine()
    interruption = Interruption(engine, SteppedClock())
    interruption.arrived(Cancel(7))
    interruption.taking_messages()
    with interruption.during(Chunk(7, 0, 0, 100, False, yields_to=URGENT, expected_seconds=1.0)):
        pass
    interruption.arrived(Cancel(7))
    assert engine.calls == ["resume"]


@pytest.mark.parametrize(
    ("left_seconds", "is_ended"),
    [
        (0.5, True),
        (2 * WORTHWHILE_SECONDS, True),
        (WORTHWHILE_SECONDS / 2, False),
        (-WORTHWHILE_SECONDS / 2, False),
        (-2 * WORTHWHILE_SECONDS, True),
    ],
)
def test_arrival_near_the_end_of_a_chunk_waits_for_it(left_seconds: float, is_ended: bool) -> None:
    engine, clock = _Engine(), SteppedClock()
    interruption = Interruption(engine, clock)
    with interruption.during(Chunk(7, 0, 0, 100, False, expected_seconds=1.0)):
        clock.now += 1.0 - left_seconds
        interruption.arrived(Cancel(7))
    assert ("abort" in engine.calls) == is_ended


@pytest.mark.parametrize(
    ("left_seconds", "is_ended"),
    [
        (0.5, True),
        (0.12, True),  # 0.88 s may be lost, an eighth of which is 0.11
        (0.1, False),
        (-0.1, False),
        (-0.2, True),
    ],
)
def test_newcomer_ends_no_chunk_whose_loss_is_much_more_than_the_gain(left_seconds: float, is_ended: bool) -> None:
    engine, clock = _Engine(), SteppedClock()
    interruption = Interruption(engine, clock)
    with interruption.during(Chunk(7, 0, 0, 100, False, yields_to=URGENT, expected_seconds=1.0)):
        clock.now += 1.0 - left_seconds
        interruption.arrived(Submit(_job(qos=INTERACTIVE)))
    assert ("abort" in engine.calls) == is_ended


def test_abort_is_taken_back_though_the_step_raises() -> None:
    engine = _Engine()
    interruption = Interruption(engine, SteppedClock())
    chunk = Chunk(7, 0, 0, 100, False, expected_seconds=1.0)

    def step_that_raises() -> None:
        with interruption.during(chunk):
            interruption.arrived(Cancel(7))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        step_that_raises()
    assert engine.calls == ["abort", "resume"]


@pytest.mark.parametrize(
    ("messages", "is_ended"),
    [
        ((Cancel(1), Cancel(2)), True),
        ((Cancel(2), Ping(1), Cancel(9), Cancel(1)), True),
        ((Cancel(1),), False),
        ((Cancel(1), Cancel(9)), False),
        ((Cancel(1), Submit(_job(qos=INTERACTIVE))), False),
        ((), False),
    ],
)
@pytest.mark.parametrize("already", [0, 1, 4])
def test_decode_step_ends_when_everybody_in_it_has_been_cancelled(
    messages: tuple[ToWorker, ...], already: int, *, is_ended: bool
) -> None:
    engine = _Engine()
    interruption = Interruption(engine, SteppedClock())
    interruption.taking_messages()
    for message in messages[:already]:
        interruption.arrived(message)
    with interruption.during_decode(frozenset({1, 2})):
        for message in messages[already:]:
            interruption.arrived(message)
        assert ("abort" in engine.calls) == is_ended
    assert engine.calls[-1] == "resume"
    interruption.arrived(Cancel(2))
    assert engine.calls[-1] == "resume"


def test_decode_step_of_a_model_whose_state_cannot_be_cut_is_carried_through() -> None:
    engine = _Engine(FakeScript(can_truncate=False))
    interruption = Interruption(engine, SteppedClock())
    with interruption.during_decode(frozenset({1})):
        interruption.arrived(Cancel(1))
    assert engine.calls == ["resume"]


# ---- on the loop


class _Disturbed(CostlyEngine):
    """In the middle of a long chunk something arrives; if that ends the chunk, a micro-batch of it is done."""

    def __init__(self, clock: SteppedClock) -> None:
        super().__init__(lanes=2, clock=clock)
        self.disturb: Callable[[], None] | None = None
        self.is_aborted = False

    def step(self, rows: Sequence[Row]) -> StepResult:
        if len(rows[0].tokens) < 100 or self.disturb is None:
            return super().step(rows)
        disturb, self.disturb = self.disturb, None
        disturb()
        if not self.is_aborted:
            return super().step(rows)
        super().resume()
        done = rows[0]._replace(tokens=rows[0].tokens[:MICRO_BATCH_TOKENS], wants_logits="none")
        return StepResult(super().step([done]).logits, (MICRO_BATCH_TOKENS,))

    def abort(self) -> None:
        self.is_aborted = True
        super().abort()


def _disturbed() -> tuple[SteppedLoop, _Disturbed]:
    clock = SteppedClock()
    engine = _Disturbed(clock)
    return SteppedLoop(settings=make_settings(2), engine=engine, clock=clock), engine


def _submit_in_the_middle(loop: SteppedLoop, engine: _Disturbed, job: Job) -> Received:
    """The job arrives while a chunk is being read, as the reader thread would put it."""
    received = loop.jobs[job.job_id] = Received()
    engine.disturb = lambda: loop.inbox.put(Submit(job))
    while not engine.is_aborted and engine.disturb is not None:
        loop.tick()
    loop.take_messages()
    return received


def test_chat_that_arrives_in_a_chunk_is_next_and_nothing_is_lost() -> None:
    loop, engine = _disturbed()
    agent, chat = make_job(words(1, 1000)), make_job(words(2, 30), qos=INTERACTIVE)
    got = loop.submit(agent)
    chatted = _submit_in_the_middle(loop, engine, chat)
    assert engine.is_aborted
    read = loop.records[-1].prefill_tokens_total
    loop.tick()
    assert len(chatted.tokens) == 1
    loop.run()
    assert loop.records[-1].prefill_tokens_total == 1000 + 30
    assert 0 < read < 1000
    assert (got.tokens, chatted.tokens) == (cold_reply(agent), cold_reply(chat))


def test_agent_that_arrives_in_a_chunk_waits_for_it() -> None:
    loop, engine = _disturbed()
    agent, other = make_job(words(1, 1000)), make_job(words(2, 30))
    loop.submit(agent)
    received = _submit_in_the_middle(loop, engine, other)
    assert not engine.is_aborted
    loop.run()
    assert received.tokens == cold_reply(other)


def test_cancelled_prompt_frees_its_lane_in_the_next_tick() -> None:
    loop, engine = _disturbed()
    agent = make_job(words(1, 1000))
    received = loop.submit(agent)
    engine.disturb = lambda: loop.inbox.put(Cancel(agent.job_id))
    while engine.disturb is not None:
        loop.tick()
    assert engine.is_aborted
    loop.take_messages()
    loop.tick()
    assert received.finish is Finish.CANCELLED
    assert loop.records[-1].lanes_active == 0
    assert loop.records[-1].prefill_tokens_total < 500


class _HungUpOn(CutStepEngine):
    """In the middle of a decode step something arrives; if that ends the step, two rows of it are done."""

    def __init__(self, clock: SteppedClock) -> None:
        super().__init__(lanes=4, clock=clock)
        self.disturb: Callable[[], None] | None = None
        self.steps: list[list[int]] = []

    def step(self, rows: Sequence[Row]) -> StepResult:
        self.steps.append([row.lane for row in rows])
        if self.disturb is not None and all(len(row.tokens) == 1 for row in rows):
            disturb, self.disturb = self.disturb, None
            disturb()
        return super().step(rows)


def _decoding(*, others: int = 0) -> tuple[SteppedLoop, _HungUpOn, list[Job], list[Received]]:
    """Four jobs that all have tokens."""
    clock = SteppedClock()
    engine = _HungUpOn(clock)
    loop = SteppedLoop(settings=make_settings(4), engine=engine, clock=clock)
    jobs = [make_job(words(seed, 20), max_tokens=60, ignore_eos=True) for seed in range(4 + others)]
    received = [loop.submit(job) for job in jobs]
    while not all(received[index].tokens for index in range(4)):
        loop.tick()
    return loop, engine, jobs, received


def _hang_up(loop: SteppedLoop, engine: _HungUpOn, jobs: list[Job]) -> None:
    """All at once, in the middle of the next decode step."""

    def leave() -> None:
        for job in jobs:
            loop.inbox.put(Cancel(job.job_id))

    engine.disturb = leave
    while engine.disturb is not None:
        loop.tick()
    loop.take_messages()


def test_lanes_of_clients_that_hang_up_in_a_step_are_free_and_told_without_another_step() -> None:
    loop, engine, jobs, received = _decoding()
    told = [len(each.tokens) for each in received]
    _hang_up(loop, engine, jobs)
    steps = len(engine.steps)
    loop.tick()
    assert len(engine.steps) == steps
    assert [each.finish for each in received] == [Finish.CANCELLED] * 4
    assert [len(each.tokens) for each in received] == told
    record = loop.records[-1]
    assert (record.lanes_active, record.decode_lanes) == (0, 0)
    assert record.lanes is not None
    assert not any(lane.job_id for lane in record.lanes)


def test_step_goes_on_for_the_one_client_that_stays() -> None:
    loop, engine, jobs, received = _decoding()
    _hang_up(loop, engine, jobs[1:])
    loop.run()
    assert received[0].tokens == cold_reply(jobs[0])
    assert [each.finish for each in received[1:]] == [Finish.CANCELLED] * 3


def test_lanes_that_become_free_between_two_ticks_are_told_before_the_next_step() -> None:
    loop, engine, jobs, received = _decoding()
    _hang_up(loop, engine, jobs[1:])
    engine.disturb = lambda: told.append((loop.records[-1].lanes_active, received[1].finish))
    told: list[tuple[int, Finish]] = []
    loop.tick()
    assert told == [(1, Finish.CANCELLED)]
    assert engine.steps[-1] == [0]


def test_jobs_that_waited_get_the_lanes_of_a_step_that_was_ended() -> None:
    loop, engine, jobs, received = _decoding(others=2)
    _hang_up(loop, engine, jobs[:4])
    loop.run()
    assert [each.tokens for each in received[4:]] == [cold_reply(job) for job in jobs[4:]]
