"""Tests of the socket server run on both event loops: the daemon's, and the one that asyncio brings."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if "test_socket_server" in item.nodeid:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
