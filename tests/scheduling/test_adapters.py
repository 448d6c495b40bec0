"""Jobs of several LoRA adapters: one a step, in turn; and no KV goes from one to another."""

import pytest
from tests.fixtures.scheduling import Shadow, make_job, make_settings, text

from superfluid.domain.job import Job
from superfluid.scheduling.plan import StepPlan


def _job(adapter: int, tokens: list[int], max_tokens: int = 8) -> Job:
    return make_job(tokens, max_tokens=max_tokens, adapter=adapter)


def _adapters_of(plan: StepPlan, adapters: dict[int, int]) -> set[int]:
    return {adapters[row.job_id] for row in plan.decodes}


def _step_until(shadow: Shadow, jobs: dict[int, int], adapters: set[int]) -> None:
    """The last step was one of these."""
    while _adapters_of(shadow.step(), jobs) != adapters:
        assert not shadow.scheduler.is_idle


def _decoding(*adapters: int, lanes: int = 4) -> tuple[Shadow, dict[int, int]]:
    """Jobs that all decode, by lane."""
    shadow = Shadow(make_settings(lanes=lanes))
    max_tokens = 400
    jobs = {shadow.submit(_job(adapter, text(seed, 20), max_tokens)): adapter for seed, adapter in enumerate(adapters)}
    shadow.run_until(lambda: all(shadow.reply(job_id) for job_id in jobs))
    return shadow, jobs


@pytest.mark.parametrize(
    ("adapters", "steps"),
    [
        ((0, 0, 0), [{0}]),
        ((5, 5), [{5}]),
        ((0, 5, 0, 5), [{0}, {5}]),
        ((7, 0, 5, 5), [{0}, {5}, {7}]),
    ],
)
def test_decode_steps_have_one_adapter_each_and_come_in_turn(adapters: tuple[int, ...], steps: list[set[int]]) -> None:
    shadow, jobs = _decoding(*adapters)
    _step_until(shadow, jobs, steps[-1])
    seen = [_adapters_of(shadow.step(), jobs) for _ in range(3 * len(steps))]
    assert seen == 3 * steps


def test_each_turn_advances_every_lane_once() -> None:
    shadow, jobs = _decoding(0, 5, 5, 7)
    _step_until(shadow, jobs, {7})
    before = {job_id: len(shadow.reply(job_id)) for job_id in jobs}
    for _ in range(3):
        shadow.step()
    assert {job_id: len(shadow.reply(job_id)) - before[job_id] for job_id in jobs} == dict.fromkeys(jobs, 1)


def test_prompt_and_whole_turns_of_decode_steps_alternate() -> None:
    shadow, jobs = _decoding(0, 5)
    _step_until(shadow, jobs, {0})
    jobs[shadow.submit(_job(9, text(90, 3000)))] = 9
    kinds = [{"chunk"} if plan.chunk else _adapters_of(plan, jobs) for plan in [shadow.step() for _ in range(7)]]
    assert kinds == [{5}, {"chunk"}, {0}, {5}, {"chunk"}, {0}, {5}]


def test_job_that_ends_within_a_turn_leaves_the_others_theirs() -> None:
    shadow, jobs = _decoding(0, 5, 7)
    _step_until(shadow, jobs, {0})
    shadow.cancel(next(job_id for job_id, adapter in jobs.items() if adapter == 5))
    assert [_adapters_of(shadow.step(), jobs) for _ in range(4)] == [{7}, {0}, {7}, {0}]


@pytest.mark.parametrize(("first", "second", "is_warm"), [(0, 0, True), (5, 5, True), (0, 5, False), (5, 7, False)])
@pytest.mark.parametrize("host_cache_bytes", [0, 10_000_000])
def test_prefix_is_warm_only_for_jobs_of_the_same_adapter(
    first: int, second: int, is_warm: bool, host_cache_bytes: int
) -> None:
    shadow = Shadow(make_settings(lanes=1, host_cache_bytes=host_cache_bytes))
    shadow.submit(_job(first, text(1, 300)))
    shadow.run()
    job = shadow.submit(_job(second, text(1, 300)))
    shadow.run()
    assert (shadow.warm[job] > 0) == is_warm


def test_prefix_in_host_memory_is_found_again_by_its_own_adapter_alone() -> None:
    shadow = Shadow(make_settings(lanes=1))
    for adapter in (0, 5):
        shadow.submit(_job(adapter, text(1, 600)))
        shadow.run()
    warm = []
    for adapter in (7, 0, 5):
        job = shadow.submit(_job(adapter, text(1, 600)))
        shadow.run()
        warm.append(shadow.warm[job] > 0)
    assert warm == [False, True, True]


def test_job_waits_for_no_leader_of_another_adapter() -> None:
    shadow = Shadow(make_settings(lanes=3))
    for adapter in (0, 5, 5):
        shadow.submit(_job(adapter, text(1, 2000)))
    shadow.step()
    assert len(shadow.plans[0].placements) == 2


def test_forgotten_adapter_leaves_nothing_in_lanes_and_in_host_memory() -> None:
    shadow = Shadow(make_settings(lanes=1))
    for adapter in (5, 0, 5):
        shadow.submit(_job(adapter, text(1, 600)))
        shadow.run()
    assert not shadow.scheduler.has_adapter(5)
    entries, lanes = shadow.scheduler.forget_adapter(5)
    assert lanes == [0]
    shadow.lanes[0].clear()
    for entry in entries:
        del shadow.host[entry]
    shadow.scheduler.check_integrity()
    assert entries
    job = shadow.submit(_job(0, text(1, 600)))
    assert not shadow.scheduler.has_adapter(5)
    shadow.run()
    assert shadow.warm[job] > 0


def test_adapter_is_there_while_a_job_waits_or_runs() -> None:
    shadow = Shadow(make_settings(lanes=1))
    running, waiting = [shadow.submit(_job(adapter, text(1, 100))) for adapter in (5, 7)]
    shadow.step()
    assert [shadow.scheduler.has_adapter(adapter) for adapter in (5, 7, 9)] == [True, True, False]
    shadow.cancel(waiting)
    shadow.cancel(running)
    assert not any(shadow.scheduler.has_adapter(adapter) for adapter in (5, 7))
