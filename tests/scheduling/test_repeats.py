"""A decode step is planned once more without a look, as long as a new plan would be the same; and not a tick longer."""

from collections.abc import Callable

import pytest
from tests.fixtures.scheduling import END_TOKEN, Shadow, make_job, make_settings, text

from superfluid.domain.memory import MemoryRules
from superfluid.domain.request import QosClass
from superfluid.domain.scheduling import SchedulingRules
from superfluid.domain.speculation import SpeculationRules
from superfluid.scheduling.plan import StepPlan
from superfluid.scheduling.pressure import PressureLevel
from superfluid.scheduling.repeats import MOST_REPEATS
from superfluid.scheduling.scheduler import SchedulerSettings


def decoding(shadow: Shadow, jobs: int = 2, *, max_tokens: int = 500, qos: QosClass = QosClass.AGENT) -> list[int]:
    """That many jobs, all of them decoding, and a plan that repeats the one before."""
    job_ids = [shadow.submit(make_job(text(seed + 1, 20), max_tokens=max_tokens, qos=qos)) for seed in range(jobs)]
    shadow.run_until(lambda: is_repeat(shadow))
    return job_ids


def is_repeat(shadow: Shadow) -> bool:
    return len(shadow.plans) > 1 and shadow.plans[-1] is shadow.plans[-2]


def jobs_of(plan: StepPlan) -> list[int]:
    return [row.job_id for row in plan.decodes]


def test_step_in_which_nothing_happened_is_planned_once_more() -> None:
    shadow = Shadow(make_settings())
    job_ids = decoding(shadow)
    drawn = len(shadow.streams[job_ids[0]])
    shadow.step()
    assert is_repeat(shadow)
    assert jobs_of(shadow.plans[-1]) == job_ids
    assert len(shadow.streams[job_ids[0]]) == drawn + 1


def test_repeated_plan_is_made_anew_after_a_while() -> None:
    shadow = Shadow(make_settings())
    decoding(shadow)
    for _ in range(MOST_REPEATS + 1):
        shadow.step()
    assert len({id(plan) for plan in shadow.plans[-MOST_REPEATS - 2 :]}) == 2


def test_all_repeats_equal_new_plans() -> None:
    shadow = Shadow(make_settings())
    decoding(shadow, max_tokens=60)
    shadow.checked_repeats = 1
    shadow.run()
    assert shadow.repeats > 40


@pytest.mark.parametrize(
    "change",
    [
        lambda shadow, _: shadow.submit(make_job(text(9, 20))),
        lambda shadow, job_ids: shadow.cancel(job_ids[0]),
        lambda shadow, _: shadow.scheduler.set_background_rate(3),
        lambda shadow, _: shadow.scheduler.system_pressure(PressureLevel.WARNING),
        lambda shadow, _: shadow.scheduler.hold_background(is_held=True),
    ],
    ids=["submit", "cancel", "background_rate", "pressure", "held_background"],
)
def test_plan_is_not_repeated_after(change: Callable[[Shadow, list[int]], object]) -> None:
    shadow = Shadow(make_settings())
    job_ids = decoding(shadow)
    change(shadow, job_ids)
    shadow.step()
    assert not is_repeat(shadow)


def test_reply_that_ends_is_in_no_later_plan() -> None:
    shadow = Shadow(make_settings(), lambda stream: END_TOKEN if len(stream) == 40 else 5)
    shadow.submit(make_job(text(1, 30), max_tokens=100))
    shadow.submit(make_job(text(2, 20), max_tokens=100))
    shadow.run_until(lambda: len(shadow.finishes) == 1)
    assert is_repeat(shadow)
    shadow.step()
    assert len(shadow.plans[-1].decodes) == 1


def test_lane_that_was_lost_reads_its_prompt_again() -> None:
    shadow = Shadow(make_settings())
    job_ids = decoding(shadow)
    shadow.faulty_jobs.add(job_ids[0])
    shadow.step()
    shadow.step()
    assert jobs_of(shadow.plans[-1]) == job_ids[1:]


def test_full_lanes_with_a_queue_behind_them_repeat_their_step() -> None:
    shadow = Shadow(make_settings(lanes=2))
    decoding(shadow, 2)
    shadow.submit(make_job(text(9, 20)))
    shadow.step()
    shadow.step()
    assert is_repeat(shadow)


def test_queue_that_may_take_a_lane_by_its_class_has_every_plan_made_anew() -> None:
    shadow = Shadow(make_settings(lanes=2, rules=SchedulingRules(class_lanes=(1, None, None, None))))
    decoding(shadow, 1, qos=QosClass.INTERACTIVE)
    shadow.submit(make_job(text(9, 20), qos=QosClass.INTERACTIVE))
    shadow.step()
    shadow.step()
    assert not is_repeat(shadow)


@pytest.mark.parametrize(
    "settings",
    [
        make_settings(rules=SchedulingRules(decode_budget_tokens=1)),
        make_settings(speculation=SpeculationRules(strategy="draft-model", has_gate=False)),
    ],
    ids=["decode_budget", "drafts"],
)
def test_step_that_differs_from_turn_to_turn_is_not_repeated(settings: SchedulerSettings) -> None:
    shadow = Shadow(settings)
    for seed in (1, 2):
        shadow.submit(make_job(text(seed, 20), max_tokens=30))
    shadow.run_until(lambda: len(shadow.plans) > 20)
    assert len({id(plan) for plan in shadow.plans}) == len(shadow.plans)


def test_slow_background_lanes_are_not_repeated() -> None:
    shadow = Shadow(make_settings())
    shadow.scheduler.set_background_rate(2)
    shadow.submit(make_job(text(1, 20), max_tokens=30))
    shadow.submit(make_job(text(2, 20), max_tokens=30, qos=QosClass.INTERACTIVE))
    shadow.run_until(lambda: len(shadow.plans) > 20)
    assert len({id(plan) for plan in shadow.plans}) == len(shadow.plans)


def test_copy_in_host_memory_ends_the_repeats() -> None:
    shadow = Shadow(make_settings(lanes=2))
    shadow.submit(make_job(text(5, 200), max_tokens=2))
    shadow.run()
    decoding(shadow, 1)
    free = next(view.lane for view in shadow.scheduler.lane_views() if not view.job_id and view.held_tokens)
    assert shadow.copy(free) is not None
    shadow.step()
    assert not is_repeat(shadow)


def test_growing_streams_are_relieved_in_the_tick_that_is_due() -> None:
    """Room by room: a run that may repeat evicts in the same tick as one that never does."""
    evictions = []
    for never_repeats in (False, True):
        rules = MemoryRules(pressure_high_percent=50, pressure_low_percent=20)
        shadow = Shadow(make_settings(lanes=2, window_tokens=1000, host_cache_bytes=60_000, memory=rules))
        shadow.submit(make_job(text(5, 300), max_tokens=2))
        shadow.run()
        assert shadow.copy(0) is not None
        shadow.submit(make_job(text(6, 300), max_tokens=600))
        shadow.submit(make_job(text(7, 30), max_tokens=600))
        for tick in range(900):
            if never_repeats:
                shadow.scheduler.hold_background(is_held=False)
            if shadow.step().eviction_look is not None:
                evictions.append(tick)
                break
    assert len(evictions) == 2
    assert evictions[0] == evictions[1] > 100
