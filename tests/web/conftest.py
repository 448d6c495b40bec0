"""Tests of the web listener run on the daemon's event loop."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}
