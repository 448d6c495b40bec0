"""A reply that loses its lane and gets it back: to its client a pause."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.fixtures.tick_loop import SteppedLoop, cold_reply, make_job, make_settings, words
from tests.fixtures.tiny_gguf import write_tiny_model

from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass, SamplingParams
from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.worker.protocol import Cancel

SAMPLED = SamplingParams(temperature=1.2, top_p=0.9, seed=5, repeat_penalty=1.1)
INTERACTIVE = QosClass.INTERACTIVE


@pytest.mark.parametrize("host_cache_bytes", [0, 1_000_000])
@pytest.mark.parametrize("produced", [1, 2, 30])
def test_tick_preempted_reply_draws_what_the_undisturbed_one_would_have(produced: int, host_cache_bytes: int) -> None:
    loop = SteppedLoop(settings=make_settings(1, host_cache_bytes=host_cache_bytes))
    agent = make_job(words(1, 200), max_tokens=60, sampling=SAMPLED)
    chat = make_job(words(2, 40), max_tokens=10, sampling=SAMPLED, qos=INTERACTIVE)
    got = loop.submit(agent)
    while len(got.tokens) < produced:
        loop.tick()
    chatted = loop.submit(chat)
    loop.tick()
    assert len(got.tokens) == produced
    loop.run()
    assert (got.tokens, got.finish) == (cold_reply(agent), Finish.LENGTH)
    assert chatted.tokens == cold_reply(chat)
    assert loop.records[-1].preemptions_total == 1
    assert len(got.warm_tokens) == 2
    assert sum(len(record.first_token_seconds) for record in loop.records) == 3


def test_tick_preempted_again_and_again_loses_and_repeats_nothing() -> None:
    loop = SteppedLoop(settings=make_settings(2))
    agents = [make_job(words(seed, 150), max_tokens=80, sampling=SAMPLED) for seed in (1, 2)]
    received = [loop.submit(agent) for agent in agents]
    chats = []
    for seed in range(10, 24):
        for _ in range(7):
            loop.tick()
        chat = make_job(words(seed, 30), max_tokens=4, qos=INTERACTIVE)
        chats.append((chat, loop.submit(chat)))
    loop.run()
    assert loop.records[-1].preemptions_total > 3
    assert [got.tokens for got in received] == [cold_reply(agent) for agent in agents]
    assert [got.tokens for _, got in chats] == [cold_reply(chat) for chat, _ in chats]


def test_tick_preempted_job_is_told_to_wait_and_is_logged_by_numbers(caplog: pytest.LogCaptureFixture) -> None:
    loop = SteppedLoop(settings=make_settings(1))
    agent = msgspec.structs.replace(make_job(words(1, 50), max_tokens=100, qos=QosClass.BACKGROUND), session=42)
    got = loop.submit(agent)
    while len(got.tokens) < 3:
        loop.tick()
    loop.submit(make_job(words(2, 20), qos=INTERACTIVE))
    with caplog.at_level(logging.INFO, "superfluid_daemon::scheduler"):
        loop.tick()
    (record,) = caplog.records
    assert record.getMessage() == "a lane was preempted"
    assert record.fields == {"session": 42, "job": agent.job_id, "lane": 0, "class": 3, "produced": 3}  # type: ignore[attr-defined]
    assert got.is_waiting_again
    loop.run()
    assert not got.is_waiting_again


def test_take_cancel_of_a_preempted_job_ends_it() -> None:
    loop = SteppedLoop(settings=make_settings(1))
    agent = make_job(words(1, 50), max_tokens=100)
    got = loop.submit(agent)
    for _ in range(5):
        loop.tick()
    loop.submit(make_job(words(2, 20), max_tokens=50, qos=INTERACTIVE))
    loop.tick()
    loop.loop.take(Cancel(agent.job_id))
    loop.run()
    assert got.finish is Finish.CANCELLED


# ---- on llama.cpp, in exact mode


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture
def open_loop(tiny_model: Path) -> Iterator[Callable[[int, int], SteppedLoop]]:
    engines: list[LlamaEngine] = []

    def loop(lanes: int, host_cache_bytes: int) -> SteppedLoop:
        options = LlamaOptions(lanes=lanes, window_tokens=512, flash_attention="off", threads=1)
        engines.append(LlamaEngine(tiny_model, options))
        return SteppedLoop(settings=make_settings(lanes, host_cache_bytes=host_cache_bytes), engine=engines[-1])

    yield loop
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("host_cache_bytes", [0, 100_000_000])
@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0), SAMPLED])
def test_exact_mode_preempted_reply_is_the_undisturbed_one(
    open_loop: Callable[[int, int], SteppedLoop], host_cache_bytes: int, sampling: SamplingParams
) -> None:
    agents = [make_job(words(seed, 90), max_tokens=60, sampling=sampling, ignore_eos=True) for seed in (1, 2)]
    alone = []
    for agent in agents:
        undisturbed = open_loop(1, host_cache_bytes)
        alone.append(undisturbed.submit(agent))
        undisturbed.run()
    loop = open_loop(2, host_cache_bytes)
    received = [loop.submit(agent) for agent in agents]
    for seed in (20, 21, 22):
        for _ in range(12):
            loop.tick()
        loop.submit(make_job(words(seed, 40), max_tokens=5, qos=INTERACTIVE))
    loop.run()
    assert loop.records[-1].preemptions_total >= 2
    assert [got.tokens for got in received] == [got.tokens for got in alone]
