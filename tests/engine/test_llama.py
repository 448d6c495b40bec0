"""The llama.cpp engine beyond the shared contract: graphs per step, exact mode, facts, and how loading fails."""

import ctypes
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures.engine_runs import feed, greedy, prompt, row
from tests.fixtures.tiny_gguf import EMBEDDING, HEAD_SIZE, KV_HEADS, LAYERS, write_tiny_model

from superfluid.engine import llama
from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.errors import ModelFileError, ModelLoadError, UsageError


def _open(path: Path, lanes: int = 8, **options: Any) -> LlamaEngine:
    """One thread: with two, a busy machine makes llama.cpp's barriers the slowest part of a tiny step."""
    return LlamaEngine(path, LlamaOptions(lanes=lanes, **{"threads": 1, "window_tokens": 512} | options))


@pytest.fixture
def exact(tiny_path: Path) -> Iterator[LlamaEngine]:
    """Eight lanes without flash attention: exact mode."""
    engine = _open(tiny_path, flash_attention="off")
    yield engine
    engine.close()


class GraphCounter:
    """Counts graph runs: each computes one tensor called ``result_output``."""

    def __init__(self) -> None:
        import llama_cpp.llama_cpp as binding

        self._name = binding._lib.ggml_get_name
        self._name.restype = ctypes.c_char_p
        self._name.argtypes = [ctypes.c_void_p]
        self.runs = 0

    def __call__(self, tensor: int, is_asked: bool, _data: Any) -> bool:
        self.runs += bool(is_asked) and self._name(tensor) == b"result_output"
        return False


@pytest.mark.parametrize(
    ("lanes", "graphs"),
    [
        ([0], 1),
        ([0, 1, 2, 3, 4, 5, 6, 7], 1),
        ([3, 4, 5], 1),
        ([0, 1, 2, 4, 5], 2),
        ([0, 2, 4, 6], 4),
        ([0, 1, 6, 7], 2),
    ],
)
def test_step_runs_one_graph_per_run_of_consecutive_lanes(tiny_path: Path, lanes: list[int], graphs: int) -> None:
    counter = GraphCounter()
    engine = _open(tiny_path, evaluation_callback=counter)
    for lane in lanes:
        feed(engine, lane, prompt(5 + lane))
    counter.runs = 0
    engine.step([row(lane, engine.length(lane), [97]) for lane in lanes])
    assert counter.runs == graphs
    engine.close()


def test_step_decode_rows_and_a_chunk_in_one_call_take_a_graph_more_than_apart(tiny_path: Path) -> None:
    """Why a tick evaluates its chunk in a call of its own: mixed, it is split into its first token and the rest."""
    counter = GraphCounter()
    engine = _open(tiny_path, evaluation_callback=counter)
    for lane in range(4):
        feed(engine, lane, prompt(5))
    counter.runs = 0
    engine.step([*(row(lane, 5, [97]) for lane in range(4)), row(4, 0, prompt(40))])
    assert counter.runs == 2
    counter.runs = 0
    engine.step([row(lane, 6, [97]) for lane in range(4)])
    engine.step([row(5, 0, prompt(40))])
    assert counter.runs == 2
    engine.close()


@pytest.mark.parametrize("chunk", [2, 7, 16, 64, 99])
def test_exact_mode_chunks_of_any_size_give_the_whole_prompts_logits(exact: LlamaEngine, chunk: int) -> None:
    tokens = prompt(200)
    whole = feed(exact, 0, tokens)
    assert np.array_equal(feed(exact, 1, tokens, chunk), whole)


@pytest.mark.parametrize("kept", [1, 63, 64, 150, 198])
def test_exact_mode_warm_prefix_gives_the_cold_runs_tokens(exact: LlamaEngine, kept: int) -> None:
    tokens = prompt(200)
    cold = greedy(exact, 0, feed(exact, 0, tokens), 40)
    assert exact.truncate(0, kept)
    assert greedy(exact, 0, feed(exact, 0, tokens[kept:]), 40) == cold


def test_exact_mode_neighbours_do_not_change_a_bit(exact: LlamaEngine) -> None:
    tokens = prompt(30, seed=3)
    alone = [feed(exact, 3, tokens)]
    for _ in range(20):
        alone.append(feed(exact, 3, [int(alone[-1].argmax())]))
    exact.clear(3)
    rows = [feed(exact, lane, prompt(30, seed=lane)) for lane in range(7)]
    for expected in alone[1:]:
        step = exact.step([row(lane, exact.length(lane), [int(rows[lane].argmax())]) for lane in range(7)])
        rows = [logits.copy() for logits in step.logits]
        feed(exact, 7, prompt(11, seed=exact.length(7)))
        assert np.array_equal(rows[3], expected)


def test_exact_mode_exported_state_goes_on_bit_for_bit_in_an_engine_with_other_lanes(
    exact: LlamaEngine, tiny_path: Path
) -> None:
    feed(exact, 5, prompt(50))
    state = exact.export_lane(5)
    expected = feed(exact, 5, prompt(2, seed=1))
    other = _open(tiny_path, lanes=2, flash_attention="off", window_tokens=1024)
    assert other.facts.state_key == exact.facts.state_key
    assert other.import_lane(1, state, 50)
    assert np.array_equal(feed(other, 1, prompt(2, seed=1)), expected)
    other.close()


def test_state_of_flash_attention_is_refused_without_it_and_has_another_key(
    exact: LlamaEngine, tiny_path: Path
) -> None:
    flash = _open(tiny_path, flash_attention="on")
    assert flash.facts.flash_attention
    assert not exact.facts.flash_attention
    assert flash.facts.state_key != exact.facts.state_key
    feed(flash, 0, prompt(10))
    assert not exact.import_lane(0, flash.export_lane(0), 10)
    assert exact.length(0) == 0
    flash.close()


def test_step_logits_are_a_view_of_the_engines_memory(exact: LlamaEngine) -> None:
    logits = exact.step([row(0, 0, prompt(3))]).logits
    assert not logits.flags.owndata


def test_facts_kv_bytes_are_what_the_shape_of_the_model_says(tiny_path: Path) -> None:
    engine = _open(tiny_path, lanes=3, window_tokens=512)
    assert engine.facts.kv_bytes == 3 * 512 * LAYERS * 2 * KV_HEADS * HEAD_SIZE * 2
    engine.close()


def test_facts_of_the_file_are_read(tmp_path: Path) -> None:
    defaults = {"temp": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.125, "penalty_repeat": 1.5}
    engine = _open(write_tiny_model(tmp_path / "m.gguf", sampling_defaults=defaults, trained_window_tokens=700))
    facts = engine.facts
    sampling = facts.sampling_defaults
    assert (facts.architecture, facts.trained_window_tokens, facts.engine) == ("llama", 700, "llamacpp")
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.25, 7, 0.5)
    assert (sampling.min_p, sampling.repeat_penalty) == (0.125, 1.5)
    assert facts.parameters > EMBEDDING * facts.vocabulary_tokens
    assert facts.weights_bytes > 0
    engine.close()


def test_facts_sampling_default_out_of_range_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = _open(write_tiny_model(tmp_path / "m.gguf", sampling_defaults={"top_p": 7.5, "temp": 0.5}))
    assert engine.facts.sampling_defaults.top_p is None
    assert engine.facts.sampling_defaults.temperature == 0.5
    assert "top_p" in caplog.text
    engine.close()


def test_state_key_differs_between_models_and_not_between_their_lanes(tmp_path: Path, tiny_path: Path) -> None:
    keys = []
    for path, lanes in [(tiny_path, 1), (tiny_path, 4), (write_tiny_model(tmp_path / "other.gguf", seed=1), 1)]:
        engine = _open(path, lanes=lanes)
        keys.append(engine.facts.state_key)
        engine.close()
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("available_bytes", "windows"),
    [(10**9, [20_000]), (12_000_000, range(10_240, 12_000, 256)), (None, [8192])],
)
def test_window_none_is_what_there_is_memory_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available_bytes: int | None, windows: Sequence[int]
) -> None:
    monkeypatch.setattr(llama, "available_memory_bytes", lambda: available_bytes)
    path = write_tiny_model(tmp_path / "long.gguf", trained_window_tokens=20_000)
    engine = _open(path, lanes=1, window_tokens=None)
    assert engine.facts.window_tokens in windows
    assert ("trained for 20,000" in engine.facts.window_reason) == (available_bytes is not None)
    engine.close()


def test_window_to_be_fitted_is_refused_where_memory_is_unknown(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "available_memory_bytes", lambda: None)
    with pytest.raises(UsageError, match="--max-context auto cannot be worked out"):
        _open(tiny_path, lanes=1, window_tokens=None, is_window_fitted=True)


@pytest.mark.parametrize(("bits", "name", "share"), [(8, "q8_0", 34 / 64), (4, "q4_0", 18 / 64)])
def test_kv_bits_quantize_keys_and_values(tmp_path: Path, bits: int, name: str, share: float) -> None:
    path = write_tiny_model(tmp_path / "wide.gguf", head_size=32)
    plain, small = _open(path, lanes=2), _open(path, lanes=2, kv_bits=bits)
    assert (small.facts.kv_type, small.facts.kv_bits) == (name, bits)
    assert small.facts.kv_bytes == plain.facts.kv_bytes * share
    assert small.facts.flash_attention
    assert small.facts.state_key != plain.facts.state_key
    feed(small, 0, prompt(40))
    assert small.import_lane(1, small.export_lane(0), 40)
    assert not plain.import_lane(1, small.export_lane(0), 40)
    replies = [greedy(small, lane, small.step([row(lane, 40, [104, 105])]).logits[0], 8) for lane in (0, 1)]
    assert replies[0] == replies[1]
    plain.close()
    small.close()


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"kv_bits": 5}, "must be 0, 4 or 8"),
        ({"kv_bits": 8, "flash_attention": "off"}, "needs flash attention"),
        ({"kv_bits": 8}, "heads of this model have 16 values"),
    ],
)
def test_kv_bits_that_cannot_be_are_refused(tiny_path: Path, options: dict[str, Any], cause: str) -> None:
    with pytest.raises(UsageError, match=cause):
        _open(tiny_path, **options)


def test_kv_bits_of_a_recurrent_model_are_refused(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "mamba.gguf", architecture="mamba")
    with pytest.raises(UsageError, match="its state is recurrent"):
        _open(path, kv_bits=8)


def test_window_over_the_trained_one_is_allowed_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tiny_model(tmp_path / "short.gguf", trained_window_tokens=256)
    engine = _open(path, lanes=1, window_tokens=600)
    assert engine.facts.window_tokens == 600
    assert "600" in caplog.text
    feed(engine, 0, prompt(600))
    engine.close()


def test_threads_over_the_cpus_are_clamped_with_a_warning(
    tiny_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "usable_cpus", lambda: frozenset({0}))
    engine = _open(tiny_path, lanes=1, threads=64)
    assert engine.facts.threads == 1
    assert "64 threads" in caplog.text
    engine.close()


def test_lanes_beyond_what_llama_can_do_are_a_usage_error(tiny_path: Path) -> None:
    for lanes in (0, 100_000):
        with pytest.raises(UsageError, match=str(lanes)):
            _open(tiny_path, lanes=lanes)


def test_load_more_kv_than_free_memory_is_refused_before_it_is_touched(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "available_memory_bytes", lambda: 1_000_000)
    with pytest.raises(ModelLoadError, match=r"8 lanes of 512 tokens .* free"):
        _open(tiny_path)


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (lambda data: data[: len(data) // 2], "file bounds"),
        (lambda data: data[:5000], "tensor"),
        (lambda data: data[:8] + b"\xff\xff" + data[10:], "damaged"),
        (lambda data: data[:16] + b"\xff\xff" + data[18:], "damaged"),
        (lambda _: b"", "empty"),
        (lambda data: b"GGML" + data[4:], "not a GGUF"),
    ],
    ids=["truncated", "header-only", "tensor-count", "key-count", "empty", "magic"],
)
def test_load_damaged_file_is_refused_with_the_cause(tiny_path: Path, tmp_path: Path, damage: Any, cause: str) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damage(tiny_path.read_bytes()))
    with pytest.raises(ModelFileError, match=cause) as caught:
        _open(path)
    assert "\n" not in caught.value.message


def test_load_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.gguf"):
        _open(tmp_path / "absent.gguf")


def test_load_unknown_architecture_is_no_fault_of_the_file(tiny_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "unknown.gguf"
    path.write_bytes(tiny_path.read_bytes().replace(b"llama", b"lxama"))
    with pytest.raises(ModelLoadError, match="lxama"):
        _open(path)


def test_aborted_step_is_no_error_in_the_log(exact: LlamaEngine, caplog: pytest.LogCaptureFixture) -> None:
    exact.clear(0)
    exact.abort()
    with caplog.at_level(logging.DEBUG):
        assert exact.step([row(0, 0, prompt(100))]).completed == (0,)
    exact.resume()
    assert caplog.records == []


def test_engine_log_is_dropped_unless_kept(tiny_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    _open(tiny_path, lanes=1).close()
    assert "llama_context" not in caplog.text
    _open(tiny_path, lanes=1, is_log_kept=True).close()
    assert "llama_context" in caplog.text
    assert {record.name for record in caplog.records} == {"superfluid_daemon::engine"}


def test_split_model_generates_what_the_whole_one_does(tmp_path: Path) -> None:
    whole = write_tiny_model(tmp_path / "whole.gguf")
    write_tiny_model(tmp_path / "parts.gguf", tensors_per_part=15)
    parts = sorted(tmp_path.glob("parts-*-of-00003.gguf"))
    assert len(parts) == 3
    texts = []
    for path in (whole, parts[0]):
        engine = _open(path, lanes=1)
        texts.append(greedy(engine, 0, feed(engine, 0, prompt(20)), 16))
        engine.close()
    assert texts[0] == texts[1]
