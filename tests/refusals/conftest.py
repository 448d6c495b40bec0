"""These tests run on the daemon's event loop, and those of a module share their listeners."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio
import uvloop
from tests.fixtures.refusal_stage import Listeners, listening


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def listeners() -> AsyncIterator[Listeners]:
    async with listening() as running:
        yield running
