"""The tick loop on the fake engine: whatever happens around a job, it gets the tokens it would get alone."""

import threading
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from tests.fixtures.tick_loop import GREEDY, SteppedLoop, cold_reply, make_job, make_settings, words

from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass, SamplingParams
from superfluid.engine.fake import FakeEngine
from superfluid.engine.fake_script import FakeScript, ScriptedReply
from superfluid.engine.fake_vocabulary import END_OF_GENERATION, encode_plain
from superfluid.engine.interface import Row, StepResult
from superfluid.worker.loop import TickLoop
from superfluid.worker.protocol import Ping, SetBackgroundRate, SetLogFilter, Stop, Submit, TickStarted

SAMPLED = SamplingParams(temperature=1.5, top_p=0.9, seed=11, repeat_penalty=1.2)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_tick_many_jobs_on_few_lanes_each_gets_the_reply_it_gets_alone(sampling: SamplingParams) -> None:
    loop = SteppedLoop(settings=make_settings(3))
    jobs = [make_job(words(seed, 5 + 13 * seed), max_tokens=10 + seed, sampling=sampling) for seed in range(1, 9)]
    received = [loop.submit(job) for job in jobs]
    loop.run()
    assert [got.tokens for got in received] == [cold_reply(job) for job in jobs]
    assert {got.finish for got in received} == {Finish.LENGTH}


@pytest.mark.parametrize("host_cache_bytes", [0, 3_000, 1_000_000])
@pytest.mark.parametrize("can_truncate", [True, False])
def test_tick_conversations_in_turn_on_one_lane_get_cold_replies(host_cache_bytes: int, can_truncate: bool) -> None:
    script = FakeScript(can_truncate=can_truncate)
    loop = SteppedLoop(script, make_settings(1, host_cache_bytes=host_cache_bytes))
    streams = [words(seed, 200) for seed in (1, 2, 3)]
    warm = 0
    for turn in range(3):
        for index, stream in enumerate(streams):
            job = make_job(stream, max_tokens=20, sampling=SAMPLED)
            got = loop.submit(job)
            loop.run()
            assert got.tokens == cold_reply(job, script)
            warm += got.warm_tokens[0]
            streams[index] = [*stream, *got.tokens, *words(10 * turn + index, 30)]
    assert (warm > 0) == (host_cache_bytes > 1000)


def test_tick_jobs_with_a_common_prefix_prefill_it_once_and_get_their_own_replies() -> None:
    loop = SteppedLoop(settings=make_settings(8))
    jobs = [make_job([*words(1, 1000), *words(50 + index, 20)], max_tokens=12) for index in range(8)]
    received = [loop.submit(job) for job in jobs]
    loop.run()
    assert [got.tokens for got in received] == [cold_reply(job) for job in jobs]
    assert loop.records[-1].prefill_tokens_total <= 1.2 * 1000
    assert sorted(got.warm_tokens[0] for got in received) == [0, *([1000] * 7)]


def test_tick_resubmitted_job_draws_what_the_unbroken_one_would_have_drawn() -> None:
    whole = make_job(words(1, 60), max_tokens=30, sampling=SAMPLED)
    reply = cold_reply(whole)
    loop = SteppedLoop()
    rest = make_job(
        [*words(1, 60), *reply[:12]], prompt_tokens=60, max_tokens=18, sampling=SAMPLED, is_resubmission=True
    )
    got = loop.submit(rest)
    loop.run()
    assert got.tokens == reply[12:]
    assert [record.first_token_seconds for record in loop.records if record.first_token_seconds] == []


def test_tick_end_token_is_sent_and_ends_the_turn() -> None:
    script = FakeScript(replies=(ScriptedReply(text="Hi."),))
    loop = SteppedLoop(script)
    got = loop.submit(make_job(encode_plain("hello"), max_tokens=50))
    loop.run()
    assert got.finish is Finish.END_OF_TURN
    assert got.tokens[:-1] == encode_plain("Hi.")
    assert got.tokens[-1] in END_OF_GENERATION


def test_tick_ignore_eos_never_draws_an_end_token() -> None:
    script = FakeScript(replies=(ScriptedReply(text="Hi."),))
    loop = SteppedLoop(script)
    got = loop.submit(make_job(encode_plain("hello"), max_tokens=50, ignore_eos=True))
    loop.run()
    assert (got.finish, len(got.tokens)) == (Finish.LENGTH, 50)
    assert not set(got.tokens) & END_OF_GENERATION


def test_tick_logprobs_come_one_a_token_and_only_if_asked_for() -> None:
    loop = SteppedLoop()
    asked = loop.submit(make_job(words(1, 20), logprobs=3))
    unasked = loop.submit(make_job(words(2, 20)))
    loop.run()
    assert len(asked.scores) == len(asked.tokens)
    assert all(score.top_tokens[0] == token for score, token in zip(asked.scores, asked.tokens, strict=True))
    assert {len(score.top_logprobs) for score in asked.scores} == {3}
    assert unasked.scores == []


def test_take_cancel_answers_in_the_next_tick_and_the_lane_is_free_in_it() -> None:
    loop = SteppedLoop(settings=make_settings(1))
    running = make_job(words(1, 20), max_tokens=1000)
    got = loop.submit(running)
    for _ in range(5):
        loop.tick()
    queued = make_job(words(2, 20))
    waiting = loop.submit(queued)
    loop.cancel(running)
    loop.tick()
    assert got.finish is Finish.CANCELLED
    assert waiting.warm_tokens == [0]
    loop.cancel(running)
    loop.run()
    assert waiting.finish is Finish.LENGTH


def test_take_cancel_of_the_only_job_is_answered_although_nothing_runs() -> None:
    loop = SteppedLoop()
    job = make_job(words(1, 20), max_tokens=1000)
    got = loop.submit(job)
    loop.tick()
    loop.cancel(job)
    assert loop.tick()
    assert got.finish is Finish.CANCELLED
    assert not loop.tick()


@pytest.mark.parametrize(("step", "faulty"), [(2, 0), (3, 1)])
def test_tick_faulty_step_refuses_its_jobs_and_spares_the_others(step: int, faulty: int) -> None:
    loop = SteppedLoop(FakeScript(fault_steps=(step,)))
    jobs = [make_job(words(seed, 20), max_tokens=50) for seed in (1, 2)]
    received = [loop.submit(job) for job in jobs]
    loop.run()
    sound = 1 - faulty
    assert received[faulty].rejection == "engine_fault"
    assert received[sound].rejection is None
    assert received[sound].tokens == cold_reply(jobs[sound])


def test_tick_logits_of_no_use_refuse_that_job_alone() -> None:
    class _BlindOnLaneOne(FakeEngine):
        def _logits(self, lane: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
            logits = super()._logits(lane)
            return np.full_like(logits, np.nan) if lane == 1 else logits

    loop = SteppedLoop(engine=_BlindOnLaneOne(lanes=4))
    sound, blind = loop.submit(make_job(words(1, 20))), loop.submit(make_job(words(2, 20)))
    loop.run()
    assert (sound.finish, sound.rejection) == (Finish.LENGTH, None)
    assert blind.rejection == "engine_fault"


def test_take_refused_submissions_name_their_leaf() -> None:
    loop = SteppedLoop(settings=make_settings(1, max_queue=1))
    too_long = loop.submit(make_job([65] * 8192))
    nonsense = loop.submit(make_job([-1]))
    accepted = [loop.submit(make_job(words(seed, 20))) for seed in (1, 2)]
    refused = loop.submit(make_job(words(3, 20)))
    loop.run()
    assert [got.rejection for got in (too_long, nonsense, refused)] == [
        "context_length_exceeded",
        "invalid_value",
        "queue_full",
    ]
    assert [got.finish for got in accepted] == [Finish.LENGTH] * 2


def test_tick_record_says_what_was_done() -> None:
    loop = SteppedLoop(settings=make_settings(2))
    loop.submit(make_job(words(1, 300), max_tokens=4))
    loop.run()
    first, last = loop.records[0], loop.records[-1]
    assert (first.prefill_tokens, first.prefill_lanes, first.decode_lanes, first.admissions) == (32, 1, 0, 1)
    assert first.chunk_budget_tokens == 32
    assert (last.prefill_tokens, last.decode_lanes, last.retirements, last.lanes_active) == (0, 1, 1, 0)
    assert (last.pool_blocks_used, last.pool_blocks_total) == (2, 2 * 32)
    assert (last.prefill_tokens_total, last.decode_tokens_total, last.ticks_total) == (300, 4, len(loop.records))
    assert [record.sequence for record in loop.records] == list(range(len(loop.records)))
    assert sum(len(record.first_token_seconds) for record in loop.records) == 1
    assert all(record.wall_seconds > record.engine_seconds > 0 for record in loop.records)


def test_long_tick_is_announced_with_its_plan_and_a_short_one_is_not() -> None:
    loop = SteppedLoop(settings=make_settings(2))
    loop.submit(make_job(words(1, 20), max_tokens=4))
    loop.run()
    # Before anything is measured, a prompt token is taken to need milliseconds; the fake engine needs far less.
    (announced,) = loop.announced
    assert announced == TickStarted(prefill_tokens=20, prefill_lanes=1, decode_lanes=0, admissions=1)


def test_lanes_are_told_when_the_worker_falls_idle_with_what_they_still_hold() -> None:
    loop = SteppedLoop(settings=make_settings(2))
    loop.submit(make_job(words(1, 20), max_tokens=4))
    loop.run()
    told = [record.lanes for record in loop.records if record.lanes is not None]
    held, empty = told[-1]
    assert (held.lane, held.job_id, held.held_tokens) == (0, 0, 23)
    assert (empty.lane, empty.job_id, empty.held_tokens) == (1, 0, 0)


def test_lanes_are_told_while_jobs_run_with_their_progress_but_not_at_every_tick() -> None:
    loop = SteppedLoop(settings=make_settings(2))
    job = make_job(words(1, 20), max_tokens=4000)
    loop.submit(job)
    for _ in range(40):
        loop.tick()
    told = [record.lanes for record in loop.records if record.lanes is not None]
    assert 0 < len(told) < len(loop.records)
    lane = told[-1][0]
    assert (lane.job_id, lane.is_prefilling, lane.prompt_tokens) == (job.job_id, False, 20)
    assert lane.held_tokens == lane.stream_tokens - 1 >= 20


def test_traced_worker_tells_every_tick_although_they_share_a_message() -> None:
    settings = msgspec.structs.replace(make_settings(2), is_traced=True, stream_interval_seconds=10.0)
    loop = SteppedLoop(settings=settings)
    job = make_job(words(1, 20), max_tokens=6)
    loop.submit(job)
    loop.run()
    assert [span.sequence for span in loop.spans] == list(range(1, len(loop.spans) + 1))
    assert len(loop.spans) == 6
    assert all(span.jobs == [job.job_id] for span in loop.spans)
    assert len(loop.records) < len(loop.spans)


def test_tick_streams_get_a_token_between_any_two_prompt_chunks() -> None:
    loop = SteppedLoop()
    streaming = loop.submit(make_job(words(1, 20), max_tokens=2000))
    loop.tick()
    loop.submit(make_job(words(2, 4000)))
    while loop.records[-1].prefill_tokens_total < 4000:
        had = len(streaming.tokens)
        loop.tick()
        loop.tick()
        assert len(streaming.tokens) > had


def test_run_sleeps_until_a_message_comes_and_returns_on_stop() -> None:
    loop = SteppedLoop()
    job = make_job(words(1, 20))
    loop.submit(job)
    thread = threading.Thread(target=loop.loop.run)
    thread.start()
    late = make_job(words(2, 20))
    loop.jobs[late.job_id] = loop.jobs[job.job_id].__class__()
    loop.inbox.put(Ping(7))
    loop.inbox.put(Submit(late))
    loop.inbox.put(SetLogFilter("debug"))
    loop.inbox.put(Stop())
    thread.join(30)
    assert not thread.is_alive()
    assert (loop.pongs, loop.log_filters) == ([7], ["debug"])


def test_take_background_rate_slows_the_agents_decoding_and_nobody_elses() -> None:
    loop = SteppedLoop(settings=make_settings(2))
    loop.loop.take(SetBackgroundRate(3))
    chat = loop.submit(make_job(words(1, 4), max_tokens=30, qos=QosClass.INTERACTIVE))
    agent = loop.submit(make_job(words(2, 4), max_tokens=30))
    while chat.finish is Finish.NONE:
        assert loop.tick()
    assert 9 <= len(agent.tokens) <= 12
    loop.run()
    assert (len(chat.tokens), len(agent.tokens)) == (30, 30)


def test_run_rests_now_and_then_and_before_it_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superfluid.worker.loop.TICKS_BETWEEN_RESTS", 20)
    rests: list[int] = []
    loop = SteppedLoop()

    def rest() -> None:
        rests.append(len(loop.records))
        if len(rests) == 2:
            loop.inbox.put(Stop())

    loop.rest = rest
    loop.submit(make_job(words(1, 20), max_tokens=30))
    loop.loop.run()
    assert rests == [20, 30]


def test_fast_ticks_share_a_message_but_first_tokens_and_ends_never_wait() -> None:
    patient = msgspec.structs.replace(make_settings(), stream_interval_seconds=3600.0)
    prompt = words(1, 20)
    loop, plain = SteppedLoop(settings=patient), SteppedLoop()
    shared, single = loop.submit(make_job(prompt, max_tokens=6)), plain.submit(make_job(prompt, max_tokens=6))
    loop.run()
    plain.run()
    assert (len(loop.records), len(plain.records)) == (2, 6)
    assert (shared.tokens, shared.finish, shared.warm_tokens) == (single.tokens, single.finish, single.warm_tokens)
    assert loop.records[0].first_token_seconds != []


def test_cancelled_job_is_told_of_at_once_though_its_tokens_wait() -> None:
    loop = SteppedLoop(settings=msgspec.structs.replace(make_settings(), stream_interval_seconds=3600.0))
    job = make_job(words(1, 20), max_tokens=600)
    received = loop.submit(job)
    for _ in range(4):
        loop.tick()
    assert len(received.tokens) == 1
    loop.cancel(job)
    loop.tick()
    assert (len(received.tokens), received.finish) == (4, Finish.CANCELLED)


def test_tokens_that_were_held_back_do_not_wait_for_a_long_chunk() -> None:
    loop = SteppedLoop(settings=msgspec.structs.replace(make_settings(), stream_interval_seconds=3600.0))
    streaming = loop.submit(make_job(words(1, 40), max_tokens=600))
    for _ in range(5):
        loop.tick()
    assert len(streaming.tokens) == 1
    loop.submit(make_job(words(2, 4000)))
    announced = len(loop.announced)
    loop.tick()
    assert (len(streaming.tokens), len(loop.announced)) == (4, announced + 1)


def test_debug_line_of_a_tick_has_its_times_counts_and_learned_rates() -> None:
    loop = SteppedLoop(settings=make_settings(2))
    lines: list[str] = []
    loop.loop = TickLoop(loop.engine, loop.settings, loop.inbox, lambda _: None, clock=loop.clock, debug=lines.append)
    loop.loop.take(Submit(make_job(words(1, 20), max_tokens=2)))
    while loop.loop.tick():
        pass
    prefill, decode = lines
    names = [pair.partition("=")[0] for pair in prefill.split()[1:]]
    assert prefill.startswith("[tick] ")
    assert names == [
        "secs", "pf_secs", "dec_secs", "prefill_tok", "rounds", "P_eff", "P_plan", "D", "round_secs",
        "pf_secs_per_tok", "budget", "grant",
    ]  # fmt: skip
    assert "prefill_tok=20" in prefill
    assert "P_plan=1 D=0 round_secs=none" in prefill
    assert "rounds=1" in decode
    assert " D=1 " in decode


def test_job_is_told_of_before_the_step_that_may_be_the_last() -> None:
    class Deadly(FakeEngine):
        def step(self, rows: Sequence[Row]) -> StepResult:
            raise KeyboardInterrupt

    loop = SteppedLoop(settings=make_settings(lanes=1), engine=Deadly(lanes=1))
    deadly, waiting = make_job(words(1, 20)), make_job(words(2, 20))
    loop.submit(deadly)
    loop.submit(waiting)
    with pytest.raises(KeyboardInterrupt):
        loop.tick()
    assert loop.placed == [deadly.job_id]
