"""Reply ids and the drain."""

import asyncio

import pytest

from superfluid.errors import ShuttingDownError
from superfluid.sessions.counter import ReplyCounter


async def test_ids_rise_and_idle_is_when_all_are_closed() -> None:
    counter = ReplyCounter()
    await counter.wait_idle()
    first, second = counter.open(), counter.open()
    assert first < second
    waiting = asyncio.ensure_future(counter.wait_idle())
    counter.close(first)
    counter.close(first)
    await asyncio.sleep(0)
    assert (waiting.done(), counter.running) == (False, 1)
    counter.close(second)
    await waiting


async def test_draining_counter_gives_no_id() -> None:
    counter = ReplyCounter()
    counter.is_draining = True
    with pytest.raises(ShuttingDownError):
        counter.open()
    await counter.wait_idle()
