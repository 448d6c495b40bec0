"""Exact mode on the real model: warm or cold, alone or among others, moved or not, the greedy tokens are the same."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.engine_runs import feed, greedy, row

from superfluid.engine.llama import LlamaEngine, LlamaOptions

PROMPT_TOKENS = 80
REPLY_TOKENS = 12


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[LlamaEngine]:
    options = LlamaOptions(lanes=4, window_tokens=256, flash_attention="off", threads=1)
    engine = LlamaEngine(smollm2_path, options)
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def _empty_lanes(engine: LlamaEngine) -> None:
    for lane in range(engine.facts.lanes):
        engine.clear(lane)


def _prompt(seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(100, 40_000, PROMPT_TOKENS)]


def test_real_model_warm_prefix_in_its_lane_or_imported_gives_the_cold_tokens(engine: LlamaEngine) -> None:
    tokens = _prompt()
    logits = feed(engine, 0, tokens)
    state = engine.export_lane(0)
    cold = greedy(engine, 0, logits, REPLY_TOKENS)
    for kept in (PROMPT_TOKENS - 2, 37):
        assert engine.truncate(0, kept)
        assert greedy(engine, 0, feed(engine, 0, tokens[kept:]), REPLY_TOKENS) == cold
    assert engine.import_lane(2, state, PROMPT_TOKENS)
    assert engine.truncate(2, PROMPT_TOKENS - 2)
    assert greedy(engine, 2, feed(engine, 2, tokens[-2:]), REPLY_TOKENS) == cold


def test_real_model_neighbours_and_their_prefills_do_not_change_a_bit(engine: LlamaEngine) -> None:
    alone = [feed(engine, 1, _prompt())]
    for _ in range(REPLY_TOKENS):
        alone.append(feed(engine, 1, [int(alone[-1].argmax())]))
    engine.clear(1)
    rows = [feed(engine, lane, _prompt(seed)) for lane, seed in enumerate((5, 0, 6))]
    for expected in alone[1:]:
        step = engine.step([row(lane, engine.length(lane), [int(rows[lane].argmax())]) for lane in range(3)])
        rows = [logits.copy() for logits in step.logits]
        feed(engine, 3, _prompt(7)[:9])
        assert np.array_equal(rows[1], expected)
