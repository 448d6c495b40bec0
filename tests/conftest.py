"""What all tests share: the real model's fixture, and the marker that goes with it."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.fixtures.smollm2 import fetch_smollm2


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file. A test that asks for it is marked ``model``; a failed fetch fails it."""
    return fetch_smollm2()


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    for item in items:
        if "smollm2_path" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.model)
