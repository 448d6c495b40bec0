"""Classes, aging, caps, jobs that run alone: situations and who gets a lane."""

from dataclasses import dataclass

import pytest
from tests.fixtures.scheduling import Shadow, make_job, make_settings, text

from superfluid.domain.request import QosClass
from superfluid.domain.scheduling import SchedulingRules, parse_class

INTERACTIVE, COMPLETION, AGENT, BACKGROUND = QosClass
TICK = SchedulingRules().tick_target_seconds


@dataclass(frozen=True)
class Waiting:
    """A job that has waited for so many ticks when a lane becomes free."""

    qos: QosClass
    ticks: float = 0.0
    alone: bool = False


def _order(jobs: list[Waiting], **rules: int) -> list[int]:
    """The places in ``jobs`` in the order in which one lane was given to them."""
    shadow = Shadow(make_settings(lanes=1, window_tokens=100_000, rules=SchedulingRules(**rules)))  # type: ignore[arg-type]
    # A lane that nobody can take away is held until all have waited long enough.
    holder = shadow.submit(make_job(text(99, 20), max_tokens=90_000, qos=INTERACTIVE))
    shadow.step()
    ids: dict[int, int] = {}
    longest = max(job.ticks for job in jobs)
    start = shadow.seconds
    for place in sorted(range(len(jobs)), key=lambda place: (-jobs[place].ticks, place)):
        job = jobs[place]
        shadow.run_until(lambda: shadow.seconds >= start + (longest - job.ticks) * TICK)  # noqa: B023
        ids[shadow.submit(make_job(text(place + 1, 20), max_tokens=1, qos=job.qos, is_batch_invariant=job.alone))] = (
            place
        )
    shadow.run_until(lambda: shadow.seconds >= start + (longest + 0.5) * TICK)
    shadow.cancel(holder)
    shadow.run()
    return [ids[job_id] for job_id in shadow.admitted() if job_id in ids]


@pytest.mark.parametrize(
    ("jobs", "order"),
    [
        # better classes first, whoever came first
        ([Waiting(BACKGROUND), Waiting(AGENT), Waiting(COMPLETION), Waiting(INTERACTIVE)], [3, 2, 1, 0]),
        # first in, first out within a class
        ([Waiting(AGENT, 2), Waiting(AGENT, 3), Waiting(AGENT, 1)], [1, 0, 2]),
        # a class better for every eight ticks; the better own class among equals
        ([Waiting(AGENT, 7), Waiting(COMPLETION)], [1, 0]),
        ([Waiting(AGENT, 8), Waiting(COMPLETION)], [1, 0]),
        ([Waiting(AGENT, 16), Waiting(COMPLETION)], [0, 1]),
        ([Waiting(AGENT, 16), Waiting(INTERACTIVE)], [1, 0]),
        ([Waiting(AGENT, 24), Waiting(INTERACTIVE)], [0, 1]),
        ([Waiting(BACKGROUND, 31), Waiting(INTERACTIVE)], [1, 0]),
        ([Waiting(BACKGROUND, 32), Waiting(INTERACTIVE)], [0, 1]),
        # those that wait together age together
        ([Waiting(BACKGROUND, 40), Waiting(INTERACTIVE, 40)], [1, 0]),
    ],
)
def test_free_lane_goes_to_the_best_effective_class(jobs: list[Waiting], order: list[int]) -> None:
    assert _order(jobs) == order


@pytest.mark.parametrize(("starvation_ticks", "order"), [(1, [0, 1]), (2, [1, 0])])
def test_starvation_ticks_set_how_fast_a_job_improves(starvation_ticks: int, order: list[int]) -> None:
    assert _order([Waiting(AGENT, 3), Waiting(INTERACTIVE)], starvation_ticks=starvation_ticks) == order


def test_grant_is_counted_where_waiting_was_what_decided() -> None:
    shadow = Shadow(make_settings(lanes=1, window_tokens=100_000))
    holder = shadow.submit(make_job(text(9, 20), max_tokens=90_000, qos=INTERACTIVE))
    agent = shadow.submit(make_job(text(1, 20), max_tokens=1))
    shadow.run_until(lambda: shadow.seconds > 25 * TICK)
    shadow.submit(make_job(text(2, 20), max_tokens=1, qos=INTERACTIVE))
    shadow.cancel(holder)
    shadow.run()
    assert shadow.admitted()[1] == agent
    assert shadow.scheduler.statistics().counters.starvation_grants_total == 1


@pytest.mark.parametrize(
    ("caps", "running"),
    [
        ((None, None, None, None), [AGENT, AGENT, AGENT, BACKGROUND]),
        ((None, None, 2, None), [AGENT, AGENT, BACKGROUND, BACKGROUND]),
        ((None, None, 2, 1), [AGENT, AGENT, BACKGROUND]),
    ],
)
def test_class_lanes_bound_a_class_and_leave_the_rest_to_others(
    caps: tuple[int | None, int | None, int | None, int | None], running: list[QosClass]
) -> None:
    shadow = Shadow(make_settings(lanes=4, rules=SchedulingRules(class_lanes=caps)))
    jobs = {
        shadow.submit(make_job(text(seed, 20), qos=qos)): qos
        for seed, qos in enumerate([AGENT, AGENT, AGENT, BACKGROUND, BACKGROUND], start=1)
    }
    shadow.step()
    assert sorted(jobs[job_id] for job_id in shadow.admitted()) == running
    shadow.run()
    assert shadow.finishes.keys() == jobs.keys()


def test_class_at_its_bound_takes_no_lane_from_others_either() -> None:
    rules = SchedulingRules(class_lanes=(1, None, None, None))
    shadow = Shadow(make_settings(lanes=2, rules=rules))
    for seed, qos in enumerate([INTERACTIVE, AGENT, INTERACTIVE], start=1):
        shadow.submit(make_job(text(seed, 20), max_tokens=50, qos=qos))
        shadow.step()
    shadow.run()
    assert shadow.preempted() == []


# ---- jobs that run alone


@pytest.mark.parametrize(
    ("jobs", "order"),
    [
        # it holds back its equals and what is worse, not what is better
        ([Waiting(AGENT, 1, alone=True), Waiting(AGENT), Waiting(INTERACTIVE)], [2, 0, 1]),
        ([Waiting(INTERACTIVE, 1, alone=True), Waiting(INTERACTIVE)], [0, 1]),
        # among equal effective classes it is first
        ([Waiting(BACKGROUND, 8, alone=True), Waiting(AGENT)], [0, 1]),
    ],
)
def test_job_that_runs_alone_has_its_place_in_the_order(jobs: list[Waiting], order: list[int]) -> None:
    assert _order(jobs) == order


def test_job_that_runs_alone_waits_for_an_empty_engine_and_keeps_it() -> None:
    shadow = Shadow(make_settings(lanes=4))
    running = shadow.submit(make_job(text(1, 20), max_tokens=20))
    shadow.step()
    alone = shadow.submit(make_job(text(2, 700), max_tokens=20, is_batch_invariant=True))
    later = shadow.submit(make_job(text(3, 20)))
    shadow.run_until(lambda: shadow.is_over(running))
    assert shadow.admitted() == [running]
    shadow.run_until(lambda: shadow.is_over(alone))
    assert shadow.admitted() == [running, alone]
    assert all(len(plan.decodes) <= 1 for plan in shadow.plans)
    shadow.run()
    assert shadow.admitted() == [running, alone, later]


def test_job_that_runs_alone_is_interrupted_by_nobody() -> None:
    shadow = Shadow(make_settings(lanes=1))
    alone = shadow.submit(make_job(text(1, 20), max_tokens=30, qos=BACKGROUND, is_batch_invariant=True))
    shadow.step()
    chat = shadow.submit(make_job(text(2, 20), qos=INTERACTIVE))
    shadow.run()
    assert shadow.admitted() == [alone, chat]


def test_chunks_of_a_job_that_runs_alone_do_not_depend_on_measured_rates() -> None:
    shadow = Shadow(make_settings(lanes=2))
    shadow.submit(make_job(text(1, 1200), max_tokens=2, is_batch_invariant=True))
    shadow.run()
    assert [plan.chunk.length for plan in shadow.plans if plan.chunk is not None] == [512, 512, 176]


# ---- names


@pytest.mark.parametrize(
    ("text_", "qos"),
    [
        ("interactive", INTERACTIVE),
        (" Interactive_Chat ", INTERACTIVE),
        ("inline-completion", COMPLETION),
        ("COMPLETION", COMPLETION),
        ("foreground", AGENT),
        ("foreground_agent", AGENT),
        ("agent", AGENT),
        ("background-agent", BACKGROUND),
        ("3", BACKGROUND),
        ("0", INTERACTIVE),
        ("4", None),
        ("", None),
        ("-1", None),
        ("urgent", None),
    ],
)
def test_parse_class_knows_names_aliases_and_numbers(text_: str, qos: QosClass | None) -> None:
    assert parse_class(text_) is qos
