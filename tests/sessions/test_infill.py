"""Filling in the middle: the job that is run, the cache, the deadline, and what ends it early."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.fixtures.session_core import SessionCore, session_core, text_of, tokens_of
from tests.fixtures.vocabulary_gguf import write_vocabulary

from superfluid.chat.tokenizer import LlamaTokenizer
from superfluid.config import CompletionConfig, GenerationConfig
from superfluid.domain.reply import Finish, ReplyEvent, ReplyFinished, TextDelta
from superfluid.domain.request import GenerationRequest, InfillPrompt, QosClass, SamplingOverrides, SamplingParams
from superfluid.domain.statistics import InfillCounters
from superfluid.errors import (
    CompletionRateLimitedError,
    EngineFaultError,
    FimUnsupportedError,
    ModelLoadingError,
    QueueFullError,
    ShuttingDownError,
)
from superfluid.sessions.counter import ReplyCounter, RunningFacts
from superfluid.sessions.infill import CACHE_ENTRIES, Completion, InfillRequest, InfillService
from superfluid.sessions.infill_reply import InfillReply
from superfluid.sessions.interface import Reply
from superfluid.sessions.service import ModelService

GAP = InfillPrompt(prefix="a", suffix="c")
PROMPT = tokens_of("<|fim_prefix|>a<|fim_suffix|>c<|fim_middle|>")


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110  (the backend has no event for it)
            await asyncio.sleep(0)


async def asked(core: SessionCore, prompt: InfillPrompt = GAP, max_tokens: int = 16) -> "asyncio.Task[Completion]":
    """A completion whose job the backend has."""
    jobs = len(core.backend.jobs)
    bucket = core.sessions.completion_bucket()
    task = asyncio.ensure_future(core.sessions.complete(bucket, prompt, max_tokens))
    await eventually(lambda: len(core.backend.jobs) > jobs)
    core.backend.last.start()
    return task


async def complete(
    core: SessionCore, prompt: InfillPrompt = GAP, max_tokens: int = 16, *, says: str = "b"
) -> Completion:
    """What comes back where the model says ``says``, if it is asked."""
    core.backend.answer = lambda _: says
    return await core.sessions.complete(core.sessions.completion_bucket(), prompt, max_tokens)


# ---- the job


async def test_completion_is_a_greedy_job_of_its_class_over_the_texts_and_their_markers(core: SessionCore) -> None:
    assert await complete(core) == Completion("b", tokens_of("b"), is_cached=False, is_expired=False)
    job = core.backend.last
    assert tuple(job.tokens) == PROMPT
    assert (job.job.prompt_tokens, job.job.max_tokens, job.job.qos) == (len(PROMPT), 16, QosClass.COMPLETION)
    assert job.job.sampling == SamplingParams(temperature=0.0)


async def test_completion_leaves_no_session_and_no_reply_behind(core: SessionCore) -> None:
    await complete(core)
    assert await core.sessions.session_rows(include_archived=True) == []
    assert core.counter.running == 0


async def test_running_completion_is_known_by_what_it_may_take_and_has_no_session(core: SessionCore) -> None:
    task = await asked(core, max_tokens=12)
    assert core.counter.facts(core.backend.last.job.job_id) == RunningFacts(session=None, max_tokens=12)
    await core.backend.last.end_turn()
    await task


async def test_markers_of_the_model_are_not_in_the_text_but_its_tokens_are_all_there(core: SessionCore) -> None:
    done = await complete(core, says="x<|fim_suffix|>y")
    assert done.text == "xy"
    assert done.tokens == tokens_of("x<|fim_suffix|>y")


async def test_completion_cut_inside_a_character_ends_with_the_replacement_character(core: SessionCore) -> None:
    done = await complete(core, max_tokens=2, says="aé")
    assert (done.text, done.tokens) == ("a\ufffd", tokens_of("aé")[:2])


async def test_texts_and_completion_share_the_window(core: SessionCore) -> None:
    await complete(core, InfillPrompt(prefix="p" * 10_000, suffix="s" * 10_000), 2**32 - 1)
    job = core.backend.last
    window = core.backend.facts.window_tokens
    assert (len(job.tokens), job.job.max_tokens) == (window // 2, window // 2)
    await complete(core, InfillPrompt(prefix="p" * 10_000, suffix="s" * 10_000), 100)
    job = core.backend.last
    assert (len(job.tokens), job.job.max_tokens) == (window - 100, 100)


# ---- the cache


async def test_same_completion_again_comes_from_the_cache(core: SessionCore) -> None:
    first = await complete(core)
    again = await complete(core, says="something else")
    assert again == Completion(first.text, first.tokens, is_cached=True, is_expired=False)
    assert len(core.backend.jobs) == 1
    assert (core.infill_counters.generated, core.infill_counters.cached) == (1, 1)
    assert core.counter.running == 0


@pytest.mark.parametrize(
    ("prompt", "max_tokens"),
    [
        (InfillPrompt(prefix="a", suffix="d"), 16),
        (InfillPrompt(prefix="b", suffix="c"), 16),
        (InfillPrompt(prefix="a", suffix="c", is_suffix_first=True), 16),
        (GAP, 17),
    ],
)
async def test_other_completion_is_computed(core: SessionCore, prompt: InfillPrompt, max_tokens: int) -> None:
    await complete(core)
    assert not (await complete(core, prompt, max_tokens)).is_cached


async def test_cache_lets_the_least_recently_used_one_go(core: SessionCore) -> None:
    prompts = [InfillPrompt(prefix=str(number), suffix="") for number in range(CACHE_ENTRIES + 1)]
    for prompt in prompts[:-1]:
        await complete(core, prompt)
    assert (await complete(core, prompts[0])).is_cached
    await complete(core, prompts[-1])
    assert (await complete(core, prompts[0])).is_cached
    assert not (await complete(core, prompts[1])).is_cached


async def test_cancelled_and_failed_completions_are_not_kept(core: SessionCore) -> None:
    task = await asked(core)
    task.cancel()
    await asyncio.wait((task,))
    failing = await asked(core)
    core.backend.last.sink.failed(EngineFaultError("broken"))
    with pytest.raises(EngineFaultError):
        await failing
    assert not (await complete(core)).is_cached


# ---- what ends it early


async def test_caller_that_goes_away_ends_the_job(core: SessionCore) -> None:
    task = await asked(core)
    job = core.backend.last
    task.cancel()
    await asyncio.wait((task,))
    assert job.is_cancelled
    assert core.counter.running == 0
    assert core.infill_counters.generated == 0


async def test_late_tokens_of_a_completion_that_ended_are_ignored(core: SessionCore) -> None:
    core.backend.ends_cancelled_at_once = False
    task = await asked(core)
    job = core.backend.last
    task.cancel()
    await asyncio.wait((task,))
    job.draw(98)
    job.finish(Finish.CANCELLED)
    assert core.counter.running == 0


@pytest.fixture
async def hurried(tmp_path: Path) -> AsyncIterator[SessionCore]:
    async with session_core(
        tmp_path / "sessions.db", completion=CompletionConfig(rate=0, deadline_seconds=0.02)
    ) as built:
        yield built


@pytest.mark.parametrize("has_begun", [False, True])
async def test_completion_past_its_deadline_is_an_empty_expired_one_and_its_job_ends(
    hurried: SessionCore, has_begun: bool
) -> None:
    bucket = hurried.sessions.completion_bucket()
    task = asyncio.ensure_future(hurried.sessions.complete(bucket, GAP, 16))
    await eventually(lambda: bool(hurried.backend.jobs))
    if has_begun:
        hurried.backend.last.start()
        hurried.backend.last.draw(98)
    assert await task == Completion("", (), is_cached=False, is_expired=True)
    assert hurried.backend.last.is_cancelled
    assert hurried.infill_counters.expired == 1
    assert hurried.counter.running == 0


async def test_completion_that_is_done_in_time_does_not_expire_later(hurried: SessionCore) -> None:
    hurried.backend.answer = lambda _: "b"
    reply = await hurried.infill.start(InfillRequest(prompt=GAP, max_tokens=16))
    async for _ in reply:
        pass
    reply.expire()
    assert hurried.infill_counters == InfillCounters(generated=1)
    assert not hurried.backend.last.is_cancelled


async def test_deadline_counts_while_the_texts_are_still_being_cut_into_tokens(
    hurried: SessionCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr("superfluid.sessions.infill.infill_prompt", lambda *_, **__: release.wait(5) and [])
    done = await hurried.sessions.complete(hurried.sessions.completion_bucket(), GAP, 16)
    release.set()
    assert done.is_expired
    assert hurried.backend.jobs == []
    assert hurried.counter.running == 0


async def test_refused_or_failed_job_is_an_error_that_leaves_nothing_running(core: SessionCore) -> None:
    core.backend.refusal = QueueFullError("full")
    with pytest.raises(QueueFullError):
        await complete(core)
    core.backend.refusal = None
    task = await asked(core)
    core.backend.last.finish(Finish.ERROR)
    with pytest.raises(EngineFaultError):
        await task
    assert core.counter.running == 0


async def test_draining_daemon_and_loading_model_take_no_completion(core: SessionCore) -> None:
    loading = InfillService(
        core.backend,
        counter=ReplyCounter(),
        executor=asyncio.get_running_loop(),  # type: ignore[arg-type]
        counters=core.infill_counters,
    )
    with pytest.raises(ModelLoadingError):
        await loading.complete(GAP, 16)
    core.counter.is_draining = True
    with pytest.raises(ShuttingDownError):
        await complete(core)


async def test_model_without_markers_is_refused(core: SessionCore, tmp_path: Path) -> None:
    core.infill.attach_text(text_of(LlamaTokenizer(str(write_vocabulary(tmp_path / "v.gguf", kind="bpe")))))
    with pytest.raises(FimUnsupportedError, match="cannot fill in the middle"):
        await complete(core)
    assert core.counter.running == 0


async def test_token_of_the_bucket_is_taken_first_even_for_what_is_cached_or_fails(tmp_path: Path) -> None:
    async with session_core(tmp_path / "s.db", completion=CompletionConfig(rate=1, burst=3)) as core:
        bucket = core.sessions.completion_bucket()
        core.backend.answer = lambda _: "b"
        for _ in range(2):
            await core.sessions.complete(bucket, GAP, 16)
        core.counter.is_draining = True
        with pytest.raises(ShuttingDownError):
            await core.sessions.complete(bucket, GAP, 16)
        with pytest.raises(CompletionRateLimitedError) as refusal:
            await core.sessions.complete(bucket, GAP, 16)
        assert refusal.value.retry_after_ms == 1000
        assert core.infill_counters.throttled == 1


# ---- as the HTTP routes ask for it


def http_request(**fields: object) -> GenerationRequest:
    return GenerationRequest(prompt=GAP, sampling=SamplingOverrides(temperature=0.0), **fields)  # type: ignore[arg-type]


async def events_of(reply: Reply) -> list[ReplyEvent]:
    async with asyncio.timeout(30):
        return [event async for batch in reply for event in batch]


async def test_streamed_completion_hands_out_its_text_as_it_comes(core: SessionCore) -> None:
    reply = await core.service.start(http_request(max_tokens=9))
    assert isinstance(reply, InfillReply)
    job = core.backend.last
    job.start(2)
    await job.say("bc")
    await job.end_turn()
    events = await events_of(reply)
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["b", "c"]
    assert events[-1] == ReplyFinished(Finish.END_OF_TURN, len(PROMPT), 2, 3)
    assert (job.job.max_tokens, job.job.qos) == (9, QosClass.COMPLETION)
    assert await core.sessions.session_rows(include_archived=True) == []


async def test_stop_string_ends_the_completion_and_its_job(core: SessionCore) -> None:
    reply = await core.service.start(http_request(stop=("\n",)))
    job = core.backend.last
    job.start()
    await job.say("b;\nmore")
    events = await events_of(reply)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "b;"
    last = events[-1]
    assert isinstance(last, ReplyFinished)
    assert (last.finish, last.stopped_by) == (Finish.END_OF_TURN, "\n")
    assert job.is_cancelled


async def test_only_greedy_completions_are_kept_and_penalties_tell_them_apart(core: SessionCore) -> None:
    core.backend.answer = lambda _: "b"
    drawn = GenerationRequest(prompt=GAP, sampling=SamplingOverrides(temperature=0.5))
    penalized = GenerationRequest(prompt=GAP, sampling=SamplingOverrides(temperature=0.0, repeat_penalty=1.3))
    for request in (drawn, drawn, http_request(), penalized, http_request(stop=("x",)), http_request(ignore_eos=True)):
        await events_of(await core.service.start(request))
    assert (core.infill_counters.generated, core.infill_counters.cached) == (6, 0)
    events = await events_of(await core.service.start(penalized))
    last = events[-1]
    assert isinstance(last, ReplyFinished)
    assert last.is_cached
    assert last.warm_tokens == last.prompt_tokens == len(PROMPT)


@pytest.mark.parametrize(
    ("asked_for", "configured", "max_tokens"), [(None, None, 128), (None, 40, 40), (9, 40, 9), (5000, None, 2048)]
)
async def test_completion_that_does_not_say_gets_what_the_operator_says_or_128_tokens(
    core: SessionCore, asked_for: int | None, configured: int | None, max_tokens: int
) -> None:
    service = ModelService(
        "m",
        created_unix=0,
        backend=core.backend,
        generation=GenerationConfig(max_tokens=configured),
        counter=core.counter,
        executor=core._executor,
        infill=core.infill,
    )
    prompt = InfillPrompt(prefix="p" * 4000, suffix="")
    await service.start(GenerationRequest(prompt=prompt, max_tokens=asked_for))
    assert core.backend.last.job.max_tokens == max_tokens


async def test_model_of_its_own_fills_in_without_the_adapter_and_with_its_own_defaults(core: SessionCore) -> None:
    own = InfillService(
        core.backend, counter=core.counter, executor=core._executor, counters=core.infill_counters, model_id="small"
    )
    own.attach_text(core.text)
    service = ModelService(
        "m",
        created_unix=0,
        backend=core.backend,
        generation=GenerationConfig(),
        counter=core.counter,
        executor=core._executor,
        infill=own,
    )
    await service.start(GenerationRequest(prompt=GAP, adapter=3))
    assert core.backend.last.job.adapter == 0
    assert service.infill_id == "small"
