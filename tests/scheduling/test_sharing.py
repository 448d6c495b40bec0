"""Jobs with a common prefix compute it once: waiting for the first of them, and being seeded from it."""

import pytest
from tests.fixtures.scheduling import Shadow, make_job, make_settings, text

from superfluid.domain.reply import Finish
from superfluid.scheduling.admission import PATIENCE_TICKS


def _followers(shadow: Shadow, count: int, prefix: list[int], tail: int = 20) -> list[int]:
    return [shadow.submit(make_job([*prefix, *text(100 + index, tail)])) for index in range(count)]


@pytest.mark.parametrize("host_cache_bytes", [0, 10_000_000])
@pytest.mark.parametrize(("count", "lanes"), [(8, 8), (32, 8), (8, 3)])
def test_plan_jobs_sent_together_prefill_their_common_prefix_once(
    host_cache_bytes: int, count: int, lanes: int
) -> None:
    shadow = Shadow(make_settings(lanes=lanes, host_cache_bytes=host_cache_bytes))
    jobs = _followers(shadow, count, text(1, 1000))
    shadow.run()
    assert shadow.prefilled <= 1000 + count * 24
    assert [shadow.finishes[job_id] for job_id in jobs] == [Finish.LENGTH] * count


def test_plan_jobs_that_trickle_in_wait_for_the_first_of_them() -> None:
    shadow = Shadow(make_settings(lanes=8))
    prefix = text(1, 1000)
    for index in range(8):
        shadow.submit(make_job([*prefix, *text(100 + index, 20)]))
        shadow.step()
    shadow.run()
    assert shadow.prefilled <= 1000 + 8 * 24


def test_plan_identical_prompts_evaluate_two_tokens_each() -> None:
    shadow = Shadow(make_settings(lanes=4))
    for _ in range(4):
        shadow.submit(make_job(text(1, 500)))
    shadow.run()
    assert shadow.prefilled == 500 + 3 * 2


def test_plan_several_followers_share_one_save() -> None:
    shadow = Shadow(make_settings(lanes=8))
    _followers(shadow, 8, text(1, 1000))
    shadow.run()
    assert sum(len(plan.saves) for plan in shadow.plans) == 1


def test_plan_prefix_shared_in_steps_is_handed_on_in_steps() -> None:
    shadow = Shadow(make_settings(lanes=4))
    common, branch = text(1, 500), text(2, 500)
    shadow.submit(make_job([*common, *text(3, 500)]))
    shadow.submit(make_job([*common, *branch, *text(4, 20)]))
    shadow.submit(make_job([*common, *branch, *text(5, 20)]))
    shadow.run()
    assert shadow.prefilled <= 1000 + 500 + 2 * 24


def test_plan_unrelated_job_passes_those_that_wait() -> None:
    shadow = Shadow(make_settings(lanes=3))
    _followers(shadow, 3, text(1, 1000))
    shadow.step()
    unrelated = shadow.submit(make_job(text(50, 30)))
    assert [place.job_id for place in shadow.step().placements] == [unrelated]


def test_plan_waiting_jobs_are_admitted_in_their_order() -> None:
    shadow = Shadow(make_settings(lanes=3))
    jobs = _followers(shadow, 6, text(1, 400))
    shadow.run()
    assert [place.job_id for plan in shadow.plans for place in plan.placements] == jobs


def test_plan_short_common_prefix_is_not_waited_for() -> None:
    shadow = Shadow(make_settings(lanes=4))
    _followers(shadow, 4, text(1, 60), tail=200)
    assert len(shadow.step().placements) == 4


def test_plan_cancelled_leader_sets_its_followers_free_and_one_of_them_leads() -> None:
    shadow = Shadow(make_settings(lanes=4))
    leader, *followers = _followers(shadow, 4, text(1, 1000))
    for _ in range(3):
        shadow.step()
    covered = shadow.prefilled
    shadow.cancel(leader)
    plan = shadow.step()
    assert [(place.job_id, place.lane, place.keep) for place in plan.placements] == [(followers[0], 0, covered)]
    shadow.run()
    assert shadow.prefilled <= 1000 + 4 * 24


def test_plan_leader_that_makes_no_progress_is_waited_for_only_so_long() -> None:
    shadow = Shadow(make_settings(lanes=4))
    leader, follower = _followers(shadow, 2, text(1, 1000))
    shadow.stalled_jobs.add(leader)
    ticks = 0
    while shadow.scheduler.statistics().lanes_active < 2:
        shadow.step()
        ticks += 1
    assert ticks == PATIENCE_TICKS + 2
    shadow.cancel(leader)
    shadow.run()
    assert shadow.finishes[follower] is Finish.LENGTH


def test_plan_leader_behind_an_older_prompt_is_still_waited_for() -> None:
    shadow = Shadow(make_settings(lanes=4, window_tokens=20_000))
    streaming = shadow.submit(make_job(text(9, 30), max_tokens=5000))
    shadow.step()
    shadow.submit(make_job(text(8, 8000), max_tokens=1))
    _followers(shadow, 2, text(1, 1000))
    while len(shadow.finishes) < 3:
        shadow.step()
    assert shadow.prefilled <= 30 + 8000 + 1000 + 2 * 24
    assert not shadow.is_over(streaming)


def test_plan_prefix_of_a_running_reply_is_saved_and_imported() -> None:
    shadow = Shadow(make_settings(lanes=2))
    running = shadow.submit(make_job(text(1, 500), max_tokens=400))
    while len(shadow.reply(running)) < 100:
        shadow.step()
    fork = shadow.submit(make_job([*shadow.streams[running][:580], *text(2, 20)]))
    plan = shadow.step()
    assert [save.lane for save in plan.saves] == [0]
    assert [(place.job_id, place.lane, place.keep) for place in plan.placements] == [(fork, 1, 580)]


def test_plan_failed_hand_over_starts_followers_cold_but_runs_them() -> None:
    shadow = Shadow(make_settings(lanes=4))
    shadow.is_save_failing = True
    jobs = _followers(shadow, 4, text(1, 300))
    shadow.run()
    assert all(shadow.finishes[job_id] is Finish.LENGTH for job_id in jobs)


def test_plan_state_that_cannot_be_cut_is_never_waited_for() -> None:
    shadow = Shadow(make_settings(lanes=4, can_truncate=False))
    _followers(shadow, 4, text(1, 300))
    assert len(shadow.step().placements) == 4
    shadow.run()
