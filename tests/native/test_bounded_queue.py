import asyncio

from superfluid.native.bounded_queue import BoundedQueue


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_put_into_a_queue_with_too_many_items_waits_until_one_is_taken() -> None:
    queue = BoundedQueue(2, 100)
    await queue.put(b"a")
    await queue.put(b"b")
    third = asyncio.create_task(queue.put(b"c"))
    await settle()
    assert not third.done()
    assert await queue.take() == b"a"
    await third
    assert [queue.take_now(), queue.take_now(), queue.take_now()] == [b"b", b"c", None]


async def test_put_into_a_queue_with_too_many_bytes_waits() -> None:
    queue = BoundedQueue(10, 4)
    await queue.put(b"abc")
    second = asyncio.create_task(queue.put(b"de"))
    await settle()
    assert not second.done()
    assert queue.queued_bytes == 3
    queue.take_now()
    await second
    assert queue.queued_bytes == 2


async def test_item_larger_than_all_room_passes_alone() -> None:
    queue = BoundedQueue(10, 4)
    await queue.put(b"far too long")
    behind = asyncio.create_task(queue.put(b"x"))
    await settle()
    assert not behind.done()
    assert await queue.take() == b"far too long"
    await behind


async def test_large_item_that_waits_is_not_overtaken_by_small_ones() -> None:
    queue = BoundedQueue(10, 4)
    await queue.put(b"abc")
    large = asyncio.create_task(queue.put(b"far too long"))
    small = asyncio.create_task(queue.put(b"x"))
    await settle()
    assert not small.done()
    assert await queue.take() == b"abc"
    await large
    assert await queue.take() == b"far too long"
    await small
    assert await queue.take() == b"x"


async def test_put_now_takes_what_fits_and_never_passes_those_who_wait() -> None:
    queue = BoundedQueue(2, 100)
    assert queue.put_now(b"a")
    assert queue.put_now(b"b")
    assert not queue.put_now(b"c")
    waiting = asyncio.create_task(queue.put(b"d"))
    await settle()
    queue.take_now()
    assert not queue.put_now(b"e")
    await waiting
    assert [queue.take_now(), queue.take_now(), queue.take_now()] == [b"b", b"d", None]


async def test_put_now_into_a_queue_that_has_ended_is_dropped() -> None:
    queue = BoundedQueue(1, 100)
    queue.end()
    assert queue.put_now(b"a")
    assert queue.take_now() is None


async def test_take_from_an_empty_queue_waits_for_an_item() -> None:
    queue = BoundedQueue(2, 100)
    taking = asyncio.create_task(queue.take())
    await settle()
    await queue.put(b"a")
    assert await taking == b"a"


async def test_ended_queue_gives_what_waits_and_then_nothing() -> None:
    queue = BoundedQueue(2, 100)
    await queue.put(b"a")
    queue.end()
    await queue.put(b"too late")
    assert await queue.take() == b"a"
    assert await queue.take() is None


async def test_end_releases_whoever_waits_for_an_item() -> None:
    queue = BoundedQueue(2, 100)
    taking = asyncio.create_task(queue.take())
    await settle()
    queue.end()
    assert await taking is None


async def test_close_drops_what_waits_and_releases_whoever_waits_for_room() -> None:
    queue = BoundedQueue(1, 100)
    await queue.put(b"a")
    putting = [asyncio.create_task(queue.put(b"b")), asyncio.create_task(queue.put(b"c"))]
    await settle()
    queue.close()
    await asyncio.gather(*putting)
    assert await queue.take() is None
    assert len(queue) == 0


async def test_cancelled_put_leaves_room_for_others() -> None:
    queue = BoundedQueue(1, 100)
    await queue.put(b"a")
    waiting = asyncio.create_task(queue.put(b"b"))
    await settle()
    waiting.cancel()
    await asyncio.wait((waiting,))
    queue.take_now()
    async with asyncio.timeout(30):
        await queue.put(b"c")
    assert queue.take_now() == b"c"
