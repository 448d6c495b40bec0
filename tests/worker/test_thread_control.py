"""The threads of an engine whose cores others want: what the tick loop sets, and the watch over the step in flight."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest
from tests.fixtures.tick_loop import CostlyEngine, SteppedClock, SteppedLoop, cold_reply, make_job, make_settings, words

from superfluid.engine.fake import FakeEngine
from superfluid.engine.interface import Row, StepResult
from superfluid.scheduling.plan import Chunk, DecodeLane, StepPlan
from superfluid.worker.executor import Execution
from superfluid.worker.interruption import Interruption
from superfluid.worker.thread_control import ThreadControl
from superfluid.worker.threads import CoreReading, ThreadPolicy

CHUNK = Chunk(7, 0, 0, 100, False, expected_seconds=0.4)
DECODES = StepPlan(decodes=(DecodeLane(1, 0),))


class _CrowdedEngine(CostlyEngine):
    """Two threads, one of which loses its core after fifty steps: they then wait for all of a very long step."""

    def __init__(self, clock: SteppedClock) -> None:
        super().__init__(lanes=4, clock=clock)
        super().set_threads(2)
        self.threads_set: list[int] = []
        self._steps_taken = 0
        self._waited = 0.0

    def set_threads(self, threads: int) -> None:
        super().set_threads(threads)
        self.threads_set.append(threads)

    def step(self, rows: Sequence[Row]) -> StepResult:
        self._steps_taken += 1
        if self._steps_taken > 50 and self.facts.threads == 2:
            self._clock.now += 3.0
            self._waited += 3.0
        return super().step(rows)

    def read_cores(self) -> CoreReading:
        waited, self._waited = self._waited, 0.0
        return CoreReading(0.25, waited, 1.0 if self._steps_taken > 50 else 0.0)


@pytest.mark.parametrize(("adapts", "threads_set"), [(True, [1]), (False, [])])
def test_loop_sets_the_threads_of_the_engine_as_the_policy_says(*, adapts: bool, threads_set: list[int]) -> None:
    settings = msgspec.structs.replace(make_settings(4), adapts_threads=adapts)
    clock = SteppedClock()
    engine = _CrowdedEngine(clock)
    loop = SteppedLoop(settings=settings, engine=engine, clock=clock, read_cores=engine.read_cores)
    job = make_job(words(1, 20), max_tokens=200)
    received = loop.submit(job)
    loop.run()
    assert engine.threads_set == threads_set
    assert received.tokens == cold_reply(job)


class _Engine(FakeEngine):
    """Tells whether its step is to end, and whether that was ever so."""

    def __init__(self) -> None:
        super().__init__(lanes=1)
        self.is_aborting = False
        self.has_aborted = threading.Event()

    def abort(self) -> None:
        self.is_aborting = True
        self.has_aborted.set()

    def resume(self) -> None:
        self.is_aborting = False


@dataclass
class _Watched:
    """A control whose clock and whose threads' waiting are set by hand. ``now`` and ``waited`` are in seconds."""

    policy: ThreadPolicy
    engine: _Engine
    clock: SteppedClock
    interruption: Interruption
    control: ThreadControl
    threads_set: list[int]
    waited: float = 0.0

    def after(self, seconds: float, *, waited: float) -> bool:
        """A look at the step in flight, that much later. Whether it was ended."""
        self.clock.now += seconds
        self.waited += waited
        self.control.look()
        return self.engine.is_aborting


def _watched(threads: int = 2) -> _Watched:
    engine, clock = _Engine(), SteppedClock()
    threads_set: list[int] = []
    policy = ThreadPolicy(threads, threads)
    interruption = Interruption(engine, clock)

    def read_waited() -> float:
        waited, watched.waited = watched.waited, 0.0
        return waited

    control = ThreadControl(policy, threads_set.append, interruption, clock, read_waited=read_waited)
    watched = _Watched(policy, engine, clock, interruption, control, threads_set)
    return watched


def test_step_whose_threads_wait_for_cores_is_ended_and_goes_on_with_a_thread_fewer() -> None:
    watched = _watched()
    with watched.interruption.during_decode(frozenset({1})):
        assert not watched.after(0.1, waited=0.1)
        assert watched.after(0.15, waited=0.15)
    watched.control.after_tick(DECODES, Execution(is_decode_cut=True, decode_seconds=0.25))
    assert watched.threads_set == [1]
    with watched.interruption.during_decode(frozenset({1})):
        assert not watched.after(0.1, waited=0.1)
        assert not watched.after(9.0, waited=9.0), "nothing can be done about it"


@pytest.mark.parametrize(
    ("looks", "is_ended"),
    [
        ([(0.1, 0.0), (0.5, 0.5)], True),
        ([(0.1, 0.0), (0.5, 0.2)], False),
        ([(0.1, 0.0), (0.5, 0.3)], False),
        ([(0.1, 9.0), (0.5, 0.1)], False),
        ([(0.1, 0.0), (0.05, 0.05)], False),
        ([(0.1, 0.0), (0.05, 0.0), (0.3, 0.3)], True),
    ],
)
@pytest.mark.parametrize("kind", ["decode", "chunk"])
def test_step_is_ended_only_when_it_is_overdue_and_its_threads_wait(
    looks: list[tuple[float, float]], kind: str, *, is_ended: bool
) -> None:
    watched = _watched()
    step = (
        watched.interruption.during_decode(frozenset({1})) if kind == "decode" else watched.interruption.during(CHUNK)
    )
    with step:
        assert [watched.after(seconds, waited=waited) for seconds, waited in looks][-1] is is_ended


def test_step_that_takes_as_long_as_it_should_is_not_ended() -> None:
    watched = _watched()
    watched.policy.stepped(1, 5.0, 5.0)
    with watched.interruption.during_decode(frozenset({1})):
        watched.after(0.1, waited=0.0)
        assert not watched.after(9.0, waited=9.0)
        assert watched.after(2.0, waited=2.0)


def test_each_step_is_watched_from_its_own_beginning() -> None:
    watched = _watched()
    for _ in range(20):
        with watched.interruption.during_decode(frozenset({1})):
            assert not watched.after(0.1, waited=0.1)
        assert not watched.after(0.1, waited=0.1), "no step is in flight"


def test_end_that_comes_too_late_hits_no_later_step() -> None:
    watched = _watched()
    with watched.interruption.during_decode(frozenset({1})):
        late = watched.interruption.in_flight
    assert late is not None
    with watched.interruption.during_decode(frozenset({1})):
        watched.interruption.end(late)
        assert not watched.engine.is_aborting
    assert not watched.interruption.take_overdue()


def test_watching_thread_ends_a_step_by_itself_and_is_gone_in_the_end() -> None:
    engine = _Engine()
    clock = SteppedClock()
    interruption = Interruption(engine, clock)

    def read_waited() -> float:
        clock.now += 10.0
        return 10.0

    control = ThreadControl(ThreadPolicy(2), lambda _: None, interruption, clock, read_waited=read_waited)
    before = threading.active_count()
    with control.watching():
        control.before_tick()
        with interruption.during_decode(frozenset({1})):
            assert engine.has_aborted.wait(10.0)
    assert threading.active_count() == before


def test_nobody_watches_where_the_system_does_not_tell() -> None:
    clock = SteppedClock()
    control = ThreadControl(ThreadPolicy(2), lambda _: None, Interruption(_Engine(), clock), clock)
    before = threading.active_count()
    with control.watching():
        assert threading.active_count() == before
