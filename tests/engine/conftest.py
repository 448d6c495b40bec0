"""Tiny models, written once a module."""

from pathlib import Path

import pytest
from tests.fixtures.tiny_gguf import write_tiny_model


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")
