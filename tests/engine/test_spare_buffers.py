"""Memory that is kept for states to come."""

import gc

import numpy as np
import pytest

from superfluid.engine import spare_buffers
from superfluid.engine.lane_state import LaneState
from superfluid.engine.spare_buffers import LEAST_BYTES, PREPARED_BYTES, REST_BYTES, SpareBuffers

MEGA = 1 << 20
PLENTY = 1 << 30


def _used(spares: SpareBuffers, *megabytes: int) -> None:
    """States of so many were there together, and are gone."""
    buffers = [spares.take(size * MEGA) for size in megabytes]
    while buffers:
        spares.put_back(buffers.pop(0))


def _kept(spares: SpareBuffers) -> int:
    return spares.spare_bytes // MEGA


def _prepare_all(spares: SpareBuffers) -> int:
    count = 0
    while spares.prepare():
        count += 1
    return count


def test_spare_buffer_of_a_state_that_is_gone_serves_the_next_of_its_size() -> None:
    spares = SpareBuffers(PLENTY)
    buffer = spares.take(2_000_000)
    buffer[:] = 7
    state = LaneState(buffer, 1_900_000, spares)
    del buffer
    assert spares.new_bytes_total == 2_000_000
    assert spares.ready_bytes == 0
    del state
    gc.collect()
    assert spares.ready_bytes >= 2_000_000
    again = spares.take(1_990_000)
    assert again[-1] == 7
    assert spares.new_bytes_total == 2_000_000


@pytest.mark.parametrize(
    ("kept", "wanted", "length", "new"),
    [
        ((8,), 8, 8, 0),
        # Long enough, and not much too long; or it is cut.
        ((8,), 7, 8, 0),
        ((8,), 5, 5, 0),
        # Much too long: it is left for another.
        ((8,), 3, 3, 3),
        # The best fit.
        ((16, 10, 8, 9), 9, 9, 0),
        # Too short: it is made longer, and only what is new is new.
        ((8,), 20, 20, 12),
        ((8, 12), 20, 20, 8),
        ((8, 64), 20, 20, 12),
    ],
)
def test_spare_buffer_that_fits_best_is_taken_cut_or_made_longer(
    kept: tuple[int, ...], wanted: int, length: int, new: int
) -> None:
    spares = SpareBuffers(PLENTY)
    _used(spares, *kept)
    before = spares.new_bytes_total
    taken = spares.take(wanted * MEGA)
    assert len(taken) // MEGA == length
    assert (spares.new_bytes_total - before) // MEGA == new


def test_spare_buffer_that_is_made_longer_can_be_written_to_its_end() -> None:
    spares = SpareBuffers(PLENTY)
    _used(spares, 2)
    taken = spares.take(5 * MEGA)
    taken[:] = np.arange(len(taken), dtype=np.uint8)
    assert taken[-1] == (len(taken) - 1) % 256


def test_spare_buffer_that_somebody_looks_at_is_not_moved() -> None:
    spares = SpareBuffers(PLENTY)
    buffer = spares.take(2 * MEGA)
    buffer[:] = 7
    view = buffer[5:9]
    spares.put_back(buffer)
    longer = spares.take(5 * MEGA)
    longer[:] = 1
    assert view.tolist() == [7] * 4


@pytest.mark.parametrize(
    ("limit", "in_use", "gone", "kept"),
    [
        # All that the limit leaves.
        (200, (), (48, 48, 48), 144),
        (200, (64,), (48, 48, 48), 96),
        (200, (112,), (48, 48), 48),
        # Or 64 MiB.
        (200, (192,), (28, 28, 28), 56),
        (0, (), (28, 28, 28), 56),
    ],
)
def test_spare_buffers_are_kept_within_what_states_may_take(
    limit: int, in_use: tuple[int, ...], gone: tuple[int, ...], kept: int
) -> None:
    spares = SpareBuffers(limit * MEGA)
    others = [spares.take(size * MEGA) for size in in_use]
    _used(spares, *gone)
    assert _kept(spares) == kept
    assert len(others) == len(in_use)


def test_spare_buffers_give_way_to_states_oldest_first() -> None:
    spares = SpareBuffers(190 * MEGA)
    _used(spares, 72, 88)
    assert _kept(spares) == 160
    taken = spares.take(32 * MEGA)
    assert (len(taken) // MEGA, _kept(spares)) == (32, 88)


def test_spare_buffers_at_rest_are_no_more_than_the_least() -> None:
    spares = SpareBuffers(PLENTY)
    _used(spares, 40, 20, 40, 20)
    assert spares.has_excess
    spares.trim()
    assert _kept(spares) == 60
    assert not spares.has_excess


def test_spare_buffers_are_given_back_when_memory_is_short() -> None:
    spares = SpareBuffers(PLENTY)
    _used(spares, 8, 8)
    spares.clear()
    assert (spares.spare_bytes, spares.ready_bytes) == (0, 0)
    assert not spares.prepare(), "nor is any made ready"


def test_small_buffers_are_ordinary_memory() -> None:
    spares = SpareBuffers(PLENTY)
    small = spares.take(LEAST_BYTES - 1)
    spares.put_back(small)
    assert (len(small), spares.spare_bytes, spares.new_bytes_total) == (LEAST_BYTES - 1, 0, 0)


@pytest.mark.parametrize("size_bytes", [LEAST_BYTES, 5_000_017, 25_357_948])
def test_spare_buffer_that_is_new_has_room_to_grow_by_an_eighth_at_most(size_bytes: int) -> None:
    assert size_bytes <= len(SpareBuffers(0).take(size_bytes)) <= size_bytes * 9 / 8 + 1


# ---- made ready


@pytest.mark.parametrize(("limit", "last", "ready"), [(PLENTY, 20, 60), (PLENTY, 30, 60), (PLENTY, 70, 0), (0, 20, 0)])
def test_memory_is_made_ready_for_states_like_the_last_one(limit: int, last: int, ready: int) -> None:
    spares = SpareBuffers(limit)
    assert not spares.prepare(), "nobody knows for what"
    state = spares.take(last * MEGA)
    assert _prepare_all(spares) == ready * MEGA // PREPARED_BYTES
    assert _kept(spares) == ready
    assert spares.ready_bytes == (last * MEGA if ready else 0)
    before = spares.new_bytes_total
    assert len(spares.take(last * MEGA)) == len(state)
    assert (spares.new_bytes_total == before) is (ready > 0)


def test_memory_that_is_kept_need_not_be_made_ready() -> None:
    spares = SpareBuffers(PLENTY)
    _used(spares, 30, 30)
    assert not spares.prepare()


def test_memory_that_is_half_ready_is_used_as_far_as_it_is() -> None:
    spares = SpareBuffers(PLENTY)
    spares.take(20 * MEGA)
    for _ in range(3):
        spares.prepare()
    before = spares.new_bytes_total
    taken = spares.take(20 * MEGA)
    taken[:] = 1
    assert spares.new_bytes_total - before == 20 * MEGA - 3 * PREPARED_BYTES


def test_memory_that_cannot_be_had_is_not_made_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    spares = SpareBuffers(PLENTY)
    spares.take(20 * MEGA)

    def refuse(size_bytes: int) -> None:
        raise MemoryError(size_bytes)

    monkeypatch.setattr(spare_buffers, "_new_mapping", refuse)
    assert not spares.prepare()
    with pytest.raises(MemoryError):
        spares.take(20 * MEGA)
    assert spares.spare_bytes <= REST_BYTES
