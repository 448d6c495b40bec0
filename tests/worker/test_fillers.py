"""Prompts that are read along in decode steps: on the fake engine what becomes of them, on llama.cpp that the replies
are those of plain steps."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.fixtures.tick_loop import (
    CutStepEngine,
    Received,
    SteppedClock,
    SteppedLoop,
    cold_reply,
    make_job,
    make_settings,
    words,
)
from tests.fixtures.tiny_gguf import write_tiny_model

from superfluid.domain.reply import Finish
from superfluid.domain.scheduling import SchedulingRules
from superfluid.engine.fake_script import FakeScript
from superfluid.engine.interface import Row, StepResult
from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.scheduling.placement import count_runs
from superfluid.worker.executor import OUTPUTS_TOGETHER
from superfluid.worker.protocol import Cancel

LANES = 4
PROMPT_LANE = 1


class _Watched(CutStepEngine):
    """Keeps its decode steps. In the middle of one with rows that want no logits ``disturb`` is called once; if that
    aborts the step, two rows of it are done."""

    def __init__(self, clock: SteppedClock, lanes: int) -> None:
        super().__init__(FakeScript(flash_attention=True), lanes=lanes, clock=clock)
        self.steps: list[list[Row]] = []
        self.disturb: Callable[[], None] | None = None

    def step(self, rows: Sequence[Row]) -> StepResult:
        if all(len(row.tokens) == 1 for row in rows):
            self.steps.append(list(rows))
            if self.disturb is not None and _filled(rows):
                disturb, self.disturb = self.disturb, None
                disturb()
        return super().step(rows)


def _filled(rows: Sequence[Row]) -> list[int]:
    return [row.lane for row in rows if row.wants_logits == "none"]


class Beside:
    """Replies on all lanes but one, where a prompt of 700 tokens has just arrived."""

    def __init__(self, lanes: int = LANES, *, is_traced: bool = False) -> None:
        clock = SteppedClock()
        self.engine = _Watched(clock, lanes)
        settings = msgspec.structs.replace(make_settings(lanes), is_traced=is_traced)
        self.loop = SteppedLoop(settings=settings, engine=self.engine, clock=clock)
        self.jobs = [make_job(words(seed, 20), max_tokens=60, ignore_eos=True) for seed in range(lanes)]
        self.received = [self.loop.submit(job) for job in self.jobs]
        while not all(received.tokens for received in self.received):
            self.loop.tick()
        self.loop.cancel(self.jobs.pop(PROMPT_LANE))
        del self.received[PROMPT_LANE]
        self.prompt = make_job(words(9, 700), max_tokens=5)
        self.answer = self.loop.submit(self.prompt)

    def until_filled(self) -> None:
        """To the end of the first decode step with the prompt in it."""
        while not (self.engine.steps and _filled(self.engine.steps[-1])):
            self.loop.tick()


def test_steps_beside_a_prompt_are_of_neighbouring_lanes_and_read_it() -> None:
    beside = Beside()
    before = len(beside.engine.steps)
    while not beside.answer.tokens:
        beside.loop.tick()
    steps = beside.engine.steps[before:]
    assert len(steps) > 3
    assert {count_runs(row.lane for row in rows) for rows in steps} == {1}
    assert {tuple(_filled(rows)) for rows in steps} == {(PROMPT_LANE,)}
    beside.loop.run()
    assert beside.answer.tokens == cold_reply(beside.prompt)
    assert [received.tokens for received in beside.received] == [cold_reply(job) for job in beside.jobs]


def test_rows_of_a_prompt_have_logits_where_that_makes_their_number_full_and_nobody_looks_at_them() -> None:
    beside = Beside(lanes=OUTPUTS_TOGETHER)
    beside.loop.tick()
    before = len(beside.engine.steps)
    while not beside.answer.tokens:
        beside.loop.tick()
    steps = [[row.wants_logits for row in rows] for rows in beside.engine.steps[before:]]
    assert steps
    assert all(wants == ["last"] * OUTPUTS_TOGETHER for wants in steps)
    beside.loop.run()
    assert beside.answer.tokens == cold_reply(beside.prompt)
    assert [received.tokens for received in beside.received] == [cold_reply(job) for job in beside.jobs]
    assert beside.loop.records[-1].prefill_tokens_total == OUTPUTS_TOGETHER * 20 + 700


def test_records_tell_of_each_read_token_once_and_of_chunks_alone_how_fast_that_is() -> None:
    beside = Beside(is_traced=True)
    spans = len(beside.loop.spans)
    beside.loop.run()
    last = beside.loop.records[-1]
    filled = sum(len(_filled(rows)) for rows in beside.engine.steps)
    assert last.prefill_tokens_total == LANES * 20 + 700
    assert sum(record.prefill_tokens for record in beside.loop.records) == last.prefill_tokens_total - filled
    assert not any(record.prefill_tokens and record.decode_lanes for record in beside.loop.records)
    both = [span.jobs for span in beside.loop.spans[spans:] if beside.prompt.job_id in span.jobs and len(span.jobs) > 1]
    assert both
    assert beside.answer.warm_tokens == [0]


def test_step_that_was_ended_has_read_nothing_and_is_done_again() -> None:
    beside = Beside()
    beside.until_filled()
    beside.engine.disturb = beside.engine.abort
    told: list[list[int]] = []
    while beside.engine.disturb is not None:
        told = [list(received.tokens) for received in beside.received]
        lengths = [beside.engine.length(lane) for lane in range(LANES)]
        beside.loop.tick()
    assert [received.tokens for received in beside.received] == told
    assert [beside.engine.length(lane) for lane in range(LANES)] == lengths
    beside.loop.run()
    assert beside.loop.records[-1].prefill_tokens_total == LANES * 20 + 700
    assert beside.answer.tokens == cold_reply(beside.prompt)
    assert [received.tokens for received in beside.received] == [cold_reply(job) for job in beside.jobs]


@pytest.mark.parametrize(("leaving", "is_ended"), [(3, True), (2, False)])
def test_step_with_a_prompt_in_it_ends_when_all_have_hung_up_that_get_a_token(leaving: int, is_ended: bool) -> None:
    beside = Beside()

    def leave() -> None:
        for job in beside.jobs[:leaving]:
            beside.loop.inbox.put(Cancel(job.job_id))
        ended.append(beside.engine._is_aborted)

    ended: list[bool] = []
    beside.engine.disturb = leave
    while beside.engine.disturb is not None:
        beside.loop.tick()
    assert ended == [is_ended]
    beside.loop.take_messages()
    beside.loop.run()
    assert beside.answer.tokens == cold_reply(beside.prompt)


def test_prompt_cancelled_in_a_step_that_reads_it_leaves_and_the_step_counts() -> None:
    beside = Beside()
    beside.engine.disturb = lambda: beside.loop.inbox.put(Cancel(beside.prompt.job_id))
    while beside.engine.disturb is not None:
        beside.loop.tick()
    beside.loop.take_messages()
    beside.loop.run()
    assert beside.answer.finish is Finish.CANCELLED
    assert [received.tokens for received in beside.received] == [cold_reply(job) for job in beside.jobs]


# ---- on llama.cpp


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


def _replies(path: Path, *, fills_gaps: bool) -> tuple[list[list[int]], int]:
    """Greedy replies of jobs of different lengths that come one after the other, and how many prompt tokens were read
    in decode steps."""
    engine = LlamaEngine(path, LlamaOptions(lanes=LANES, window_tokens=512, threads=1, flash_attention="on"))
    rules = SchedulingRules(prefill_budget_tokens=20)
    loop = SteppedLoop(settings=msgspec.structs.replace(make_settings(LANES), scheduling=rules), engine=engine)
    loop.loop._scheduler._work.fills_gaps = fills_gaps
    received: list[Received] = []
    for seed in range(16):
        job = make_job(np.random.default_rng(seed).integers(97, 123, 150 + 40 * seed % 170).tolist(), max_tokens=30)
        received.append(loop.submit(msgspec.structs.replace(job, ignore_eos=True)))
        for _ in range(5):
            loop.tick()
    loop.run()
    engine.close()
    chunks = sum(record.prefill_tokens for record in loop.records)
    return [each.tokens for each in received], loop.records[-1].prefill_tokens_total - chunks


def test_greedy_replies_are_those_of_steps_that_read_nothing_along(tiny_path: Path) -> None:
    """The loop checks after each tick that the engine's lanes hold what the books say."""
    plain, read = _replies(tiny_path, fills_gaps=False)
    assert read == 0
    filled, read = _replies(tiny_path, fills_gaps=True)
    assert read > 20
    assert filled == plain
