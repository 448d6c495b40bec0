"""A look at an adapter's file before a worker loads it."""

import os
from pathlib import Path
from typing import Any

import gguf
import pytest
from tests.fixtures.tiny_gguf import write_tiny_model
from tests.fixtures.tiny_lora import write_tiny_lora

from superfluid.errors import AdapterRefusedError
from superfluid.models.adapter_file import require_adapter


@pytest.mark.parametrize("architecture", ["llama", None])
def test_adapter_for_the_models_architecture_is_taken(tmp_path: Path, architecture: str | None) -> None:
    require_adapter(write_tiny_lora(tmp_path / "a.gguf"), architecture)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"architecture": "qwen2"}, "is for qwen2 models; this one is llama"),
        ({"strings": {"general.type": "model"}}, "is no adapter"),
        ({"strings": {"adapter.type": "control-vector"}}, "is no LoRA adapter but of the type 'control-vector'"),
        ({"strings": {"adapter.alora.invocation_tokens": "x"}}, "aLoRA"),
        ({"layers": 0}, "has no tensors"),
    ],
)
def test_other_adapter_is_refused_with_the_reason(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(AdapterRefusedError, match=reason):
        require_adapter(write_tiny_lora(tmp_path / "a.gguf", **options), "llama")


def test_model_is_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(AdapterRefusedError, match="is no adapter"):
        require_adapter(write_tiny_model(tmp_path / "model.gguf"), "llama")


def test_alpha_that_is_no_number_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    for key, value in {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": "much"}.items():
        writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(AdapterRefusedError, match="alpha is no number"):
        require_adapter(path, "llama")


def test_file_that_is_missing_cut_or_none_is_refused(tmp_path: Path) -> None:
    path = write_tiny_lora(tmp_path / "a.gguf")
    content = path.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "cut.gguf").write_bytes(content[:-100])
    (tmp_path / "header.gguf").write_bytes(content[:80])
    (tmp_path / "text.gguf").write_text("hello, this is text")
    for name in ("missing.gguf", "cut.gguf", "header.gguf", "text.gguf", "pipe", "."):
        with pytest.raises(AdapterRefusedError):
            require_adapter(tmp_path / name, "llama")


def test_path_that_the_system_does_not_take_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (Path("/" + "x/" * 5000), tmp_path / ("x" * 300), tmp_path / "loop"):
        with pytest.raises(AdapterRefusedError, match="cannot be read"):
            require_adapter(path, "llama")
