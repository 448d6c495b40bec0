"""What every engine promises, held against the fake one and llama.cpp on a tiny model (in exact mode)."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.engine_runs import feed, greedy, prompt, row
from tests.fixtures.tiny_gguf import Architecture, write_tiny_model

from superfluid.engine.fake import FakeEngine
from superfluid.engine.fake_script import FakeScript
from superfluid.engine.interface import Engine
from superfluid.engine.lane_state import with_room
from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.errors import EngineFaultError

WINDOW = 512

OpenEngine = Callable[[int], Engine]


@pytest.fixture(scope="module")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Architecture], Path]:
    directory = tmp_path_factory.mktemp("models")

    def model(architecture: Architecture) -> Path:
        path = directory / f"{architecture}.gguf"
        return path if path.exists() else write_tiny_model(path, architecture=architecture)

    return model


def _opener(kind: str, models: Callable[[Architecture], Path]) -> Callable[[int], Engine]:
    """``kind`` is ``fake``, ``fake-uncut``, or an architecture of the tiny models."""

    def open_engine(lanes: int) -> Engine:
        if kind.startswith("fake"):
            return FakeEngine(FakeScript(can_truncate=kind == "fake"), lanes=lanes, window_tokens=WINDOW)
        architecture: Architecture = "mamba" if kind == "mamba" else "gemma3" if kind == "gemma3" else "llama"
        options = LlamaOptions(lanes=lanes, window_tokens=WINDOW, flash_attention="off", threads=1)
        return LlamaEngine(models(architecture), options)

    return open_engine


@pytest.fixture(params=["fake", "llama"])
def open_engine(request: pytest.FixtureRequest, tiny_models: Callable[[Architecture], Path]) -> Iterator[OpenEngine]:
    yield from _closing(_opener(request.param, tiny_models))


@pytest.fixture(params=["fake-uncut", "mamba", "gemma3"])
def open_uncut_engine(
    request: pytest.FixtureRequest, tiny_models: Callable[[Architecture], Path]
) -> Iterator[OpenEngine]:
    yield from _closing(_opener(request.param, tiny_models))


@pytest.fixture(params=["mamba", "gemma3"])
def open_uncut_llama(
    request: pytest.FixtureRequest, tiny_models: Callable[[Architecture], Path]
) -> Iterator[OpenEngine]:
    yield from _closing(_opener(request.param, tiny_models))


def _closing(opener: OpenEngine) -> Iterator[OpenEngine]:
    opened: list[Engine] = []

    def open_and_remember(lanes: int) -> Engine:
        opened.append(opener(lanes))
        return opened[-1]

    yield open_and_remember
    for engine in opened:
        engine.close()
        engine.close()


def test_facts_describe_the_lanes_and_the_window(open_engine: OpenEngine) -> None:
    engine = open_engine(3)
    facts = engine.facts
    assert (facts.lanes, facts.window_tokens, facts.can_truncate) == (3, WINDOW, True)
    assert facts.kv_bytes > 0
    assert facts.state_key
    assert engine.end_of_generation
    assert engine.end_of_generation <= engine.unpenalized
    assert [engine.length(lane) for lane in range(3)] == [0, 0, 0]


def test_step_logits_are_one_row_of_vocabulary_size_per_wanted_position(open_engine: OpenEngine) -> None:
    engine = open_engine(4)
    rows = [
        row(0, 0, prompt(5), "none"),
        row(1, 0, prompt(3), "all"),
        row(2, 0, prompt(1), "last"),
        row(3, 0, prompt(7), "last"),
    ]
    result = engine.step(rows)
    assert result.logits.shape == (5, engine.facts.vocabulary_tokens)
    assert result.logits.dtype == np.float32
    assert result.completed == (5, 3, 1, 7)
    assert [engine.length(lane) for lane in range(4)] == [5, 3, 1, 7]


def test_step_rows_are_answered_in_their_order(open_engine: OpenEngine) -> None:
    engine, alone = open_engine(3), open_engine(1)
    prompts = [prompt(4, seed=1), prompt(9, seed=2), prompt(1, seed=3)]
    together = engine.step([row(lane, 0, tokens) for lane, tokens in enumerate(prompts)]).logits.copy()
    for lane, tokens in enumerate(prompts):
        alone.clear(0)
        assert np.array_equal(feed(alone, 0, tokens), together[lane])


def test_step_all_logits_are_those_of_each_prefix(open_engine: OpenEngine) -> None:
    engine = open_engine(2)
    tokens = prompt(6)
    everything = engine.step([row(0, 0, tokens, "all")]).logits.copy()
    for index in range(2, 6):
        engine.clear(1)
        assert int(feed(engine, 1, tokens[: index + 1]).argmax()) == int(everything[index].argmax())


def test_step_without_wanted_logits_still_advances(open_engine: OpenEngine) -> None:
    engine = open_engine(1)
    result = engine.step([row(0, 0, prompt(5), "none")])
    assert result.logits.shape == (0, engine.facts.vocabulary_tokens)
    assert engine.length(0) == 5


def test_step_fills_a_lane_to_its_last_token(open_engine: OpenEngine) -> None:
    engine = open_engine(2)
    feed(engine, 0, prompt(WINDOW))
    assert engine.length(0) == WINDOW


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row(0, 0, [])],
        [row(1, 0, [97]), row(0, 2, [97])],
        [row(0, 2, [97]), row(0, 3, [97])],
        [row(2, 0, [97])],
        [row(-1, 0, [97])],
        [row(0, 0, [97])],
        [row(0, 3, [97])],
        [row(0, 2, prompt(WINDOW - 1))],
        [row(0, 2, [97], "some")],
    ],
    ids=["none", "no-tokens", "descending", "twice", "no-lane", "negative", "behind", "ahead", "overflow", "wants"],
)
def test_step_rows_against_the_contract_are_refused_and_change_nothing(open_engine: OpenEngine, rows: list) -> None:  # type: ignore[type-arg]
    engine = open_engine(2)
    before = feed(engine, 0, prompt(2))
    with pytest.raises(ValueError, match=r"lane|step"):
        engine.step(rows)
    assert [engine.length(0), engine.length(1)] == [2, 0]
    assert np.array_equal(feed(engine, 1, prompt(2)), before)


def test_truncate_then_evaluating_again_gives_the_same_tokens(open_engine: OpenEngine) -> None:
    engine = open_engine(2)
    tokens = prompt(40)
    expected = greedy(engine, 0, feed(engine, 0, tokens), 12)
    assert engine.truncate(0, 30)
    assert engine.length(0) == 30
    assert greedy(engine, 0, feed(engine, 0, tokens[30:]), 12) == expected


def test_truncate_to_its_length_or_to_nothing_always_works(open_engine: OpenEngine) -> None:
    engine = open_engine(1)
    feed(engine, 0, prompt(4))
    assert engine.truncate(0, 4)
    assert engine.length(0) == 4
    assert engine.truncate(0, 0)
    assert engine.length(0) == 0


def test_truncate_past_the_end_is_refused(open_engine: OpenEngine) -> None:
    engine = open_engine(1)
    feed(engine, 0, prompt(4))
    with pytest.raises(ValueError, match="lane 0"):
        engine.truncate(0, 5)
    with pytest.raises(ValueError, match="lane 0"):
        engine.truncate(0, -1)


def test_clear_empties_one_lane_and_leaves_its_neighbours(open_engine: OpenEngine) -> None:
    engine = open_engine(2)
    tokens = prompt(20)
    expected = greedy(engine, 0, feed(engine, 0, tokens), 5)
    engine.clear(0)
    logits = feed(engine, 1, tokens)
    feed(engine, 0, prompt(30, seed=9))
    engine.clear(0)
    assert engine.length(0) == 0
    assert greedy(engine, 1, logits, 5) == expected


@pytest.mark.parametrize(("source", "target", "lanes"), [(0, 2, 3), (2, 0, 1), (1, 1, 3), (2, 4, 6)])
def test_import_into_any_lane_of_any_engine_goes_on_with_the_same_tokens(
    open_engine: OpenEngine, source: int, target: int, lanes: int
) -> None:
    engine, other = open_engine(3), open_engine(lanes)
    assert engine.facts.state_key == other.facts.state_key
    for lane in range(3):
        feed(engine, lane, prompt(10 + lane, seed=lane))
    state = engine.export_lane(source)
    logits = feed(engine, source, prompt(2, seed=7))
    expected = greedy(engine, source, logits, 10)
    feed(other, target, prompt(33, seed=8))
    assert other.import_lane(target, state, 10 + source)
    assert other.length(target) == 10 + source
    again = feed(other, target, prompt(2, seed=7))
    assert np.array_equal(again, logits)
    assert greedy(other, target, again, 10) == expected


def test_import_of_a_state_with_room_before_it_is_that_of_the_state(open_engine: OpenEngine) -> None:
    engine = open_engine(3)
    feed(engine, 0, prompt(10))
    roomy = with_room(bytes(engine.export_lane(0)))
    expected = feed(engine, 0, prompt(2, seed=7))
    for lane in (2, 1):
        assert engine.import_lane(lane, roomy, 10)
        assert np.array_equal(feed(engine, lane, prompt(2, seed=7)), expected)
    assert not engine.import_lane(1, roomy, 9)


def test_export_leaves_the_lane_as_it_is_and_is_the_same_from_every_lane(open_engine: OpenEngine) -> None:
    engine = open_engine(3)
    for lane in range(3):
        feed(engine, lane, prompt(10))
    states = [engine.export_lane(lane) for lane in range(3)]
    assert len({len(state) for state in states}) == 1
    assert [engine.length(lane) for lane in range(3)] == [10, 10, 10]
    assert bytes(engine.export_lane(1)) == bytes(states[1])


def test_import_of_a_bad_state_is_refused_and_clears_the_lane(open_engine: OpenEngine) -> None:
    engine = open_engine(2)
    tokens = prompt(10)
    logits = feed(engine, 0, tokens)
    state = bytes(engine.export_lane(0))
    for bad, length in [
        (state[:-1], 10),
        (state[: len(state) // 2], 10),
        (state[:14], 10),
        (b"", 10),
        (state + b"\0" * 8, 10),
        (state, 9),
        (state, 11),
        (state, WINDOW + 1),
        (bytes(len(state)), 10),
    ]:
        feed(engine, 1, prompt(3))
        assert not engine.import_lane(1, bad, length)
        assert engine.length(1) == 0
    assert np.array_equal(feed(engine, 1, tokens), logits)


def test_import_of_a_state_longer_than_the_window_is_refused(
    tiny_models: Callable[[Architecture], Path], open_engine: OpenEngine
) -> None:
    engine = open_engine(1)
    feed(engine, 0, prompt(300))
    state = engine.export_lane(0)
    small: Engine
    if isinstance(engine, FakeEngine):
        small = FakeEngine(lanes=1, window_tokens=256)
    else:
        options = LlamaOptions(lanes=1, window_tokens=256, flash_attention="off", threads=1)
        small = LlamaEngine(tiny_models("llama"), options)
    assert not small.import_lane(0, state, 300)
    assert small.length(0) == 0
    small.close()


def test_abort_keeps_consistent_lengths_and_the_rest_can_follow(open_engine: OpenEngine) -> None:
    """Aborts from another thread until one hits; whatever it leaves, the lane goes on as if nothing had happened."""
    engine = open_engine(2)
    engine = FakeEngine(FakeScript(token_seconds=2e-5), lanes=2) if isinstance(engine, FakeEngine) else engine
    tokens = prompt(WINDOW - 20)
    begun = time.perf_counter()
    last = feed(engine, 0, tokens)
    seconds = time.perf_counter() - begun
    expected = greedy(engine, 0, last, 10)
    for attempt in range(200):
        engine.clear(1)
        engine.resume()
        timer = threading.Timer(seconds * (1 + attempt % 16) / 16, engine.abort)
        timer.start()
        result = engine.step([row(1, 0, tokens)])
        timer.join()
        done = result.completed[0]
        assert engine.length(1) == done
        assert len(result.logits) == (1 if done == len(tokens) else 0)
        if 0 < done < len(tokens):
            break
    else:
        pytest.fail("no abort ever hit")
    engine.resume()
    assert greedy(engine, 1, feed(engine, 1, tokens[done:]), 10) == expected


def test_abort_between_steps_ends_the_next_before_it_has_done_anything_until_it_is_taken_back(
    open_engine: OpenEngine,
) -> None:
    engine = open_engine(1)
    feed(engine, 0, prompt(40))
    engine.abort()
    assert engine.step([row(0, 40, prompt(100))]).completed == (0,)
    assert engine.length(0) == 40
    engine.resume()
    assert engine.step([row(0, 40, prompt(100))]).completed == (100,)


def test_aborted_step_of_several_lanes_can_be_repeated_from_the_same_positions(open_engine: OpenEngine) -> None:
    engine = open_engine(2)
    feed(engine, 0, prompt(40))
    feed(engine, 1, prompt(50))
    rows = [row(0, 40, prompt(1)), row(1, 50, prompt(1))]
    expected = engine.step(rows).logits.copy()
    for attempt in range(20):
        for each in rows:
            assert engine.truncate(each.lane, each.position)
        timer = threading.Timer(0.0001 * (attempt % 5), engine.abort)
        timer.start()
        if attempt % 2:
            timer.join()
        engine.step(rows)
        timer.join()
        engine.resume()
    for each in rows:
        assert engine.truncate(each.lane, each.position)
    assert np.array_equal(engine.step(rows).logits, expected)


def test_set_threads_the_next_step_still_works(open_engine: OpenEngine) -> None:
    engine = open_engine(1)
    engine.set_threads(1)
    feed(engine, 0, prompt(5))
    assert engine.length(0) == 5


def test_uncut_state_truncation_is_refused_and_clears_the_lane(open_uncut_engine: OpenEngine) -> None:
    engine = open_uncut_engine(2)
    assert not engine.facts.can_truncate
    feed(engine, 0, prompt(50))
    assert engine.truncate(0, 50)
    assert not engine.truncate(0, 49)
    assert engine.length(0) == 0
    feed(engine, 1, prompt(5))
    assert engine.truncate(1, 0)
    assert engine.length(1) == 0


def test_uncut_state_is_exported_and_imported_within_its_kind(open_uncut_engine: OpenEngine) -> None:
    engine, other = open_uncut_engine(2), open_uncut_engine(2)
    assert engine.facts.state_key == other.facts.state_key
    feed(engine, 0, prompt(50))
    state = engine.export_lane(0)
    expected = greedy(engine, 0, feed(engine, 0, prompt(2, seed=5)), 8)
    assert other.import_lane(1, state, 50)
    assert greedy(other, 1, feed(other, 1, prompt(2, seed=5)), 8) == expected
    assert not other.import_lane(1, bytes(state)[:-1], 50)
    assert not other.import_lane(1, state, 49)
    assert other.length(1) == 0


def test_uncut_state_abort_has_no_effect(open_uncut_llama: OpenEngine) -> None:
    """The fake engine's state survives an abort, so it may have one."""
    engine = open_uncut_llama(1)
    timer = threading.Timer(0.0005, engine.abort)
    timer.start()
    assert engine.step([row(0, 0, prompt(500))]).completed == (500,)
    timer.join()


def test_step_token_outside_the_vocabulary_is_a_fault_that_clears_the_named_lanes_only(open_engine: OpenEngine) -> None:
    engine = open_engine(2)
    before = feed(engine, 0, prompt(4))
    feed(engine, 1, prompt(4))
    with pytest.raises(EngineFaultError):
        engine.step([row(1, 4, [10_000_000])])
    assert [engine.length(0), engine.length(1)] == [4, 0]
    assert np.array_equal(feed(engine, 1, prompt(4)), before)
