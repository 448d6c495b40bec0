"""Memory for lane states while nothing runs."""

import pytest
from tests.fixtures.tick_loop import SteppedClock, SteppedLoop

from superfluid.engine.fake import FakeEngine
from superfluid.engine.spare_buffers import REST_BYTES, SpareBuffers
from superfluid.worker.idle_memory import REST_SECONDS, IdleMemory
from superfluid.worker.protocol import Stop

STATE_BYTES = REST_BYTES // 4


@pytest.fixture
def spares() -> SpareBuffers:
    """A state of a quarter of what is kept always has been exported."""
    spares = SpareBuffers(1 << 30)
    spares.take(STATE_BYTES)
    return spares


def leave(spares: SpareBuffers, count: int) -> None:
    buffers = [spares.take(STATE_BYTES) for _ in range(count)]
    while buffers:
        spares.put_back(buffers.pop())


def test_memory_is_made_ready_piece_by_piece_while_nothing_runs(spares: SpareBuffers) -> None:
    idle = IdleMemory(spares, SteppedClock())
    assert idle.work(is_busy=False)
    assert not idle.work(is_busy=True)
    assert spares.ready_bytes == 0, "a piece"
    while idle.work(is_busy=False):
        pass
    assert spares.spare_bytes == REST_BYTES


def test_memory_that_a_busy_time_has_left_is_given_back_when_it_is_long_over(spares: SpareBuffers) -> None:
    clock = SteppedClock()
    idle = IdleMemory(spares, clock)
    leave(spares, 6)
    idle.work(is_busy=True)
    clock.now += REST_SECONDS - 0.5
    assert not idle.work(is_busy=False)
    assert spares.spare_bytes == 6 * STATE_BYTES
    assert idle.seconds_to_wait() == pytest.approx(0.5, abs=0.01)
    clock.now += 0.5
    assert not idle.work(is_busy=False)
    assert spares.spare_bytes == REST_BYTES
    assert idle.seconds_to_wait() is None


def test_memory_that_comes_back_at_rest_is_given_back_in_time(spares: SpareBuffers) -> None:
    clock = SteppedClock()
    idle = IdleMemory(spares, clock)
    clock.now += 100.0
    leave(spares, 6)
    assert idle.seconds_to_wait() is not None
    idle.work(is_busy=False)
    assert spares.spare_bytes == REST_BYTES


def test_nothing_is_waited_for_where_nothing_is_to_be_given_back(spares: SpareBuffers) -> None:
    assert IdleMemory(spares, SteppedClock()).seconds_to_wait() is None


def test_loop_makes_memory_ready_before_it_sleeps(spares: SpareBuffers) -> None:
    class Engine(FakeEngine):
        @property
        def spare_memory(self) -> SpareBuffers:
            return spares

    loop = SteppedLoop(engine=Engine(lanes=1))
    loop.rest = lambda: loop.inbox.put(Stop())
    loop.loop.run()
    assert spares.spare_bytes == REST_BYTES
