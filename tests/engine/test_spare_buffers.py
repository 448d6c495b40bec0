"""Memory that is kept for states to come."""

import numpy as np
import pytest

from superfluid.engine.lane_state import LaneState
from superfluid.engine.spare_buffers import SpareBuffers


def test_spare_buffer_of_a_state_that_is_gone_serves_the_next_of_its_size() -> None:
    spares = SpareBuffers(limit_bytes=1 << 20)
    buffer = spares.take(100_000)
    address = buffer.ctypes.data
    state = LaneState(buffer, 90_000, spares)
    del buffer
    other = spares.take(100_000)
    assert other.ctypes.data != address
    del state
    assert spares.take(98_000).ctypes.data == address


@pytest.mark.parametrize(
    ("spare_bytes", "wanted_bytes", "is_taken"),
    [(1000, 1000, True), (1000, 1001, False), (1000, 500, True), (1000, 499, False), (2000, 2000, False)],
)
def test_spare_buffer_is_taken_if_it_is_long_enough_and_not_much_too_long(
    spare_bytes: int, wanted_bytes: int, is_taken: bool
) -> None:
    spares = SpareBuffers(limit_bytes=1500)
    spare = np.empty(spare_bytes, np.uint8)
    spares.put_back(spare)
    assert (spares.take(wanted_bytes) is spare) is is_taken


def test_spare_buffers_keep_two_and_none_when_cleared() -> None:
    spares = SpareBuffers(limit_bytes=1 << 20)
    first, second, third = (np.empty(1000, np.uint8) for _ in range(3))
    for buffer in (first, second, third):
        spares.put_back(buffer)
    assert spares.take(1000) is second
    assert spares.take(1000) is third
    assert spares.take(1000) is not first
    spares.put_back(first)
    spares.clear()
    assert spares.take(1000) is not first


@pytest.mark.parametrize("size_bytes", [1, 17, 1000, 25_357_948])
def test_spare_buffer_that_is_new_has_room_to_grow_by_an_eighth_at_most(size_bytes: int) -> None:
    assert size_bytes <= len(SpareBuffers(0).take(size_bytes)) <= size_bytes * 9 / 8 + 1
