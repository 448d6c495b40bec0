"""What all tests share: the real model's fixture and the marker that goes with it, and the browser."""

import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from scripts.bootstrap import BROWSER_ADVICE, find_browser
from tests.fixtures.browser import Browser, browsing
from tests.fixtures.smollm2 import fetch_smollm2


def pytest_configure() -> None:
    # A shell has its background jobs ignore Ctrl-C, and so would all that the tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file. A test that asks for it is marked ``model``; a failed fetch fails it."""
    return fetch_smollm2()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One headless Chromium for all tests that ask for it; where there is none, they fail."""
    executable = find_browser()
    if executable is None:
        pytest.fail(BROWSER_ADVICE, pytrace=False)
    with browsing(executable, tmp_path_factory.mktemp("chromium")) as running:
        yield running


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    for item in items:
        if "smollm2_path" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.model)
