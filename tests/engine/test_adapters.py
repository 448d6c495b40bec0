"""LoRA adapters on a tiny model, in exact mode: what they change, what they leave alone, what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures.engine_runs import feed, greedy, prompt, row
from tests.fixtures.tiny_gguf import write_tiny_model
from tests.fixtures.tiny_lora import write_poisonous_lora, write_tiny_lora

from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.errors import AdapterRefusedError

REPLY_TOKENS = 24


@pytest.fixture
def engine(tiny_path: Path) -> Iterator[LlamaEngine]:
    engine = LlamaEngine(tiny_path, LlamaOptions(lanes=3, window_tokens=256, flash_attention="off", threads=1))
    yield engine
    engine.close()


def _reply(engine: LlamaEngine, adapter: int, lane: int = 0) -> list[int]:
    engine.clear(lane)
    engine.use_adapter(adapter)
    return greedy(engine, lane, feed(engine, lane, prompt(40)), REPLY_TOKENS)


def test_adapter_changes_the_reply_always_alike_and_each_in_its_own_way(engine: LlamaEngine, tmp_path: Path) -> None:
    base = _reply(engine, 0)
    for adapter in (1, 2):
        engine.load_adapter(adapter, write_tiny_lora(tmp_path / f"{adapter}.gguf", seed=adapter))
    first, second = _reply(engine, 1), _reply(engine, 2)
    assert len({tuple(reply) for reply in (base, first, second)}) == 3
    assert _reply(engine, 1) == first
    assert _reply(engine, 2, lane=2) == second


def test_base_replies_bit_for_bit_as_if_no_adapter_had_ever_been_there(engine: LlamaEngine, tmp_path: Path) -> None:
    before = feed(engine, 0, prompt(40))
    engine.load_adapter(7, write_tiny_lora(tmp_path / "seven.gguf"))
    _reply(engine, 7, lane=1)
    engine.use_adapter(0)
    engine.clear(0)
    assert np.array_equal(feed(engine, 0, prompt(40)), before)


def test_steps_of_adapters_in_turn_give_each_lane_what_it_gets_alone(engine: LlamaEngine, tmp_path: Path) -> None:
    for adapter in (1, 2):
        engine.load_adapter(adapter, write_tiny_lora(tmp_path / f"{adapter}.gguf", seed=adapter))
    alone = [_reply(engine, adapter) for adapter in range(3)]
    replies: list[list[int]] = [[], [], []]
    for adapter in range(3):
        engine.clear(adapter)
        engine.use_adapter(adapter)
        replies[adapter].append(int(feed(engine, adapter, prompt(40)).argmax()))
    for _ in range(REPLY_TOKENS - 1):
        for adapter, reply in enumerate(replies):
            engine.use_adapter(adapter)
            step = engine.step([row(adapter, engine.length(adapter), reply[-1:])])
            reply.append(int(step.logits[0].argmax()))
    assert replies == alone


def test_loading_an_adapter_touches_no_lane(engine: LlamaEngine, tmp_path: Path) -> None:
    expected = _reply(engine, 0)
    engine.clear(0)
    logits = feed(engine, 0, prompt(40))
    engine.load_adapter(1, write_tiny_lora(tmp_path / "a.gguf"))
    assert engine.length(0) == 40
    assert greedy(engine, 0, logits, REPLY_TOKENS) == expected


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"architecture": "qwen2"}, "arch mismatch"),
        ({"embedding": 96}, "incorrect shape"),
        ({"rank_of_b": 3}, "not transposed"),
        ({"layers": 9}, "does not exist in base model"),
        ({"strings": {"general.type": "model"}}, "general.type"),
        ({"strings": {"adapter.type": "control-vector"}}, "adapter.type"),
        ({"gain": float("nan")}, "no numbers"),
        ({"gain": 1e30}, "no numbers"),
    ],
)
def test_adapter_that_does_not_fit_is_refused_with_the_reason_and_the_model_goes_on(
    engine: LlamaEngine, tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    expected = _reply(engine, 0)
    with pytest.raises(AdapterRefusedError, match=reason):
        engine.load_adapter(1, write_tiny_lora(tmp_path / "bad.gguf", **options))
    assert _reply(engine, 0) == expected


@pytest.mark.parametrize("content", [None, b"", b"GGUF", b"no model at all"])
def test_file_that_is_no_adapter_is_refused(engine: LlamaEngine, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bad.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AdapterRefusedError, match="bad"):
        engine.load_adapter(1, path)


def test_freed_adapter_leaves_the_others(engine: LlamaEngine, tmp_path: Path) -> None:
    for adapter in (1, 2):
        engine.load_adapter(adapter, write_tiny_lora(tmp_path / f"{adapter}.gguf", seed=adapter))
    second = _reply(engine, 2)
    engine.free_adapter(1)
    assert _reply(engine, 2) == second
    with pytest.raises(KeyError):
        engine.use_adapter(1)


def test_model_of_another_shape_takes_an_adapter_made_for_it(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "two.gguf", layers=2)
    engine = LlamaEngine(model, LlamaOptions(lanes=1, window_tokens=256, threads=1))
    engine.load_adapter(1, write_tiny_lora(tmp_path / "two-layers.gguf", layers=2))
    base, adapted = _reply(engine, 0), _reply(engine, 1)
    engine.close()
    assert base != adapted


def test_scrubbed_lane_is_as_new_after_an_adapter_that_gave_no_numbers_and_its_neighbours_notice_nothing(
    engine: LlamaEngine, tmp_path: Path
) -> None:
    expected = _reply(engine, 0)
    neighbour = feed(engine, 1, prompt(60))
    expected_neighbour = greedy(engine, 1, neighbour, REPLY_TOKENS)
    engine.clear(1)
    neighbour = feed(engine, 1, prompt(60))
    engine.load_adapter(1, write_poisonous_lora(tmp_path / "a.gguf", int(prompt(40)[-1])))
    engine.clear(0)
    engine.use_adapter(1)
    assert np.isnan(feed(engine, 0, [int(prompt(40)[-1])] * 120)).all()
    engine.clear(0)
    engine.use_adapter(0)
    assert np.isnan(feed(engine, 0, prompt(40))).all(), "clearing is not enough: else nothing of this is needed"
    engine.scrub(0)
    assert engine.length(0) == 0
    assert engine.length(1) == 60
    assert _reply(engine, 0) == expected
    assert greedy(engine, 1, neighbour, REPLY_TOKENS) == expected_neighbour
