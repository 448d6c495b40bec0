"""Situations and the plans that follow from them."""

import pytest
from tests.fixtures.scheduling import END_TOKEN, Shadow, make_job, make_settings, text

from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass
from superfluid.errors import ContextLengthExceededError, InvalidValueError, QueueFullError
from superfluid.scheduling.losses import WORTH_KEEPING_TOKENS
from superfluid.scheduling.plan import Chunk, DecodeLane, PlaceJob, SaveLane, StepPlan


def _shadow(**settings: int | bool) -> Shadow:
    return Shadow(make_settings(**settings))  # type: ignore[arg-type]


def _finish(shadow: Shadow, tokens: list[int], **job: int) -> int:
    """Runs one job to its end, alone."""
    job_id = shadow.submit(make_job(tokens, **job))  # type: ignore[arg-type]
    shadow.run()
    return job_id


def test_plan_nothing_to_do_is_empty() -> None:
    assert _shadow().step().is_empty


def test_plan_first_job_goes_to_lane_zero_and_prefills_an_unmeasured_chunk() -> None:
    shadow = _shadow()
    job_id = shadow.submit(make_job(text(1, 100)))
    assert shadow.step() == StepPlan(
        placements=(PlaceJob(job_id, 0, 0),), chunk=Chunk(job_id, 0, 0, 32, False), chunk_budget_tokens=32
    )


def test_plan_last_chunk_yields_the_first_token_and_decoding_follows() -> None:
    shadow = _shadow()
    job_id = shadow.submit(make_job(text(1, 20), max_tokens=2))
    assert shadow.step().chunk == Chunk(job_id, 0, 0, 20, True)
    assert len(shadow.reply(job_id)) == 1
    assert shadow.step().decodes == (DecodeLane(job_id, 0),)
    assert shadow.finishes == {job_id: Finish.LENGTH}
    assert len(shadow.reply(job_id)) == 2


@pytest.mark.parametrize("length", range(1, 120))
def test_plan_prompt_of_any_length_never_has_a_chunk_of_one_token(length: int) -> None:
    shadow = _shadow()
    _finish(shadow, text(1, length))  # the shadow checks each chunk
    assert shadow.prefilled == length


def test_plan_chunks_beside_decoding_lanes_fit_the_target() -> None:
    shadow = _shadow(lanes=8)
    for seed in range(1, 8):
        shadow.submit(make_job(text(seed, 40), max_tokens=2000))
    while any(len(shadow.reply(job_id)) < 3 for job_id in shadow.streams):
        shadow.step()
    late = shadow.submit(make_job(text(50, 1500)))
    chunks = [plan.chunk.length for _ in range(40) if (plan := shadow.step()).chunk is not None]
    expected = int((0.4 - 0.07) / 0.008)
    assert set(chunks) == {expected}
    assert not shadow.is_over(late)


def test_plan_nobody_decodes_takes_chunks_of_about_a_second() -> None:
    shadow = _shadow()
    shadow.submit(make_job(text(1, 1000)))
    shadow.step()
    assert shadow.step().chunk == Chunk(next(iter(shadow.streams)), 0, 32, 121, False)


def test_plan_streams_beside_a_long_prompt_get_a_token_every_other_tick() -> None:
    shadow = _shadow()
    streaming = shadow.submit(make_job(text(1, 20), max_tokens=500))
    shadow.step()
    shadow.submit(make_job(text(2, 2000)))
    for _ in range(40):
        before = len(shadow.reply(streaming))
        plans = shadow.step(), shadow.step()
        assert len(shadow.reply(streaming)) == before + 1
        assert sum(plan.chunk is not None for plan in plans) == 1


def test_plan_more_jobs_than_lanes_are_admitted_in_order() -> None:
    shadow = _shadow(lanes=2)
    jobs = [shadow.submit(make_job(text(seed, 30), max_tokens=3)) for seed in range(1, 8)]
    shadow.run()
    placed = [place.job_id for plan in shadow.plans for place in plan.placements]
    assert placed == jobs


def test_submit_queue_full_is_refused_and_free_lanes_do_not_count_as_waiting() -> None:
    shadow = _shadow(lanes=2, max_queue=3)
    for seed in range(1, 6):
        shadow.submit(make_job(text(seed, 30)))
    with pytest.raises(QueueFullError):
        shadow.scheduler.submit(make_job(text(9, 30)))
    shadow.step()
    with pytest.raises(QueueFullError):
        shadow.scheduler.submit(make_job(text(9, 30)))


def test_submit_prompt_that_fills_the_window_is_refused() -> None:
    shadow = _shadow(window_tokens=64)
    with pytest.raises(ContextLengthExceededError):
        shadow.scheduler.submit(make_job(text(1, 64)))
    job_id = _finish(shadow, text(1, 63))
    assert shadow.finishes == {job_id: Finish.LENGTH}
    assert len(shadow.reply(job_id)) == 1


@pytest.mark.parametrize("tokens", [[], [-1, 2], [1000]])
def test_submit_tokens_the_model_does_not_have_are_refused(tokens: list[int]) -> None:
    with pytest.raises(InvalidValueError):
        _shadow().scheduler.submit(make_job(tokens))


def test_complete_window_full_ends_with_length() -> None:
    shadow = _shadow(window_tokens=64)
    job_id = _finish(shadow, text(1, 50), max_tokens=1000)
    assert shadow.finishes == {job_id: Finish.LENGTH}
    assert len(shadow.streams[job_id]) == 64


def test_complete_end_token_ends_the_turn() -> None:
    shadow = Shadow(make_settings(), next_token=lambda stream: END_TOKEN if len(stream) == 33 else 5)
    job_id = _finish(shadow, text(1, 30), max_tokens=100)
    assert shadow.finishes == {job_id: Finish.END_OF_TURN}
    assert shadow.reply(job_id) == [5, 5, 5, END_TOKEN]


def test_submit_nothing_left_to_generate_is_over_at_once() -> None:
    shadow = _shadow()
    job_id = shadow.submit(make_job(text(1, 30), max_tokens=0))
    assert shadow.finishes == {job_id: Finish.LENGTH}
    assert shadow.scheduler.is_idle


def test_submit_resubmitted_job_draws_as_many_tokens_as_it_says() -> None:
    shadow = _shadow()
    job_id = _finish(shadow, text(1, 30), prompt_tokens=25, max_tokens=8)
    assert len(shadow.reply(job_id)) == 5 + 8


def test_submit_resubmitted_job_that_fills_the_window_is_over_at_once() -> None:
    shadow = _shadow(window_tokens=64)
    job_id = shadow.submit(make_job(text(1, 64), prompt_tokens=25, max_tokens=8))
    assert shadow.finishes == {job_id: Finish.LENGTH}


def test_cancel_running_job_frees_its_lane_for_the_next_plan() -> None:
    shadow = _shadow(lanes=1)
    running = shadow.submit(make_job(text(1, 200)))
    shadow.step()
    waiting = shadow.submit(make_job(text(2, 30)))
    shadow.step()
    shadow.cancel(running)
    assert shadow.finishes == {running: Finish.CANCELLED}
    assert [place.job_id for place in shadow.step().placements] == [waiting]


def test_cancel_queued_or_unknown_job() -> None:
    shadow = _shadow(lanes=1)
    shadow.submit(make_job(text(1, 200)))
    shadow.step()
    queued = shadow.submit(make_job(text(2, 30)))
    shadow.cancel(queued)
    assert shadow.finishes == {queued: Finish.CANCELLED}
    assert shadow.scheduler.cancel(queued) is None


def test_complete_faulted_job_leaves_and_the_others_go_on() -> None:
    shadow = _shadow()
    faulty = shadow.submit(make_job(text(1, 30), max_tokens=50))
    sound = shadow.submit(make_job(text(2, 30), max_tokens=50))
    for _ in range(6):
        shadow.step()
    shadow.faulty_jobs.add(faulty)
    shadow.run()
    assert shadow.finishes == {faulty: Finish.ERROR, sound: Finish.LENGTH}


def test_plan_idle_lanes_are_filled_without_gaps_in_their_ids() -> None:
    shadow = _shadow(lanes=6)
    jobs = [shadow.submit(make_job(text(seed, 20), max_tokens=400)) for seed in range(1, 7)]
    while not shadow.plans or len(shadow.plans[-1].decodes) < 6:
        shadow.step()
    for lane in (0, 1, 5):
        shadow.cancel(jobs[lane])
    late = shadow.submit(make_job(text(9, 20), max_tokens=400))
    assert [place.lane for place in shadow.step().placements] == [1]
    assert not shadow.is_over(late)


def test_statistics_count_queue_lanes_blocks_and_tokens() -> None:
    shadow = _shadow(lanes=1, window_tokens=1000)
    shadow.submit(make_job(text(1, 300), max_tokens=3))
    shadow.submit(make_job(text(2, 30), qos=QosClass.BACKGROUND))
    while not shadow.finishes:
        shadow.step()
    statistics = shadow.scheduler.statistics()
    assert statistics.queue_depth == (0, 0, 0, 1)
    assert (statistics.pool_blocks_used, statistics.pool_blocks_total) == (2, 4)
    assert (statistics.counters.prefill_tokens_total, statistics.counters.decode_tokens_total) == (300, 3)
    assert (statistics.counters.admissions_total, statistics.counters.cold_admissions_total) == (1, 1)


# ---- a cut reply


def test_plan_cut_reply_continues_from_its_own_lane_with_a_decode_row() -> None:
    shadow = _shadow()
    cut = shadow.submit(make_job(text(1, 100), max_tokens=50))
    while len(shadow.streams[cut]) < 110:
        shadow.step()
    shadow.cancel(cut)
    resumed = shadow.submit(make_job(shadow.streams[cut], prompt_tokens=100, max_tokens=50))
    plan = shadow.step()
    assert plan == StepPlan(placements=(PlaceJob(resumed, 0, 109),), decodes=(DecodeLane(resumed, 0),))
    shadow.run()
    assert len(shadow.reply(resumed)) == 10 + 50


def test_plan_resubmitted_reply_in_exact_mode_is_replayed_token_by_token() -> None:
    shadow = _shadow(replays_replies=True)
    job_id = shadow.submit(make_job(text(1, 45), prompt_tokens=30, max_tokens=5, is_resubmission=True))
    shadow.run()
    chunks = [plan.chunk for plan in shadow.plans if plan.chunk is not None]
    assert [(chunk.start, chunk.length, chunk.is_last) for chunk in chunks] == [(0, 30, False)]
    assert sum(len(plan.decodes) for plan in shadow.plans) == 19
    assert len(shadow.reply(job_id)) == 20
    assert shadow.scheduler.statistics().counters.cold_admissions_total == 0


def test_plan_resubmitted_reply_otherwise_is_prefilled() -> None:
    shadow = _shadow()
    shadow.submit(make_job(text(1, 45), prompt_tokens=30, max_tokens=20))
    shadow.run()
    assert shadow.prefilled == 45


def test_complete_refused_import_of_a_cut_reply_prefills_all_of_it() -> None:
    shadow = _shadow(lanes=1)
    cut = _finish(shadow, text(1, 100), max_tokens=50)
    _finish(shadow, text(2, 100))
    shadow.refused_lanes.add(0)
    shadow.prefilled = 0
    resumed = _finish(shadow, shadow.streams[cut], prompt_tokens=100, max_tokens=60)
    assert shadow.prefilled == 150
    assert len(shadow.reply(resumed)) == 110


def test_plan_two_jobs_for_one_resident_prefix_the_second_waits_a_tick_for_its_copy() -> None:
    shadow = _shadow(lanes=3)
    _finish(shadow, text(1, 300))
    first = shadow.submit(make_job([*text(1, 300), *text(2, 30)]))
    second = shadow.submit(make_job([*text(1, 300), *text(3, 30)]))
    assert [(place.job_id, place.keep) for place in shadow.step().placements] == [(first, 300)]
    assert [(place.job_id, place.keep) for place in shadow.step().placements] == [(second, 300)]


# ---- saves


def test_plan_lane_overwritten_is_saved_first() -> None:
    shadow = _shadow(lanes=1)
    _finish(shadow, text(1, 200), max_tokens=1)
    late = shadow.submit(make_job(text(2, 200), max_tokens=1))
    plan = shadow.step()
    assert plan.saves == (SaveLane(0, 0, 200),)
    assert plan.placements == (PlaceJob(late, 0, 0),)


def test_plan_few_tokens_are_overwritten_without_a_save() -> None:
    shadow = _shadow(lanes=1)
    _finish(shadow, text(1, WORTH_KEEPING_TOKENS - 1), max_tokens=1)
    shadow.submit(make_job(text(2, 200)))
    assert shadow.step().saves == ()


def test_plan_tokens_that_host_memory_covers_are_not_saved_again() -> None:
    shadow = _shadow(lanes=1)
    conversation = text(1, 200)
    _finish(shadow, conversation, max_tokens=1)
    _finish(shadow, text(2, 40), max_tokens=1)
    _finish(shadow, conversation, max_tokens=1)
    shadow.submit(make_job(text(3, 40)))
    assert shadow.step().saves == ()


def test_plan_no_host_memory_overwrites_without_a_save() -> None:
    shadow = _shadow(lanes=1, host_cache_bytes=0)
    _finish(shadow, text(1, 200))
    shadow.submit(make_job(text(2, 200)))
    assert shadow.step().saves == ()


def test_plan_empty_lane_is_preferred_to_one_that_holds_a_conversation() -> None:
    shadow = _shadow(lanes=2)
    _finish(shadow, text(1, 200))
    shadow.submit(make_job(text(2, 200)))
    plan = shadow.step()
    assert (plan.saves, plan.placements[0].lane) == ((), 1)


@pytest.mark.parametrize("lanes", [1, 2])
def test_plan_utility_call_between_two_turns_leaves_the_conversation_warm(lanes: int) -> None:
    shadow = _shadow(lanes=lanes)
    first = _finish(shadow, text(1, 1000), max_tokens=100)
    for seed in (7, 8, 9):
        _finish(shadow, text(seed, 120), max_tokens=20)
    shadow.prefilled = 0
    second = _finish(shadow, [*shadow.streams[first], *text(2, 30)])
    assert shadow.warm[second] == 1099
    assert shadow.prefilled == 31


def test_plan_returning_conversations_on_few_lanes_are_all_warm() -> None:
    shadow = _shadow(lanes=2)
    streams = [text(seed, 1000) for seed in range(1, 9)]
    for round_number in range(3):
        for index, stream in enumerate(streams):
            job_id = _finish(shadow, stream, max_tokens=20)
            assert (shadow.warm[job_id] > 900) == (round_number > 0)
            streams[index] = [*shadow.streams[job_id], *text(100 + index, 40)]


def test_plan_edited_history_saves_the_old_branch_before_cutting_it() -> None:
    shadow = _shadow(lanes=1)
    stream = text(1, 1000)
    _finish(shadow, stream, max_tokens=1)
    _finish(shadow, [*stream[:400], *text(2, 50)], max_tokens=1)
    back = _finish(shadow, [*stream, *text(3, 20)])
    assert shadow.warm[back] == 1000


# ---- host memory


def test_plan_host_memory_over_its_bound_drops_the_least_recently_used() -> None:
    shadow = _shadow(lanes=1, host_cache_bytes=100 * 2500)
    for seed in range(1, 6):
        _finish(shadow, text(seed, 1000), max_tokens=1)
        shadow.step()
        assert shadow.scheduler.statistics().host_cache_bytes <= 100 * 2500
    assert len(shadow.host) == 2
    assert [shadow.warm[_finish(shadow, text(seed, 1000), max_tokens=1)] > 0 for seed in (1, 4)] == [False, True]


def test_plan_entry_that_a_longer_one_contains_is_dropped() -> None:
    shadow = _shadow(lanes=1)
    stream = text(1, 300)
    _finish(shadow, stream, max_tokens=1)
    _finish(shadow, text(2, 70), max_tokens=1)
    _finish(shadow, [*stream, *text(3, 300)], max_tokens=1)
    _finish(shadow, text(4, 70), max_tokens=1)
    shadow.step()
    assert sorted(len(tokens) for tokens in shadow.host.values()) == [70, 600]


def test_complete_refused_import_starts_the_job_cold() -> None:
    shadow = _shadow(lanes=1)
    _finish(shadow, text(1, 300), max_tokens=1)
    _finish(shadow, text(2, 300), max_tokens=1)
    shadow.refused_lanes.add(0)
    job_id = _finish(shadow, text(1, 300), max_tokens=1)
    assert shadow.warm[job_id] == 0
    assert shadow.finishes[job_id] is Finish.LENGTH


def test_complete_failed_save_is_forgotten() -> None:
    shadow = _shadow(lanes=1)
    shadow.is_save_failing = True
    _finish(shadow, text(1, 300), max_tokens=1)
    _finish(shadow, text(2, 300), max_tokens=1)
    assert shadow.scheduler.statistics().host_cache_entries == 0
    assert shadow.warm[_finish(shadow, text(1, 300), max_tokens=1)] == 0


# ---- states that cannot be cut


def test_plan_state_that_cannot_be_cut_is_reused_whole_or_not_at_all() -> None:
    shadow = _shadow(lanes=1, can_truncate=False)
    first = _finish(shadow, text(1, 200), max_tokens=20)
    second = _finish(shadow, [*shadow.streams[first], *text(2, 30)], max_tokens=20)
    assert shadow.warm[second] == 219
    edited = _finish(shadow, [*shadow.streams[second][:230], *text(3, 30)])
    assert shadow.warm[edited] == 0


def test_plan_state_that_cannot_be_cut_comes_back_from_host_memory() -> None:
    shadow = _shadow(lanes=1, can_truncate=False)
    first = _finish(shadow, text(1, 200), max_tokens=20)
    _finish(shadow, text(5, 200))
    second = _finish(shadow, [*shadow.streams[first], *text(2, 30)], max_tokens=20)
    assert shadow.warm[second] == 219
