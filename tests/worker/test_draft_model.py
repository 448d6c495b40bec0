"""A draft model keeps step with streams that come, go and move; its guesses are its own greedy continuation."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.engine_runs import feed, greedy
from tests.fixtures.tick_loop import words

from superfluid.engine.fake import FakeEngine
from superfluid.engine.interface import Row, StepResult, Tokens
from superfluid.worker.draft_model import CATCH_UP_TOKENS, DraftModel, Wanted


class _Counting(FakeEngine):
    """Notes how many tokens each step evaluated."""

    def __init__(self, lanes: int = 4, window_tokens: int | None = None) -> None:
        super().__init__(lanes=lanes, window_tokens=window_tokens)
        self.evaluated: list[int] = []

    def step(self, rows: Sequence[Row]) -> StepResult:
        self.evaluated.append(sum(len(row.tokens) for row in rows))
        return super().step(rows)


def _stream(tokens: Sequence[int]) -> Tokens:
    return np.array(tokens, np.int32)


def _alone(tokens: list[int], count: int) -> tuple[int, ...]:
    engine = FakeEngine(lanes=1)
    return tuple(greedy(engine, 0, feed(engine, 0, tokens), count))


def test_guesses_are_the_greedy_continuation_of_each_lane() -> None:
    streams = {lane: words(lane, 20 + lane) for lane in (0, 2, 3)}
    drafts = DraftModel(FakeEngine(lanes=4)).propose(
        [Wanted(lane, _stream(s), lane + 1) for lane, s in streams.items()]
    )
    assert drafts == {lane: _alone(stream, lane + 1) for lane, stream in streams.items()}


def test_accepted_guesses_are_not_evaluated_again() -> None:
    engine = _Counting()
    model = DraftModel(engine)
    stream = words(1, 50)
    guesses = model.propose([Wanted(0, _stream(stream), 4)])[0]
    stream += [*guesses, 65]
    engine.evaluated.clear()
    assert model.propose([Wanted(0, _stream(stream), 2)])[0] == _alone(stream, 2)
    assert engine.evaluated == [2, 1]


def test_rejected_guesses_are_taken_back() -> None:
    engine = _Counting()
    model = DraftModel(engine)
    stream = words(1, 50)
    guesses = model.propose([Wanted(0, _stream(stream), 4)])[0]
    stream += [guesses[0], (guesses[1] + 1) % 256]
    engine.evaluated.clear()
    assert model.propose([Wanted(0, _stream(stream), 1)])[0] == _alone(stream, 1)
    assert engine.evaluated == [1]


def test_long_stream_is_read_piece_by_piece_and_guessed_for_when_it_is_there() -> None:
    engine = _Counting()
    model = DraftModel(engine)
    stream = words(1, 2 * CATCH_UP_TOKENS + 10)
    assert model.propose([Wanted(0, _stream(stream), 3)]) == {}
    assert model.propose([Wanted(0, _stream(stream), 3)]) == {}
    assert model.propose([Wanted(0, _stream(stream), 3)]) == {0: _alone(stream, 3)}
    assert engine.evaluated == [CATCH_UP_TOKENS, CATCH_UP_TOKENS, 10, 1, 1]


@pytest.mark.parametrize(("length", "limit", "expected"), [(60, 8, 4), (63, 8, 1), (64, 8, 0), (70, 8, 0)])
def test_stream_at_the_draft_models_window_gets_what_fits(length: int, limit: int, expected: int) -> None:
    model = DraftModel(_Counting(window_tokens=64))
    assert len(model.propose([Wanted(0, _stream(words(1, length)), limit)]).get(0, ())) == expected


def test_stream_with_an_image_is_not_guessed_for() -> None:
    assert DraftModel(_Counting()).propose([Wanted(0, _stream([65, -7, -8, 66]), 3)]) == {}


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(1, 120), st.integers(1, 6)), min_size=1, max_size=12
    )
)
@settings(max_examples=40, deadline=None)
def test_whatever_ran_on_a_lane_before_does_not_show(steps: list[tuple[int, int, int, int]]) -> None:
    model = DraftModel(FakeEngine(lanes=3))
    for lane, seed, length, limit in steps:
        stream = words(seed, length + 1)
        assert model.propose([Wanted(lane, _stream(stream), limit)]) == {lane: _alone(stream, limit)}
