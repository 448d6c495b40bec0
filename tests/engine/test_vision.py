"""Images on llama.cpp with tiny random projectors: what an image takes, what it changes, what is refused at load."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.engine_runs import greedy, prompt
from tests.fixtures.image_jobs import feed_parts
from tests.fixtures.images import picture
from tests.fixtures.tiny_gguf import Architecture, vocabulary_texts, write_tiny_model
from tests.fixtures.tiny_vision import MARKERS, PATCHES, TILE_TOKENS, Projector, VisionPair, write_tiny_vision

from superfluid.domain.media import PLACEHOLDER
from superfluid.engine.interface import ImageRow
from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.errors import EngineFaultError, InvalidValueError, ModelFileError, ModelLoadError, UnsupportedInputError

BEFORE, BEHIND = prompt(9), prompt(7, seed=1)
FIRST_MARKER = len(vocabulary_texts(extra_merges=["Ċ Ċ"]))
PROJECTORS: tuple[Projector, ...] = ("idefics3", "mlp", "gemma3")


def open_pair(pair: VisionPair, projector: Projector, **options: Any) -> LlamaEngine:
    """In exact mode."""
    defaults = {"lanes": 2, "threads": 1, "window_tokens": 512, "flash_attention": "off"}
    return LlamaEngine(
        pair.model, LlamaOptions(**{**defaults, **options}, projector=pair.projector, projector_type=projector)
    )


def write_pair(directory: Path, projector: Projector, **options: Any) -> VisionPair:
    architecture: Architecture = "gemma3" if projector == "gemma3" else "llama"
    return write_tiny_vision(directory, projector=projector, architecture=architecture, **options)


@pytest.fixture(params=PROJECTORS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LlamaEngine]:
    opened = open_pair(write_pair(tmp_path, request.param), request.param)
    yield opened
    opened.close()


@pytest.fixture
def tiled(tmp_path: Path) -> Iterator[LlamaEngine]:
    """An engine whose encoder cuts images into tiles."""
    opened = open_pair(write_pair(tmp_path, "idefics3"), "idefics3")
    yield opened
    opened.close()


def reply(engine: LlamaEngine, content: bytes, lane: int = 0) -> list[int]:
    engine.clear(lane)
    return greedy(engine, lane, feed_parts(engine, lane, [BEFORE, content, BEHIND]), 24)


def test_reply_depends_on_the_image_and_on_nothing_else(engine: LlamaEngine) -> None:
    first = reply(engine, picture(1))
    assert reply(engine, picture(2)) != first
    assert reply(engine, picture(1), lane=1) == first


def test_layout_of_tiles_has_the_markers_between_them_and_an_overview_last(tiled: LlamaEngine) -> None:
    layout = list(tiled.image_layout(picture(1, width=60, height=30)))
    around, overview, _, row_1_col_1, row_1_col_2, *_ = range(FIRST_MARKER, FIRST_MARKER + len(MARKERS["idefics3"]))
    places = [PLACEHOLDER] * TILE_TOKENS
    assert layout == [
        around, row_1_col_1, *places, around, row_1_col_2, *places, FIRST_MARKER - 1, around, overview, *places, around,
    ]  # fmt: skip


def test_layout_of_a_plain_projector_is_nothing_but_places(tmp_path: Path) -> None:
    engine = open_pair(write_pair(tmp_path, "mlp"), "mlp")
    assert list(engine.image_layout(picture(1))) == [PLACEHOLDER] * PATCHES
    engine.close()


def test_placeholder_token_is_the_one_that_the_models_makers_named(tiled: LlamaEngine) -> None:
    media = tiled.facts.media
    assert media is not None
    assert tiled._model.piece(media.placeholder_token) == "<image>"
    assert media.encoder == "idefics3"
    assert len(media.fingerprint) == 16


def test_image_behind_a_truncated_one_is_computed_as_in_an_empty_lane(tiled: LlamaEngine) -> None:
    expected = reply(tiled, picture(2))
    reply(tiled, picture(1))
    assert tiled.truncate(0, len(BEFORE))
    logits = feed_parts(tiled, 0, [picture(2), BEHIND])
    assert greedy(tiled, 0, logits, 24) == expected


def test_lane_with_an_image_is_exported_and_goes_on_elsewhere(tiled: LlamaEngine) -> None:
    expected = reply(tiled, picture(1))
    tiled.clear(0)
    feed_parts(tiled, 0, [BEFORE, picture(1)])
    length = tiled.length(0)
    assert tiled.import_lane(1, tiled.export_lane(0), length)
    assert greedy(tiled, 1, feed_parts(tiled, 1, [BEHIND]), 24) == expected


def test_image_at_the_end_of_a_prompt_gives_logits(tmp_path: Path) -> None:
    engine = open_pair(write_pair(tmp_path, "mlp"), "mlp")
    feed_parts(engine, 0, [BEFORE])
    result = engine.step_image(ImageRow(0, len(BEFORE), PATCHES, "a", 0, "last"), picture(1))
    assert result.logits.shape == (1, engine.facts.vocabulary_tokens)
    engine.close()


def test_run_of_another_length_is_refused_and_the_lane_cleared(tiled: LlamaEngine) -> None:
    feed_parts(tiled, 0, [BEFORE])
    with pytest.raises(EngineFaultError, match="sized for another model"):
        tiled.step_image(ImageRow(0, len(BEFORE), 7, "a", 0), picture(1))
    assert tiled.length(0) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"hello", "no PNG, JPEG, BMP or GIF"),
        (picture(1)[:200], "damaged"),
        (picture(1)[:60] + bytes(40), "damaged"),
        (picture(1, width=3000, height=3), "refuses the image"),
    ],
)
def test_what_is_no_image_for_the_model_is_refused(tiled: LlamaEngine, content: bytes, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        tiled.image_layout(content)


def test_model_without_projector_refuses_with_the_reason(tmp_path: Path) -> None:
    engine = LlamaEngine(write_tiny_model(tmp_path / "m.gguf"), LlamaOptions(lanes=1, threads=1, window_tokens=64))
    assert engine.facts.media is None
    with pytest.raises(UnsupportedInputError, match="--mmproj"):
        engine.image_layout(picture(1))
    engine.close()


@pytest.mark.parametrize(
    ("projector", "missing"),
    [
        ("idefics3", "<global-img>"),
        ("idefics3", "<row_1_col_2>"),
        ("idefics3", "<fake_token_around_image>"),
        ("idefics3", "\n\n"),
        ("gemma3", "<start_of_image>"),
        ("gemma3", "<end_of_image>"),
    ],
)
def test_projector_with_a_token_that_the_vocabulary_lacks_is_refused(
    tmp_path: Path, projector: Projector, missing: str
) -> None:
    pair = write_pair(tmp_path, projector, missing=[missing])
    with pytest.raises(ModelLoadError, match="does not fit this model"):
        open_pair(pair, projector)


def test_projector_of_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="mismatch"):
        open_pair(write_pair(tmp_path, "idefics3", projection=32), "idefics3")


def test_projector_that_is_missing_or_no_gguf_is_refused(tmp_path: Path) -> None:
    pair = write_pair(tmp_path, "idefics3")
    pair.projector.write_bytes(b"not this")
    with pytest.raises(ModelFileError, match="not a GGUF"):
        open_pair(pair, "idefics3")
    pair.projector.unlink()
    with pytest.raises(ModelFileError, match="no model file"):
        open_pair(pair, "idefics3")


def test_text_model_in_the_place_of_a_projector_is_refused(tmp_path: Path) -> None:
    pair = write_pair(tmp_path, "idefics3")
    with pytest.raises(ModelLoadError, match="does not load"):
        open_pair(VisionPair(pair.model, pair.model), "idefics3")


def test_projector_whose_embeddings_depend_on_their_place_is_refused(tmp_path: Path) -> None:
    pair = write_pair(tmp_path, "mlp")
    with pytest.raises(ModelLoadError, match="not supported"):
        LlamaEngine(pair.model, LlamaOptions(lanes=1, threads=1, projector=pair.projector, projector_type="deepseek4v"))
