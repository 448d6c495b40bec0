"""The stored form of a lane's state, on blobs laid out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.engine import lane_state
from superfluid.engine.lane_state import LaneState
from superfluid.errors import EngineFaultError

MODEL_WORD = 0xAF140000


def _exported(lane: int, streams: int, cells: int, transposed: int = 1) -> bytes:
    words = [MODEL_WORD, lane, streams, *([0] * lane), cells]
    for position in range(cells):
        words += [position, 1, lane]
    words += [transposed, 30, 12345]
    return np.array([*words, *([0] * (streams - 1 - lane))], "<u4").tobytes()


def _state(lane: int, streams: int, cells: int = 3) -> LaneState:
    """As an engine makes it."""
    exported = _exported(lane, streams, cells)
    begin = lane_state.begin_of_export(lane)
    buffer = np.full(begin + len(exported) + 100, 7, np.uint8)
    buffer[begin : begin + len(exported)] = np.frombuffer(exported, np.uint8)
    lane_state.make_stored(buffer, lane, streams, len(exported))
    return LaneState(buffer, lane_state.stored_bytes(len(exported), streams))


_places = st.integers(1, 9).flatmap(lambda streams: st.tuples(st.integers(0, streams - 1), st.just(streams)))


@given(_places)
def test_make_stored_leaves_one_stream_and_its_cells(place: tuple[int, int]) -> None:
    state = _state(*place)
    words = np.frombuffer(bytes(state), "<u4").tolist()
    assert words[:4] == [MODEL_WORD, 0, 1, 3]
    assert words[-3:] == [1, 30, 12345]
    assert len(state) == len(_exported(0, 1, 3))
    assert lane_state.cell_count(state) == 3


@given(_places, st.lists(_places, min_size=1, max_size=3))
def test_in_form_has_as_many_streams_as_the_context_and_leaves_the_stored_state_alone(
    source: tuple[int, int], targets: list[tuple[int, int]]
) -> None:
    state = _state(*source)
    stored = bytes(state)
    for lane, streams in targets:
        words = state.in_form(lane, streams).view("<u4").tolist()
        assert words[:3] == [MODEL_WORD, lane, streams]
        assert words[3 : 3 + streams] == [0] * (streams - 1) + [3]
        assert words[-3:] == [1, 30, 12345]
        assert bytes(state) == stored
        assert len(state) == len(stored)
    assert state.as_exported().tobytes() == stored
    assert bytes(lane_state.with_room(stored)) == stored


@given(st.binary(max_size=40))
def test_state_of_any_bytes_keeps_them(content: bytes) -> None:
    state = lane_state.with_room(content)
    assert bytes(state) == state.as_exported().tobytes() == content
    assert len(state) == len(content)


@pytest.mark.parametrize(("made", "lane", "streams"), [((0, 2), 0, 3), ((0, 3), 1, 3)])
def test_make_stored_unknown_layout_is_an_engine_fault(made: tuple[int, int], lane: int, streams: int) -> None:
    exported = _exported(*made, cells=3)
    begin = lane_state.begin_of_export(lane)
    buffer = np.zeros(begin + len(exported), np.uint8)
    buffer[begin:] = np.frombuffer(exported, np.uint8)
    with pytest.raises(EngineFaultError):
        lane_state.make_stored(buffer, lane, streams, len(exported))


@pytest.mark.parametrize("transposed", [0, 1])
def test_has_transposed_values_is_the_word_behind_the_cells(transposed: int) -> None:
    assert lane_state.has_transposed_values(_exported(0, 1, 4, transposed)) is bool(transposed)


@pytest.mark.parametrize("state", [b"", b"1234", _exported(0, 1, 4)[:20], _exported(0, 1, 4, transposed=7)])
def test_has_transposed_values_does_not_guess(state: bytes) -> None:
    assert lane_state.has_transposed_values(state) is None


@pytest.mark.parametrize("state", [b"", _exported(0, 1, 4)[:12], _exported(0, 2, 4)])
def test_cell_count_of_what_is_no_stored_state_is_none(state: bytes) -> None:
    assert lane_state.cell_count(lane_state.with_room(state)) is None
