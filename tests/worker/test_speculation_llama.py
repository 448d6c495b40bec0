"""Guessing ahead on llama.cpp with tiny models: the same tokens as without, whatever was guessed."""

from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.tick_loop import Received, SteppedLoop, make_job, make_settings
from tests.fixtures.tiny_gguf import write_tiny_model

from superfluid.domain.request import SamplingParams
from superfluid.domain.speculation import NO_SPECULATION, SpeculationRules
from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.engine.llama_draft import open_draft
from superfluid.worker.draft_model import DraftModel

_LOOKUP = SpeculationRules(strategy="prompt-lookup", has_gate=False, min_yield=0, is_adaptive=False)
_DRAFTING = SpeculationRules(strategy="draft-model", has_gate=False, min_yield=0)
_OPTIONS = LlamaOptions(lanes=3, window_tokens=512, threads=1, flash_attention="off")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and one of the same vocabulary with a layer less."""
    directory = tmp_path_factory.mktemp("models")
    return write_tiny_model(directory / "target.gguf"), write_tiny_model(directory / "draft.gguf", layers=3)


def _replies(
    paths: tuple[Path, Path], rules: SpeculationRules, sampling: SamplingParams
) -> tuple[list[Received], SteppedLoop]:
    engine = LlamaEngine(paths[0], _OPTIONS)
    draft = open_draft(engine, paths[0], paths[1], _OPTIONS) if rules.strategy == "draft-model" else None
    loop = SteppedLoop(
        settings=make_settings(lanes=3, speculation=rules),
        engine=engine,
        draft_model=None if draft is None else DraftModel(draft),
    )
    words = [np.random.default_rng(seed).integers(97, 123, 25).tolist() for seed in range(4)]
    received = [loop.submit(make_job(word * 3, max_tokens=80, sampling=sampling, ignore_eos=True)) for word in words]
    loop.run()
    for opened in filter(None, (engine, draft)):
        opened.close()
    return received, loop


@pytest.mark.parametrize("rules", [_LOOKUP, _DRAFTING], ids=["lookup", "model"])
def test_greedy_replies_are_those_of_plain_decoding(paths: tuple[Path, Path], rules: SpeculationRules) -> None:
    """Greedy only: llama.cpp rounds a row of several tokens differently from single ones now and then, which a draw can
    notice. That draws are the same for the same logits is tested on the fake engine."""
    greedy = SamplingParams(temperature=0)
    plain, _ = _replies(paths, NO_SPECULATION, greedy)
    guessed, loop = _replies(paths, rules, greedy)
    assert [reply.tokens for reply in guessed] == [reply.tokens for reply in plain]
    assert 0 < loop.records[-1].spec_accepted_total < loop.records[-1].spec_proposed_total


def test_model_whose_state_cannot_be_cut_is_decoded_plainly(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "mamba.gguf", architecture="mamba")
    engine = LlamaEngine(path, LlamaOptions(lanes=1, window_tokens=256, threads=1))
    loop = SteppedLoop(settings=make_settings(lanes=1, speculation=_LOOKUP), engine=engine)
    received = loop.submit(make_job([97, 98, 99] * 8, max_tokens=30, ignore_eos=True))
    loop.run()
    engine.close()
    assert len(received.tokens) == 30
    assert loop.records[-1].spec_proposed_total == 0
