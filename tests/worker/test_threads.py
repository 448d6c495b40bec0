"""With how many threads to decode: step times one after another, and the count that follows."""

import random
from collections.abc import Sequence

import msgspec
import pytest
from tests.fixtures.tick_loop import CostlyEngine, SteppedClock, SteppedLoop, make_job, make_settings, words

from superfluid.engine.interface import Row, StepResult
from superfluid.worker.threads import FIRST_REST_SECONDS, WINDOW_STEPS, ThreadPolicy

QUIET, ALONE = 0.037, 0.070


def _feed(policy: ThreadPolicy, seconds: float, *, busy: float = 0.0, one: float = ALONE, lanes: int = 4) -> set[int]:
    """The counts seen while steps go by. With all threads a step takes ``busy`` (or quiet), with one fewer ``one``."""
    seen = set()
    spent = 0.0
    while spent < seconds:
        step = one if policy.is_aside else (busy or QUIET)
        seen.add(policy.threads)
        policy.observe(lanes, step)
        spent += step
    return seen


def _learned(threads: int = 2) -> ThreadPolicy:
    policy = ThreadPolicy(threads)
    _feed(policy, 3.0)
    return policy


@pytest.mark.parametrize(
    ("busy", "threads"),
    [
        (QUIET, {2}),
        # a third of a core gone: two threads are still the better choice
        (1.27 * QUIET, {2}),
        (1.9 * QUIET, {2}),
        # a whole core gone: one thread is steady
        (3.5 * QUIET, {2, 1}),
    ],
)
def test_policy_steps_aside_only_where_fewer_threads_are_faster(busy: float, threads: set[int]) -> None:
    assert _feed(_learned(), 4.0, busy=busy) == threads


def test_one_slow_step_changes_nothing() -> None:
    policy = _learned()
    policy.observe(4, 20 * QUIET)
    assert policy.threads == 2


def test_policy_comes_back_soon_after_the_disturbance_is_over() -> None:
    policy = _learned()
    _feed(policy, 2.5, busy=4 * QUIET)
    assert policy.is_aside
    _feed(policy, FIRST_REST_SECONDS + 1.0)
    assert not policy.is_aside
    assert _feed(policy, 20.0) == {2}


def test_vain_tries_become_rare() -> None:
    policy = _learned()
    steps = {1: 0, 2: 0}
    spent = 0.0
    while spent < 120.0:
        step = ALONE if policy.is_aside else 4 * QUIET
        steps[policy.threads] += 1
        policy.observe(4, step)
        spent += step
    assert steps[2] < 0.08 * steps[1]


def test_counts_of_lanes_are_measured_each_by_itself() -> None:
    policy = _learned()
    generator = random.Random(1)
    for _ in range(300):
        lanes = generator.choice((1, 4))
        policy.observe(lanes, QUIET if lanes == 4 else 0.012)
    assert policy.threads == 2


def test_growing_streams_are_no_disturbance() -> None:
    policy = _learned()
    step = QUIET
    for _ in range(4000):
        policy.observe(4, step)
        step *= 1.0004
        assert policy.threads == 2


def test_single_thread_has_no_choice() -> None:
    assert _feed(ThreadPolicy(1), 5.0, busy=1.0) == {1}


def test_policy_that_saw_no_quiet_step_stays() -> None:
    assert _feed(ThreadPolicy(2), 5.0, busy=0.2) == {2}


def test_window_is_short_enough_to_react_within_some_seconds() -> None:
    assert WINDOW_STEPS * 4 * QUIET < 4.0


def test_loop_sets_the_threads_of_the_engine_as_the_policy_says() -> None:
    settings = msgspec.structs.replace(make_settings(4), adapts_threads=True)
    clock = SteppedClock()
    engine = _SlowedEngine(clock)
    loop = SteppedLoop(settings=settings, engine=engine, clock=clock)
    loop.submit(make_job(words(1, 20), max_tokens=400))
    loop.run()
    assert engine.threads_set[0] == 1


class _SlowedEngine(CostlyEngine):
    """Two threads, one of which loses its core after fifty steps."""

    def __init__(self, clock: SteppedClock) -> None:
        super().__init__(lanes=4, clock=clock)
        self._steps_taken = 0
        self.set_threads(2)
        self.threads_set: list[int] = []

    def set_threads(self, threads: int) -> None:
        super().set_threads(threads)
        if hasattr(self, "threads_set"):
            self.threads_set.append(threads)

    def step(self, rows: Sequence[Row]) -> StepResult:
        self._steps_taken += 1
        if self._steps_taken > 50 and self.facts.threads == 2:
            self._clock.now += 0.05
        return super().step(rows)
