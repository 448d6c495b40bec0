"""Handing over: batches, ends, failures."""

import asyncio

import pytest

from superfluid.errors import QueueFullError
from superfluid.sessions.mailbox import Mailbox


async def read(mailbox: Mailbox[int]) -> list[list[int]]:
    return [batch async for batch in mailbox.batches()]


async def test_what_waits_comes_as_one_batch_and_then_the_end() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put([1])
    mailbox.put([])
    mailbox.put([2, 3])
    mailbox.close()
    mailbox.put([4])
    assert await read(mailbox) == [[1, 2, 3]]
    assert mailbox.is_closed


async def test_reader_that_waits_is_woken() -> None:
    mailbox: Mailbox[int] = Mailbox()
    reading = asyncio.ensure_future(read(mailbox))
    for number in range(3):
        await asyncio.sleep(0)
        mailbox.put([number])
    await asyncio.sleep(0)
    mailbox.close()
    assert [item for batch in await reading for item in batch] == [0, 1, 2]


async def test_failure_comes_behind_what_waits_and_only_if_not_closed() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put([1])
    mailbox.fail(QueueFullError("full"))
    got = []
    with pytest.raises(QueueFullError):
        got = await read(mailbox)
    assert got == []
    closed: Mailbox[int] = Mailbox()
    closed.close()
    closed.fail(QueueFullError("full"))
    assert (await read(closed), closed.error) == ([], None)
