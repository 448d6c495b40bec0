from pathlib import Path

import pytest
from tests.fixtures.gguf_bytes import small_model, small_projector

from superfluid.errors import ModelFileError
from superfluid.models.projector import choose_projector, projector_beside, require_projector


@pytest.mark.parametrize("key", ["clip.projector_type", "clip.vision.projector_type"])
def test_projector_says_what_kind_it_is(tmp_path: Path, key: str) -> None:
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(small_projector("gemma3", key=key))
    found = require_projector(path, is_named=True)
    assert (found.path, found.encoder, found.is_named) == (path, "gemma3", True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (small_model(), "no projector for images: it holds a llama model"),
        (small_projector(sees=False), "no projector for images"),
        (small_projector()[:-10], "truncated"),
        (b"hello", "no GGUF"),
        (b"", "empty"),
    ],
)
def test_file_that_is_no_projector_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        require_projector(path, is_named=True)


@pytest.mark.parametrize(
    ("names", "model", "chosen"),
    [
        ([], "m.gguf", None),
        (["mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf"], "m-Q4_K_M.gguf", "mmproj-F16.gguf"),
        (["mmproj-SmolVLM-Q8_0.gguf", "mmproj-SmolVLM-f16.gguf"], "SmolVLM-Q8_0.gguf", "mmproj-SmolVLM-f16.gguf"),
        (["mmproj-gemma-F16.gguf", "mmproj-smolvlm-Q8_0.gguf"], "SmolVLM-Q4_0.gguf", "mmproj-smolvlm-Q8_0.gguf"),
        (["sub/mmproj-model-f16.gguf"], "sub/m-00001-of-00002.gguf", "sub/mmproj-model-f16.gguf"),
    ],
)
def test_choice_is_by_the_models_name_then_by_precision(names: list[str], model: str, chosen: str | None) -> None:
    assert choose_projector(names, model) == chosen


def test_projector_beside_a_model_is_found_by_its_name(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    assert projector_beside(model) is None
    for name in ("other-mmproj.gguf", "mmproj.txt", "MMPROJ-f16.GGUF"):
        (tmp_path / name).touch()
    assert projector_beside(model) == tmp_path / "MMPROJ-f16.GGUF"
    assert projector_beside(tmp_path / "no" / "such" / "m.gguf") is None
