"""Who loses a lane to whom, and what becomes of the job that lost it."""

from dataclasses import dataclass

import pytest
from tests.fixtures.scheduling import END_TOKEN, Shadow, make_job, make_settings, text

from superfluid.domain.media import ImageRun
from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass
from superfluid.domain.scheduling import SchedulingRules

INTERACTIVE, COMPLETION, AGENT, BACKGROUND = QosClass
TICK = SchedulingRules().tick_target_seconds


@dataclass(frozen=True)
class Running:
    """A job on a lane."""

    qos: QosClass
    is_decoding: bool = True
    has_image: bool = False


def _busy(jobs: list[Running], **settings: int) -> tuple[Shadow, list[int]]:
    """A scheduler whose lanes are all taken, by these jobs in the order in which they came."""
    shadow = Shadow(make_settings(lanes=len(jobs), **settings))  # type: ignore[arg-type]
    ids: list[int] = []
    for seed, job in enumerate(jobs, start=1):
        images = [ImageRun(position=4, length=8, blob="00" * 32, index=0)] if job.has_image else []
        tokens = text(seed, 30 if job.is_decoding else 3000)
        if images:
            tokens[4:12] = range(-8, 0)
        ids.append(shadow.submit(make_job(tokens, max_tokens=500, qos=job.qos, images=images)))
        shadow.step()
    decoding = [job_id for job_id, job in zip(ids, jobs, strict=True) if job.is_decoding]
    shadow.run_until(lambda: all(shadow.reply(job_id) for job_id in decoding))
    return shadow, ids


@pytest.mark.parametrize(
    ("running", "newcomer", "victim"),
    [
        ([Running(AGENT)], INTERACTIVE, 0),
        ([Running(AGENT)], COMPLETION, 0),
        ([Running(COMPLETION)], INTERACTIVE, 0),
        # only urgent classes take lanes, and only from worse ones
        ([Running(BACKGROUND)], AGENT, None),
        ([Running(COMPLETION)], COMPLETION, None),
        ([Running(INTERACTIVE)], INTERACTIVE, None),
        ([Running(INTERACTIVE)], COMPLETION, None),
        # the worst class
        ([Running(AGENT), Running(BACKGROUND), Running(AGENT)], INTERACTIVE, 1),
        ([Running(COMPLETION), Running(AGENT)], INTERACTIVE, 1),
        # of equals the youngest
        ([Running(AGENT), Running(AGENT), Running(AGENT)], INTERACTIVE, 2),
        # one that decodes before one that is still reading, whatever its class
        ([Running(AGENT), Running(BACKGROUND, is_decoding=False)], INTERACTIVE, 0),
        ([Running(AGENT, is_decoding=False), Running(AGENT, is_decoding=False)], INTERACTIVE, 1),
        # never one with an image
        ([Running(AGENT), Running(BACKGROUND, has_image=True)], INTERACTIVE, 0),
        ([Running(BACKGROUND, has_image=True)], INTERACTIVE, None),
    ],
)
def test_plan_urgent_job_on_a_full_house_takes_a_lane(
    running: list[Running], newcomer: QosClass, victim: int | None
) -> None:
    shadow, ids = _busy(running)
    urgent = shadow.submit(make_job(text(50, 20), qos=newcomer))
    plan = shadow.step()
    assert [lost.job_id for lost in plan.preemptions] == ([] if victim is None else [ids[victim]])
    assert [place.job_id for place in plan.placements] == ([] if victim is None else [urgent])


def test_plan_urgent_job_beside_a_free_lane_takes_that() -> None:
    shadow = Shadow(make_settings(lanes=2))
    shadow.submit(make_job(text(1, 30), qos=BACKGROUND))
    shadow.step()
    shadow.submit(make_job(text(2, 30), qos=INTERACTIVE))
    shadow.run()
    assert shadow.preempted() == []


def test_plan_each_urgent_job_takes_one_lane() -> None:
    shadow, ids = _busy([Running(AGENT), Running(AGENT), Running(BACKGROUND)])
    urgent = [shadow.submit(make_job(text(seed, 20), qos=INTERACTIVE)) for seed in (50, 51)]
    plan = shadow.step()
    assert [lost.job_id for lost in plan.preemptions] == [ids[2], ids[1]]
    assert [place.job_id for place in plan.placements] == urgent


def test_plan_preempted_job_says_what_it_was() -> None:
    shadow, ids = _busy([Running(BACKGROUND)])
    shadow.run_until(lambda: len(shadow.reply(ids[0])) == 7)
    shadow.submit(make_job(text(50, 20), qos=INTERACTIVE))
    (lost,) = shadow.step().preemptions
    assert (lost.job_id, lost.lane, lost.qos, lost.produced_tokens) == (ids[0], 0, BACKGROUND, 7)


def test_plan_preempted_job_goes_on_with_its_next_token_from_host_memory() -> None:
    shadow, ids = _busy([Running(AGENT)])
    shadow.run_until(lambda: len(shadow.reply(ids[0])) == 60)
    prefilled = shadow.prefilled
    urgent = shadow.submit(make_job(text(50, 20), qos=INTERACTIVE))
    plan = shadow.step()
    assert [save.length for save in plan.saves] == [89]
    shadow.run_until(lambda: shadow.is_over(urgent))
    plan = shadow.step()
    assert [(place.job_id, place.keep) for place in plan.placements] == [(ids[0], 89)]
    assert [row.job_id for row in plan.decodes] == [ids[0]]
    shadow.run()
    assert shadow.prefilled == prefilled + 20
    assert len(shadow.reply(ids[0])) == 500


@pytest.mark.parametrize("replays_replies", [False, True])
@pytest.mark.parametrize("host_cache_bytes", [0, 10_000_000])
def test_plan_preempted_job_whose_state_is_lost_is_computed_again(host_cache_bytes: int, replays_replies: bool) -> None:
    shadow, ids = _busy([Running(AGENT)], host_cache_bytes=host_cache_bytes, replays_replies=replays_replies)
    shadow.run_until(lambda: len(shadow.reply(ids[0])) == 80)
    shadow.is_save_failing = True
    shadow.submit(make_job(text(50, 20), qos=INTERACTIVE))
    shadow.step()
    prefilled = shadow.prefilled
    shadow.run()
    assert shadow.prefilled - prefilled == (30 if replays_replies else 30 + 80)
    assert len(shadow.reply(ids[0])) == 500


def test_plan_preempted_prompt_is_read_on_from_where_it_was() -> None:
    shadow, ids = _busy([Running(AGENT, is_decoding=False)])
    shadow.run_until(lambda: shadow.prefilled > 500)
    shadow.submit(make_job(text(50, 20), max_tokens=3, qos=INTERACTIVE))
    shadow.run()
    assert shadow.prefilled <= 3000 + 20 + 2
    assert len(shadow.reply(ids[0])) == 500


def test_plan_preempted_job_is_the_next_of_its_class() -> None:
    shadow, ids = _busy([Running(AGENT), Running(AGENT)])
    queued = shadow.submit(make_job(text(40, 20)))
    shadow.step()
    urgent = shadow.submit(make_job(text(50, 20), max_tokens=2, qos=INTERACTIVE))
    shadow.run_until(lambda: shadow.is_over(urgent))
    shadow.run()
    assert shadow.admitted() == [*ids, urgent, ids[1], queued]


def test_cancel_preempted_job_ends_it_in_the_queue() -> None:
    shadow, ids = _busy([Running(AGENT)])
    shadow.submit(make_job(text(50, 20), qos=INTERACTIVE))
    shadow.step()
    shadow.cancel(ids[0])
    shadow.run()
    assert shadow.finishes[ids[0]] is Finish.CANCELLED


def test_complete_preempted_job_ends_by_itself_like_any_other() -> None:
    shadow = Shadow(make_settings(lanes=1), next_token=lambda stream: END_TOKEN if len(stream) == 60 else 5)
    agent = shadow.submit(make_job(text(1, 30), max_tokens=200))
    shadow.run_until(lambda: len(shadow.reply(agent)) == 10)
    shadow.submit(make_job(text(2, 80), max_tokens=3, qos=INTERACTIVE))
    shadow.run()
    assert shadow.finishes[agent] is Finish.END_OF_TURN
    assert len(shadow.streams[agent]) == 61


def test_plan_lane_had_by_waiting_is_kept_for_as_many_ticks() -> None:
    """Chats without end, on one lane: the agent gets its turn, and time to make something of it."""
    shadow = Shadow(make_settings(lanes=1, window_tokens=100_000))
    agent = shadow.submit(make_job(text(1, 20), max_tokens=5000))
    for seed in range(2, 300):
        chat = shadow.submit(make_job(text(seed, 20), max_tokens=50, qos=INTERACTIVE))
        while not shadow.is_over(chat) and len(shadow.reply(agent)) < 500:
            shadow.step()
    assert len(shadow.reply(agent)) >= 500
    turns = shadow.preempted().count(agent)
    assert 1 <= turns < 10, "it is neither left out nor thrown out at once"


def test_statistics_count_preemptions_and_each_admission() -> None:
    shadow, ids = _busy([Running(AGENT)])
    shadow.run_until(lambda: len(shadow.reply(ids[0])) == 60)
    shadow.submit(make_job(text(50, 20), max_tokens=2, qos=INTERACTIVE))
    shadow.run()
    counters = shadow.scheduler.statistics().counters
    assert (counters.preemptions_total, counters.admissions_total) == (1, 3)
    assert counters.warm_prefix_tokens_total == 89


def test_plan_followers_of_a_preempted_prompt_do_not_wait_for_it() -> None:
    shadow, (leader,) = _busy([Running(AGENT, is_decoding=False)])
    follower = shadow.submit(make_job([*text(1, 3000)[:2000], *text(60, 20)], max_tokens=2))
    shadow.step()
    shadow.submit(make_job(text(50, 20), max_tokens=2, qos=INTERACTIVE))
    shadow.run()
    assert {shadow.finishes[leader], shadow.finishes[follower]} == {Finish.LENGTH}
