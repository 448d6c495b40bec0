"""A model that drafts for another one: which are refused, and with which words."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.engine_runs import feed, prompt
from tests.fixtures.tiny_gguf import write_tiny_model

from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.engine.llama_draft import open_draft
from superfluid.errors import EngineFaultError, ModelFileError, UsageError

_OPTIONS = LlamaOptions(lanes=2, window_tokens=256, threads=1)


@pytest.fixture
def target(tiny_path: Path) -> Iterator[LlamaEngine]:
    engine = LlamaEngine(tiny_path, _OPTIONS)
    yield engine
    engine.close()


def test_draft_of_the_same_vocabulary_has_the_targets_lanes_and_window(
    target: LlamaEngine, tiny_path: Path, tmp_path: Path
) -> None:
    path = write_tiny_model(tmp_path / "draft.gguf", seed=9, layers=1)
    draft = open_draft(target, tiny_path, path, LlamaOptions(lanes=2, threads=1, kv_bits=8))
    assert (draft.facts.lanes, draft.facts.window_tokens) == (2, 256)
    assert draft.vocabulary_digest == target.vocabulary_digest
    feed(draft, 1, prompt(20))
    draft.close()


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"extra_markers": ["<one>"]}, r"273 and 272 tokens"),
        ({"extra_merges": ["e r"]}, r"tokens"),
    ],
)
def test_draft_with_more_tokens_is_refused_and_both_are_named(
    target: LlamaEngine, tiny_path: Path, tmp_path: Path, extra: dict[str, list[str]], words: str
) -> None:
    path = write_tiny_model(tmp_path / "draft.gguf", **extra)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="another vocabulary") as refusal:
        open_draft(target, tiny_path, path, _OPTIONS)
    assert str(path) in refusal.value.message
    assert str(tiny_path) in refusal.value.message


def test_draft_with_as_many_but_other_tokens_is_refused(tmp_path: Path) -> None:
    paths = [
        write_tiny_model(tmp_path / f"{name}.gguf", extra_markers=[f"<{name}>"]) for name in ("one", "two", "three")
    ]
    target = LlamaEngine(paths[0], _OPTIONS)
    with pytest.raises(UsageError, match="as many, but other tokens"):
        open_draft(target, paths[0], paths[1], _OPTIONS)
    target.close()


@pytest.mark.parametrize("kept", [40, 5_000, 100_000])
def test_damaged_draft_is_refused_as_the_draft(target: LlamaEngine, tiny_path: Path, tmp_path: Path, kept: int) -> None:
    path = tmp_path / "draft.gguf"
    path.write_bytes(write_tiny_model(tmp_path / "whole.gguf").read_bytes()[:kept])
    with pytest.raises(ModelFileError, match="the draft model cannot be used") as refusal:
        open_draft(target, tiny_path, path, _OPTIONS)
    assert str(path) in refusal.value.message


def test_target_hears_llama_cpp_again_after_a_draft_was_opened(
    target: LlamaEngine, tiny_path: Path, tmp_path: Path
) -> None:
    """llama.cpp has one log for all models of a process; the cause of a refused step comes from there."""
    draft = open_draft(target, tiny_path, write_tiny_model(tmp_path / "draft.gguf", layers=1), _OPTIONS)
    with pytest.raises(EngineFaultError, match="invalid token"):
        feed(target, 0, [97, 100_000])
    draft.close()
