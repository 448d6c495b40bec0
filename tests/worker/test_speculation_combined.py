"""Guessing ahead with adapters, images, preemption, lost workers and jobs that run alone: the same replies."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.fixtures.image_jobs import Part, image_job, pool_image
from tests.fixtures.images import picture
from tests.fixtures.tick_loop import Received, SteppedLoop, make_job, make_settings, words
from tests.fixtures.tiny_gguf import write_tiny_model
from tests.fixtures.tiny_lora import write_tiny_lora
from tests.fixtures.tiny_vision import write_tiny_vision

from superfluid.domain.job import Job
from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass, SamplingParams
from superfluid.domain.speculation import NO_SPECULATION, SpeculationRules
from superfluid.engine.fake import FakeEngine
from superfluid.engine.fake_script import FakeScript
from superfluid.engine.interface import Engine, Row, StepResult
from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.engine.llama_draft import open_draft
from superfluid.worker.draft_model import DraftModel
from superfluid.worker.protocol import LoadAdapter

_LOOKUP = SpeculationRules(strategy="prompt-lookup", has_gate=False, min_yield=0, is_adaptive=False)
_DRAFTING = SpeculationRules(strategy="draft-model", has_gate=False, min_yield=0)
_OPTIONS = LlamaOptions(lanes=3, window_tokens=512, threads=1, flash_attention="off")
_RED, _BLUE = picture(1), picture(2)

guessing = pytest.mark.parametrize("rules", [_LOOKUP, _DRAFTING], ids=["lookup", "model"])


class _Watched:
    """An engine that is asked to evaluate tokens only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.evaluated = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def step(self, rows: Sequence[Row]) -> StepResult:
        assert all(int(row.tokens.min()) >= 0 for row in rows), "an image's id is no token"
        self.evaluated += sum(len(row.tokens) for row in rows)
        return self._engine.step(rows)


def _watched(engine: Engine) -> Engine:
    return _Watched(engine)  # type: ignore[return-value]


def _finish(loop: SteppedLoop, received: Sequence[Received], rules: SpeculationRules) -> list[list[int]]:
    loop.run()
    assert all(reply.finish is not Finish.NONE for reply in received)
    proposed = loop.records[-1].spec_proposed_total
    assert (proposed > 0) == rules.is_on
    return [reply.tokens for reply in received]


def _repeating(seed: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(97, 123, 25).tolist()
    return tokens * 3


# ---- adapters


def _replies_with_adapters(tmp_path: Path, rules: SpeculationRules) -> list[list[int]]:
    """The same prompt with two adapters and without, at once; then again, when lanes know others' conversations."""
    model = write_tiny_model(tmp_path / "model.gguf")
    engine = LlamaEngine(model, _OPTIONS)
    draft = None
    if rules.strategy == "draft-model":
        draft = open_draft(engine, model, write_tiny_model(tmp_path / "draft.gguf", layers=3), _OPTIONS)
    settings = make_settings(lanes=3, speculation=rules)
    loop = SteppedLoop(settings=settings, engine=engine, draft_model=None if draft is None else DraftModel(draft))
    for adapter in (1, 2):
        path = write_tiny_lora(tmp_path / f"{adapter}.gguf", seed=adapter)
        loop.loop.take(LoadAdapter(adapter, str(path)))
    received = []
    for adapters in ((0, 1, 2), (2, 0, 1)):
        received += [
            loop.submit(make_job(_repeating(4), adapter=adapter, max_tokens=60, ignore_eos=True))
            for adapter in adapters
        ]
        loop.run()
    replies = _finish(loop, received, rules)
    for opened in filter(None, (engine, draft)):
        opened.close()
    return replies


@guessing
def test_replies_of_adapters_are_those_of_plain_decoding(tmp_path: Path, rules: SpeculationRules) -> None:
    plain = _replies_with_adapters(tmp_path, NO_SPECULATION)
    assert len({tuple(reply) for reply in plain}) == 3
    assert _replies_with_adapters(tmp_path, rules) == plain


# ---- images


def _vision_loop(directory: Path, rules: SpeculationRules, *, is_real: bool) -> SteppedLoop:
    """Both engines, the one that drafts included, fail over ids below 0."""
    pool = directory / "media"
    pool.mkdir(exist_ok=True)
    for content in (_RED, _BLUE):
        pool_image(pool, content)
    draft: Engine | None = None
    engine: Engine
    if is_real:
        pair = write_tiny_vision(directory)
        options = replace(_OPTIONS, projector=pair.projector, projector_type="idefics3")
        target = LlamaEngine(pair.model, options)
        if rules.strategy == "draft-model":
            draft = open_draft(target, pair.model, pair.model, options)
        engine = target
    else:
        engine = FakeEngine(FakeScript(image_tokens=24), lanes=3)
        draft = FakeEngine(lanes=3) if rules.strategy == "draft-model" else None
    settings = msgspec.structs.replace(make_settings(lanes=3, speculation=rules), media_directory=str(pool))
    drafting = None if draft is None else DraftModel(_watched(draft))
    return SteppedLoop(settings=settings, engine=_watched(engine), draft_model=drafting)


@pytest.mark.parametrize("is_real", [False, True], ids=["fake", "llama"])
@guessing
def test_replies_about_images_are_those_of_plain_decoding(
    tmp_path: Path, rules: SpeculationRules, is_real: bool
) -> None:
    """The same picture twice in a conversation, and text before, between and behind that repeats itself."""
    prompts: list[list[Part]] = [
        [_repeating(1), _RED, _repeating(1), _RED, _repeating(1)],
        [_repeating(2), _BLUE, _repeating(2)],
        [_repeating(3)],
    ]

    def replies(rules: SpeculationRules) -> list[list[int]]:
        loop = _vision_loop(tmp_path, rules, is_real=is_real)
        jobs = [image_job(loop.engine, number, parts, max_tokens=40) for number, parts in enumerate(prompts, 1)]
        return _finish(loop, [loop.submit(job) for job in jobs], rules)

    assert replies(rules) == replies(NO_SPECULATION)


# ---- lanes that are lost


def _fake_loop(rules: SpeculationRules, lanes: int = 1) -> SteppedLoop:
    draft = DraftModel(FakeEngine(lanes=lanes)) if rules.strategy == "draft-model" else None
    return SteppedLoop(settings=make_settings(lanes=lanes, speculation=rules), draft_model=draft)


@guessing
def test_reply_goes_on_after_a_preemption(rules: SpeculationRules) -> None:
    sampling = SamplingParams(temperature=1.0, seed=9)

    def reply(rules: SpeculationRules) -> list[list[int]]:
        loop = _fake_loop(rules)
        background = loop.submit(make_job(words(1, 20) * 4, max_tokens=150, sampling=sampling, ignore_eos=True))
        while len(background.tokens) < 40:
            loop.tick()
        chat = loop.submit(make_job(words(2, 20) * 4, max_tokens=30, qos=QosClass.INTERACTIVE, ignore_eos=True))
        replies = _finish(loop, [background, chat], rules)
        assert len(background.warm_tokens) == 2
        return replies

    assert reply(rules) == reply(NO_SPECULATION)


@guessing
def test_reply_goes_on_in_another_worker_after_a_kill(rules: SpeculationRules) -> None:
    """What the first worker drew and did not tell never was; the second one's draft model knows nothing yet."""
    job = make_job(words(1, 20) * 4, max_tokens=150, sampling=SamplingParams(temperature=0.8, seed=3), ignore_eos=True)
    whole = _fake_loop(NO_SPECULATION)
    plain = whole.submit(job)
    whole.run()
    lost = _fake_loop(rules)
    before = lost.submit(job)
    while len(before.tokens) < 50:
        lost.tick()
    rest = msgspec.structs.replace(
        job,
        tokens=job.tokens + np.array(before.tokens, "<i4").tobytes(),
        max_tokens=job.max_tokens - len(before.tokens),
        is_resubmission=True,
    )
    loop = _fake_loop(rules)
    after = loop.submit(rest)
    _finish(loop, [after], rules)
    assert before.tokens + after.tokens == plain.tokens


# ---- several replies, and jobs that run alone


@guessing
def test_several_replies_to_one_prompt_are_those_of_plain_decoding(rules: SpeculationRules) -> None:
    def replies(rules: SpeculationRules) -> list[list[int]]:
        loop = _fake_loop(rules, lanes=4)
        jobs = [
            make_job(
                words(1, 30) * 3, max_tokens=60, sampling=SamplingParams(temperature=1.0, seed=seed), ignore_eos=True
            )
            for seed in range(4)
        ]
        return _finish(loop, [loop.submit(job) for job in jobs], rules)

    assert replies(rules) == replies(NO_SPECULATION)


@guessing
def test_job_that_runs_alone_is_not_guessed_for_while_others_are(rules: SpeculationRules) -> None:
    def submit(loop: SteppedLoop, change: Callable[[Job], Job]) -> Received:
        return loop.submit(change(make_job(words(1, 30) * 3, max_tokens=40, ignore_eos=True)))

    def alone(job: Job) -> Job:
        return msgspec.structs.replace(job, is_batch_invariant=True)

    lonely = _fake_loop(rules)
    reply = submit(lonely, alone)
    lonely.run()
    assert lonely.records[-1].spec_proposed_total == 0
    both = _fake_loop(rules, lanes=2)
    received = [submit(both, alone), submit(both, lambda job: job)]
    tokens = _finish(both, received, rules)
    assert tokens[0] == reply.tokens
