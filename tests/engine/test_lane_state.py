"""The stored form of a lane's state, on blobs laid out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.engine import lane_state
from superfluid.errors import EngineFaultError

MODEL_WORD = 0xAF140000


def _exported(lane: int, streams: int, cells: int, transposed: int = 1) -> bytes:
    words = [MODEL_WORD, lane, streams, *([0] * lane), cells]
    for position in range(cells):
        words += [position, 1, lane]
    words += [transposed, 30, 12345]
    return np.array([*words, *([0] * (streams - 1 - lane))], "<u4").tobytes()


def _stored(lane: int, streams: int, cells: int = 3) -> bytes:
    return lane_state.to_stored(np.frombuffer(_exported(lane, streams, cells), np.uint8).copy(), lane, streams)


_places = st.integers(1, 9).flatmap(lambda streams: st.tuples(st.integers(0, streams - 1), st.just(streams)))


@given(_places)
def test_to_stored_has_one_stream_and_its_cells(place: tuple[int, int]) -> None:
    stored = _stored(*place)
    assert np.frombuffer(stored, "<u4", 4).tolist() == [MODEL_WORD, 0, 1, 3]
    assert lane_state.cell_count(stored) == 3
    assert len(stored) == len(_exported(0, 1, 3))


@given(_places, _places)
def test_from_stored_has_as_many_streams_as_the_context(source: tuple[int, int], target: tuple[int, int]) -> None:
    lane, streams = target
    words = np.frombuffer(lane_state.from_stored(_stored(*source), lane, streams).tobytes(), "<u4").tolist()
    assert words[:3] == [MODEL_WORD, lane, streams]
    assert words[3 : 3 + streams] == [0] * (streams - 1) + [3]
    assert words[-3:] == [1, 30, 12345]


@given(_places, st.lists(_places, min_size=1, max_size=3))
def test_roomy_state_takes_every_form_in_place_and_keeps_the_stored_one(
    source: tuple[int, int], targets: list[tuple[int, int]]
) -> None:
    stored = _stored(*source)
    room = np.full(lane_state.ROOM_BYTES, 7, np.uint8)
    state = lane_state.RoomyState(np.concatenate([room, np.frombuffer(stored, np.uint8)]))
    for lane, streams in targets:
        with state.in_form(lane, streams) as form:
            assert form.tobytes() == lane_state.from_stored(stored, lane, streams).tobytes()
        assert bytes(state) == state.stored().tobytes() == stored
        assert len(state) == len(stored)


def test_to_stored_unknown_layout_is_an_engine_fault() -> None:
    other_count = np.frombuffer(_exported(0, 2, 3), np.uint8).copy()
    with pytest.raises(EngineFaultError):
        lane_state.to_stored(other_count, 0, 3)
    other_lane = np.frombuffer(_exported(0, 3, 3), np.uint8).copy()
    with pytest.raises(EngineFaultError):
        lane_state.to_stored(other_lane, 1, 3)


@pytest.mark.parametrize("transposed", [0, 1])
def test_has_transposed_values_is_the_word_behind_the_cells(transposed: int) -> None:
    assert lane_state.has_transposed_values(_exported(0, 1, 4, transposed)) is bool(transposed)


@pytest.mark.parametrize("state", [b"", b"1234", _exported(0, 1, 4)[:20], _exported(0, 1, 4, transposed=7)])
def test_has_transposed_values_does_not_guess(state: bytes) -> None:
    assert lane_state.has_transposed_values(state) is None


@pytest.mark.parametrize("state", [b"", _exported(0, 1, 4)[:12], _exported(0, 2, 4)])
def test_cell_count_of_what_is_no_stored_state_is_none(state: bytes) -> None:
    assert lane_state.cell_count(state) is None
