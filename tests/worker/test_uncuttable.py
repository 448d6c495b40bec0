"""Conversations on models whose state cannot be cut, on llama.cpp: warm wherever they can be, and equal to cold."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.fixtures.tick_loop import SteppedLoop, make_job, make_settings, words
from tests.fixtures.tiny_gguf import Architecture, write_tiny_model

from superfluid.domain.job import Job
from superfluid.domain.request import QosClass, SamplingParams
from superfluid.engine.llama import LlamaEngine, LlamaOptions

ARCHITECTURES: tuple[Architecture, ...] = ("gemma3", "mamba", "lfm2")
"""Sliding window, recurrent, and a hybrid of attention and short convolutions."""
SAMPLED = SamplingParams(temperature=1.0, top_p=0.9, seed=7)
HEADER = words(99, 6)

OpenLoop = Callable[[int], SteppedLoop]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    return write_tiny_model(path, architecture=request.param)


@pytest.fixture
def open_loop(model: Path) -> Iterator[OpenLoop]:
    engines: list[LlamaEngine] = []

    def loop(lanes: int) -> SteppedLoop:
        options = LlamaOptions(lanes=lanes, window_tokens=2048, flash_attention="off", threads=1)
        engines.append(LlamaEngine(model, options))
        assert not engines[-1].facts.can_truncate
        return SteppedLoop(settings=make_settings(lanes, host_cache_bytes=100_000_000), engine=engines[-1])

    yield loop
    for engine in engines:
        engine.close()


def _chat(conversation: list[int], **options: object) -> Job:
    settings = {"max_tokens": 24, "ignore_eos": True, **options}
    job = make_job([*conversation, *HEADER], **settings)  # type: ignore[arg-type]
    return msgspec.structs.replace(job, input_tokens=len(conversation))


def _run(loop: SteppedLoop, job: Job) -> tuple[list[int], int]:
    """The reply and the tokens that were warm."""
    got = loop.submit(job)
    loop.run()
    assert got.rejection is None
    return got.tokens, got.warm_tokens[-1]


def _cold(open_loop: OpenLoop, job: Job) -> list[int]:
    return _run(open_loop(1), job)[0]


@pytest.mark.parametrize("lanes", [1, 3])
def test_conversation_whose_replies_are_kept_is_warm_and_equal_to_cold(open_loop: OpenLoop, lanes: int) -> None:
    loop = open_loop(lanes)
    conversation = words(1, 150)
    for turn in range(4):
        job = _chat(conversation, sampling=SAMPLED)
        reply, warm = _run(loop, job)
        assert reply == _cold(open_loop, job)
        assert warm == (0 if turn == 0 else len(conversation) - 31)
        conversation = [*conversation, *HEADER, *reply, *words(10 + turn, 30)]


def test_conversation_whose_replies_come_back_otherwise_is_warm_up_to_the_input(open_loop: OpenLoop) -> None:
    loop = open_loop(2)
    conversation = words(1, 150)
    known = 0
    for turn in range(4):
        job = _chat(conversation, sampling=SAMPLED)
        reply, warm = _run(loop, job)
        assert reply == _cold(open_loop, job)
        assert warm == known
        known = len(conversation)
        conversation = [*conversation, *words(20 + turn, 40), *words(30 + turn, 30)]


def test_conversations_in_turn_on_one_lane_stay_warm(open_loop: OpenLoop) -> None:
    loop = open_loop(1)
    conversations = {seed: words(seed, 160) for seed in (1, 2, 3)}
    for turn in range(3):
        for seed, conversation in conversations.items():
            job = _chat(conversation)
            reply, warm = _run(loop, job)
            assert reply == _cold(open_loop, job)
            assert (warm > 0) == (turn > 0)
            conversations[seed] = [*conversation, *HEADER, *reply, *words(10 * seed + turn, 30)]


def test_forks_at_the_input_share_it_and_go_their_own_ways(open_loop: OpenLoop) -> None:
    loop = open_loop(3)
    conversation = words(1, 150)
    _run(loop, _chat(conversation))
    jobs = [_chat(conversation, sampling=msgspec.structs.replace(SAMPLED, seed=seed)) for seed in (1, 2, 3)]
    received = [loop.submit(job) for job in jobs]
    loop.run()
    assert [got.warm_tokens for got in received] == [[150]] * 3
    assert [got.tokens for got in received] == [_cold(open_loop, job) for job in jobs]


def test_requests_that_share_a_prompt_read_it_once(open_loop: OpenLoop) -> None:
    loop = open_loop(4)
    prefix = words(1, 1100)
    jobs = [_chat([*prefix, *words(seed, 30)], max_tokens=4) for seed in (2, 3, 4, 5)]
    received = [loop.submit(job) for job in jobs]
    loop.run()
    assert [got.warm_tokens for got in received] == [[0], [1100], [1100], [1100]]
    assert [got.tokens for got in received] == [_cold(open_loop, job) for job in jobs]


@pytest.mark.parametrize("produced", [1, 9])
def test_preempted_reply_goes_on_as_if_nothing_had_happened(open_loop: OpenLoop, produced: int) -> None:
    loop = open_loop(1)
    agent = _chat(words(1, 150), sampling=SAMPLED, max_tokens=40)
    got = loop.submit(agent)
    while len(got.tokens) < produced:
        loop.tick()
    chat = _chat(words(2, 130), qos=QosClass.INTERACTIVE)
    chatted = loop.submit(chat)
    loop.run()
    assert loop.records[-1].preemptions_total == 1
    assert got.warm_tokens[-1] >= 150
    assert got.tokens == _cold(open_loop, agent)
    assert chatted.tokens == _cold(open_loop, chat)


def test_chunks_are_never_ended_early(open_loop: OpenLoop) -> None:
    """llama.cpp would leave a state behind that is neither the one before nor the one after."""
    loop = open_loop(2)
    loop.engine.abort()
    job = _chat(words(1, 400))
    reply, _ = _run(loop, job)
    loop.engine.resume()
    assert reply == _cold(open_loop, job)
