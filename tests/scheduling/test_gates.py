"""When guessing ahead is given up, and tried again."""

import pytest

from superfluid.domain.speculation import MAX_DRAFT_TOKENS, SpeculationRules
from superfluid.scheduling.gates import Guesser, ThroughputGate, YieldFloor

_RULES = SpeculationRules(strategy="auto", yield_rounds=4, reprobe_steps=8, reprobe_max_steps=20)


@pytest.mark.parametrize(
    ("spans", "is_open"),
    [
        ([0], True),
        ([0, 0], False),
        ([0, 3, 0], True),
        ([0, 3, 0, 0], False),
        ([2, 3, 2, 3], True),
        ([3, 3, 3, 3], True),
    ],
)
def test_request_guesses_no_more_after_two_bad_spans_with_no_good_one_between(spans: list[int], is_open: bool) -> None:
    """Of 4 drafts each, 3 accepted tokens are just enough."""
    floor = YieldFloor(_RULES)
    for accepted in spans:
        for draft in range(4):
            floor.observe(accepted if draft == 0 else 0)
    assert floor.is_open == is_open


def test_request_is_judged_only_when_a_span_is_over() -> None:
    floor = YieldFloor(_RULES)
    for _ in range(7):
        floor.observe(0)
    assert floor.is_open


def test_depth_doubles_with_right_drafts_and_falls_to_what_was_right() -> None:
    guesser = Guesser(4, YieldFloor(_RULES))
    depths = []
    for proposed, accepted in [(4, 4), (8, 8), (15, 15), (15, 6), (6, 0), (1, 1)]:
        guesser.observe(proposed, accepted, is_adaptive=True)
        depths.append(guesser.depth)
    assert depths == [8, MAX_DRAFT_TOKENS, MAX_DRAFT_TOKENS, 6, 1, 2]
    guesser.observe(2, 2, is_adaptive=False)
    assert guesser.depth == 2


def _probe(gate: ThroughputGate, speedup: float, drafted: int = 16) -> None:
    """A step of one second that drew ``speedup`` seconds' worth of tokens; a plain step takes a second too."""
    gate.observe(drafted, 1.0, speedup, 1.0)


@pytest.mark.parametrize(("speedup", "is_open"), [(1.07, False), (1.09, True)])
def test_gate_closes_below_the_speedup_that_is_asked_for(speedup: float, is_open: bool) -> None:
    gate = ThroughputGate(_RULES)
    _probe(gate, speedup)
    assert gate.is_open == is_open


def test_gate_waits_until_enough_was_guessed() -> None:
    gate = ThroughputGate(_RULES)
    _probe(gate, 0.9, drafted=15)
    assert gate.is_open
    _probe(gate, 0.9, drafted=1)
    assert not gate.is_open


def test_gate_rests_twice_as_long_each_time_up_to_the_most() -> None:
    gate = ThroughputGate(_RULES)
    rests = []
    for _ in range(4):
        _probe(gate, 1.0)
        rests.append(0)
        while not gate.is_open:
            gate.observe_plain()
            rests[-1] += 1
    assert rests == [8, 16, 20, 20]


def test_gate_that_passed_begins_with_a_short_rest_again() -> None:
    gate = ThroughputGate(_RULES)
    for speedup in (1.0, 1.0, 3.0, 0.1):
        while not gate.is_open:
            gate.observe_plain()
        _probe(gate, speedup)
    _probe(gate, 0.1)
    for _ in range(8):
        assert not gate.is_open
        gate.observe_plain()
    assert gate.is_open


def test_gate_one_bad_draft_among_good_ones_does_not_close_it() -> None:
    gate = ThroughputGate(_RULES)
    for speedup in (1.8, 1.8, 1.8, 1.8, 0.2, 1.8):
        _probe(gate, speedup)
        assert gate.is_open


def test_gate_a_probe_that_loses_a_step_ends_at_once_and_a_later_one_with_half() -> None:
    gate = ThroughputGate(_RULES)
    gate.observe(2, 1.9, 1.0, 1.0)
    assert gate.is_open
    gate.observe(2, 1.2, 1.0, 1.0)
    assert not gate.is_open
    for _ in range(8):
        gate.observe_plain()
    gate.observe(2, 1.6, 1.0, 1.0)
    assert not gate.is_open


def test_gate_on_an_engine_that_takes_no_time_stays_open() -> None:
    gate = ThroughputGate(_RULES)
    gate.observe(16, 0.0, 0.0, 0.0)
    assert gate.is_open
