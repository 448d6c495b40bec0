"""With how many threads to compute: a machine that is shared, second by second, and the count that follows."""

import random
from dataclasses import dataclass

import pytest

from superfluid.worker.threads import LONGEST_REST_SECONDS, CoreReading, ThreadPolicy

QUIET = 0.02
"""A decode step over four lanes with all threads."""


@dataclass
class Machine:
    """Two cores unless said; ``others`` want so many of them. ``can_see``: the system tells about it."""

    policy: ThreadPolicy
    cpus: int = 2
    can_see: bool = True
    now: float = 0.0
    steps: int = 0
    waited: float = 0.0
    read_at: float = 0.0

    def step_seconds(self, others: float) -> float:
        """As measured: a thread fewer costs its share; more threads than free cores cost seconds, if for good."""
        threads = self.policy.threads
        seconds = QUIET * self._most / threads
        crowded = threads + others - self.cpus
        if crowded <= 0.5:
            return seconds * (1 + 0.8 * max(0.0, crowded))
        return seconds + 1.0

    def run(
        self, others: float, seconds: float, *, lanes: int = 4, slowed: float = 1.0, slowed_aside: float = 1.0
    ) -> dict[int, float]:
        """Decodes that long; returns the time spent with each count. ``slowed`` and ``slowed_aside``: with all threads
        or fewer, by something that nobody waits for."""
        spent: dict[int, float] = {}
        end = self.now + seconds
        while self.now < end:
            threads = self.policy.threads
            step = self.step_seconds(others) * (slowed_aside if self.policy.is_aside else slowed)
            self.now += step
            self.steps += 1
            self.waited += step * min(1.0, max(0.0, threads + others - self.cpus))
            spent[threads] = spent.get(threads, 0.0) + step
            self.policy.stepped(lanes, step, self.now)
            if self.policy.is_reading_due and self.can_see:
                self.policy.take(CoreReading(self.now - self.read_at, self.waited, others), self.now)
                self.waited, self.read_at = 0.0, self.now
            assert 1 <= self.policy.threads <= self._most
        return spent

    def __post_init__(self) -> None:
        self._most = self.policy.threads


def _machine(threads: int = 2, cpus: int = 2, *, can_see: bool = True) -> Machine:
    machine = Machine(ThreadPolicy(threads, cpus), cpus, can_see)
    assert set(machine.run(0.0, 3.0)) == {threads}
    return machine


@pytest.mark.parametrize(
    ("situation", "threads", "cpus", "others", "expected"),
    [
        ("quiet", 2, 2, 0.0, 2),
        ("the daemon and eight clients", 2, 2, 0.25, 2),
        ("somebody wants a third of a core", 2, 2, 0.35, 2),
        ("somebody wants two thirds of one", 2, 2, 0.7, 1),
        ("somebody wants a core", 2, 2, 1.0, 1),
        ("everybody wants them", 2, 2, 3.0, 1),
        ("one of four cores is wanted", 4, 4, 1.0, 3),
        ("three of four are", 4, 4, 3.0, 1),
        ("more threads of cores than are asked for", 2, 4, 1.0, 2),
        ("hyperthreads are left", 4, 8, 3.0, 4),
    ],
)
def test_policy_settles_on_as_many_threads_as_there_is_room_for(
    situation: str, threads: int, cpus: int, others: float, expected: int
) -> None:
    machine = _machine(threads, cpus)
    machine.run(others, 6.0)
    spent = machine.run(others, 60.0)
    assert spent.get(expected, 0.0) > 0.99 * sum(spent.values()), situation


def test_policy_steps_aside_with_the_first_step_that_took_far_too_long() -> None:
    machine = _machine()
    spent = machine.run(1.0, 5.0)
    assert spent[2] <= 1.1


def test_policy_knows_a_crowd_though_it_never_saw_a_quiet_step() -> None:
    machine = Machine(ThreadPolicy(2, 2))
    spent = machine.run(1.0, 10.0)
    assert spent[2] <= 1.1


def test_policy_comes_back_soon_after_the_crowd_has_left_and_stays() -> None:
    machine = _machine()
    machine.run(1.0, 5.0)
    assert machine.policy.is_aside
    assert machine.run(0.05, 30.0)[1] < 1.0
    assert not machine.policy.is_aside


def test_one_slow_step_changes_nothing() -> None:
    machine = _machine()
    machine.now += 0.15
    machine.policy.stepped(4, 0.15, machine.now)
    assert set(machine.run(0.0, 2.0)) == {2}


def test_crowds_that_come_and_go_are_met_less_and_less_often() -> None:
    """Somebody computes for half a second in each second: whenever it looks free, it is not for long."""
    machine = _machine()
    spent = {1: 0.0, 2: 0.0}
    for _ in range(120):
        for others in (1.0, 0.0):
            for threads, seconds in machine.run(others, 0.5).items():
                spent[threads] += seconds
    assert spent[2] < 0.25 * spent[1]


def test_policy_that_was_wrong_often_forgets_it_once_the_machine_is_quiet() -> None:
    machine = _machine()
    for _ in range(20):
        machine.run(1.0, 0.5)
        machine.run(0.0, 0.5)
    machine.run(0.0, LONGEST_REST_SECONDS + 10.0)
    assert not machine.policy.is_aside
    machine.run(1.0, 2.0)
    assert machine.run(0.0, 10.0)[1] < 1.0


@pytest.mark.parametrize(
    ("situation", "slowed", "slowed_aside", "others", "can_see", "threads"),
    [
        ("shared, and still the faster way", 1.3, 1.0, 0.3, True, 2),
        ("shared, and slower than one thread alone", 3.0, 1.0, 0.3, True, 1),
        ("nobody waits: conversations are longer", 3.0, 1.0, 0.0, True, 2),
        ("the same where nobody tells", 3.0, 1.0, 0.0, False, 1),
        ("the machine has become slow as a whole", 3.0, 3.0, 0.3, True, 2),
    ],
)
def test_slow_steps_count_where_threads_wait_and_fewer_threads_are_faster(
    situation: str, slowed: float, slowed_aside: float, others: float, *, can_see: bool, threads: int
) -> None:
    machine = _machine(can_see=can_see)
    spent = machine.run(others, 120.0, slowed=slowed, slowed_aside=slowed_aside)
    assert spent.get(threads, 0.0) > 0.85 * sum(spent.values()), situation


def test_policy_that_is_told_nothing_steps_aside_and_tries_again_ever_later() -> None:
    machine = _machine(can_see=False)
    spent = machine.run(1.0, 300.0)
    assert machine.policy.is_aside
    assert spent[2] < 0.4 * spent[1]
    machine.run(0.0, LONGEST_REST_SECONDS + 3.0)
    assert not machine.policy.is_aside
    assert set(machine.run(0.0, 20.0)) == {2}


def test_counts_of_lanes_are_measured_each_by_itself() -> None:
    policy = ThreadPolicy(2)
    generator = random.Random(1)
    now = 0.0
    for _ in range(300):
        lanes = generator.choice((1, 8))
        seconds = 0.005 * lanes
        now += seconds
        policy.stepped(lanes, seconds, now)
    assert policy.threads == 2


def test_growing_streams_are_no_disturbance() -> None:
    policy = ThreadPolicy(2)
    step, now = QUIET, 0.0
    for _ in range(4000):
        now += step
        policy.stepped(4, step, now)
        step *= 1.0004
        assert policy.threads == 2


def test_single_thread_has_no_choice() -> None:
    machine = Machine(ThreadPolicy(1, 2))
    assert set(machine.run(2.0, 10.0)) == {1}
    assert not machine.policy.is_reading_due
    machine.policy.interrupted(machine.now)
    assert (machine.policy.threads, machine.policy.patience_seconds(4)) == (1, None)


def test_interrupted_step_costs_a_thread_at_once_and_what_was_waited_before_none_more() -> None:
    policy = ThreadPolicy(4, 4)
    policy.stepped(4, QUIET, QUIET)
    policy.computed(0.5)
    policy.interrupted(0.6)
    assert policy.threads == 3
    policy.take(CoreReading(0.6, 0.5, 1.0), 0.6)
    assert policy.threads == 3


def test_what_idle_threads_have_waited_for_in_a_long_time_is_no_crowd() -> None:
    policy = ThreadPolicy(2, 2)
    policy.computed(0.3)
    policy.take(CoreReading(3600.0, 0.5, 0.1), 3600.0)
    assert policy.threads == 2


def test_system_that_does_not_tell_is_not_asked_with_every_step() -> None:
    policy = ThreadPolicy(2, 2)
    policy.computed(0.3)
    assert policy.is_reading_due
    policy.take(None, 0.3)
    assert not policy.is_reading_due


def test_patience_grows_with_what_the_step_should_take() -> None:
    policy = ThreadPolicy(2, 2)
    unknown = policy.patience_seconds(4)
    policy.stepped(4, 1.0, 1.0)
    known = policy.patience_seconds(4)
    assert unknown is not None
    assert known == unknown + 2.0
    assert policy.patience_seconds(0) == unknown
