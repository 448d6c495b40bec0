"""When guessing ahead is given up, and tried again."""

import random

import msgspec
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
        guesser.observe(proposed, accepted, is_adaptive=True, can_fall=True)
        depths.append(guesser.depth)
    assert depths == [8, MAX_DRAFT_TOKENS, MAX_DRAFT_TOKENS, 6, 1, 2]
    guesser.observe(2, 2, is_adaptive=False, can_fall=True)
    assert guesser.depth == 2


def test_depth_of_drafts_that_are_cut_elsewhere_does_not_fall() -> None:
    guesser = Guesser(4, YieldFloor(_RULES))
    guesser.observe(4, 4, is_adaptive=True, can_fall=False)
    guesser.observe(8, 0, is_adaptive=True, can_fall=False)
    assert guesser.depth == 8


class Machine:
    """Runs steps past a gate on a clock of its own. A plain step takes ``plain_seconds``, each guessed token ``extra``
    of that more; ``slowness`` multiplies all. ``text`` says how many guesses of a step are right."""

    def __init__(self, *, extra: float = 0.4, rules: SpeculationRules = _RULES) -> None:
        self.gate = ThroughputGate(rules)
        self.plain_seconds = 0.006
        self.extra = extra
        self.slowness = 1.0
        self.now = 0.0
        self.steps = self.drafted_steps = 0
        self.tokens = 0

    @property
    def wasted_steps(self) -> float:
        """Plain steps that were lost to drafts so far; negative if they have won."""
        return self.now / self.plain_seconds - self.tokens

    def step(self, guessed: int, right: int, *, disturbed: float = 1.0) -> None:
        """With drafts if the gate lets them."""
        is_drafting = self.gate.is_open and guessed > 0
        cost = 1 + self.extra * guessed if is_drafting else 1.0
        seconds = self.plain_seconds * self.slowness * disturbed * cost
        self.now += seconds
        self.steps += 1
        self.drafted_steps += is_drafting
        self.tokens += 1 + right if is_drafting else 1
        if is_drafting:
            self.gate.observe(guessed, 1 + right, seconds)
        else:
            self.gate.observe_plain(seconds)

    def run(self, steps: int, guessed: int, right: int) -> None:
        for _ in range(steps):
            self.step(guessed, right)

    def prepare(self) -> "Machine":
        """Takes the plain samples."""
        self.run(3, 0, 0)
        return self


def _resting_steps(machine: Machine) -> int:
    """How long the gate rests from here on."""
    rest = 0
    while not machine.gate.is_open:
        machine.step(0, 0)
        rest += 1
    return rest


def test_gate_lets_nobody_guess_before_it_knows_a_plain_step() -> None:
    machine = Machine()
    machine.run(3, 4, 4)
    assert (machine.drafted_steps, machine.gate.is_open) == (0, True)


@pytest.mark.parametrize(
    ("guessed", "right", "extra", "is_open"),
    [
        (15, 15, 0.4, True),
        (15, 8, 0.4, True),
        (15, 5, 0.4, False),
        (4, 4, 0.95, False),
        (4, 4, 0.8, True),
        (1, 0, 0.4, False),
        (2, 0, 1.0, False),
        (1, 1, 0.4, True),
    ],
    ids=["copy", "half right", "a third right", "below 1.08", "above 1.08", "prose", "prose, dear", "shallow copy"],
)
def test_gate_closes_where_drafts_do_not_pay(guessed: int, right: int, extra: float, is_open: bool) -> None:
    machine = Machine(extra=extra).prepare()
    machine.run(30, guessed, right)
    assert (machine.drafted_steps >= 28) == is_open


@pytest.mark.parametrize("disturbed_step", range(3, 40))
def test_gate_a_disturbed_step_does_not_end_a_copy(disturbed_step: int) -> None:
    """Whichever step takes ten times as long: a plain one or one with drafts, the first of them or a later one."""
    machine = Machine()
    for step in range(40):
        machine.step(8, 8, disturbed=10.0 if step == disturbed_step else 1.0)
    assert machine.drafted_steps >= 34


@pytest.mark.parametrize("disturbed_step", range(3))
def test_gate_a_disturbed_plain_step_does_not_keep_drafts_that_do_not_pay(disturbed_step: int) -> None:
    machine = Machine()
    for step in range(40):
        machine.step(2, 0, disturbed=10.0 if step == disturbed_step else 1.0)
    assert machine.drafted_steps <= 8


@pytest.mark.parametrize("share", [4, 7, 10])
def test_gate_on_a_machine_that_is_disturbed_again_and_again_tells_copy_from_prose(share: int) -> None:
    """One step in ``share`` takes 3 to 12 times as long."""
    for seed in range(20):
        source = random.Random(seed)
        copy, prose = Machine(), Machine()
        for _ in range(400):
            disturbed = source.uniform(3, 12) if source.randrange(share) == 0 else 1.0
            copy.step(8, 7, disturbed=disturbed)
            prose.step(2, 0, disturbed=disturbed)
        assert copy.drafted_steps > 300
        assert prose.drafted_steps < 80


@pytest.mark.parametrize(("factor", "every"), [(1.01, 1), (1.5, 40), (3.0, 100), (0.6, 60)])
def test_gate_stays_open_while_the_whole_machine_becomes_slower_or_faster(factor: float, every: int) -> None:
    """A copy that is worth 1.5 times plain decoding."""
    machine = Machine(extra=0.5)
    for step in range(250):
        machine.slowness *= factor if step % every == every - 1 else 1.0
        machine.step(8, 7)
    assert machine.drafted_steps >= 200


def test_gate_closes_where_drafts_do_not_pay_though_the_machine_has_become_faster() -> None:
    """Beside the plain samples of before, drafts look good."""
    machine = Machine(extra=0.5, rules=msgspec.structs.replace(_RULES, reprobe_steps=500))
    machine.slowness = 2.0
    machine.run(20, 4, 4)
    machine.slowness = 1.0
    machine.run(150, 4, 1)
    assert not machine.gate.is_open


def test_gate_a_plain_step_now_and_then_is_taken_during_a_long_copy() -> None:
    machine = Machine().prepare()
    machine.run(340, 8, 8)
    assert machine.steps - machine.drafted_steps == 3 + 340 // 17


def test_gate_closes_when_a_copy_turns_to_prose_and_opens_when_it_copies_again() -> None:
    machine = Machine().prepare()
    machine.run(40, 8, 8)
    before = machine.wasted_steps
    machine.run(200, 2, 0)
    assert machine.wasted_steps - before < 256 * 0.06
    drafted = machine.drafted_steps
    machine.run(100, 8, 8)
    assert machine.drafted_steps - drafted > 70


def test_gate_one_wrong_draft_in_a_copy_does_not_close_it() -> None:
    machine = Machine().prepare()
    for step in range(50):
        machine.step(15, 1 if step % 6 == 5 else 15)
    assert machine.drafted_steps > 46


@pytest.mark.parametrize("guessed", [1, 2])
@pytest.mark.parametrize("extra", [0.2, 0.45, 0.7])
def test_gate_probes_of_a_reply_that_copies_nothing_cost_three_percent_of_it_at_most(
    guessed: int, extra: float
) -> None:
    """256 tokens; short chance matches are guessed from with every third token, and are wrong."""
    machine = Machine(extra=extra, rules=SpeculationRules(strategy="auto"))
    for step in range(256):
        machine.step(guessed if step % 3 == 0 else 0, 0)
    assert 0 < machine.wasted_steps < 0.03 * 256


def test_gate_rests_twice_as_long_each_time_up_to_the_most() -> None:
    machine = Machine(extra=1.0).prepare()
    rests = []
    for _ in range(4):
        while machine.gate.is_open:
            machine.step(16, 8)
        rests.append(_resting_steps(machine))
    assert rests == [8, 16, 20, 20]


def test_gate_that_passed_begins_with_a_short_rest_again() -> None:
    machine = Machine(extra=0.5).prepare()
    for _ in range(2):
        while machine.gate.is_open:
            machine.step(4, 0)
        _resting_steps(machine)
    machine.run(8, 16, 16)
    while machine.gate.is_open:
        machine.step(4, 0)
    assert _resting_steps(machine) == 8


def test_gate_rest_is_over_when_a_copy_was_guessed_from_meanwhile() -> None:
    machine = Machine().prepare()
    while machine.gate.is_open:
        machine.step(4, 0)
    machine.run(3, 0, 0)
    machine.gate.observe(15, 16, machine.plain_seconds * 7)
    assert machine.gate.is_open


def test_gate_waits_with_its_judgement_until_enough_was_guessed() -> None:
    """Four tokens a step that win nothing and lose nothing."""
    machine = Machine(extra=1.0).prepare()
    machine.run(3, 4, 4)
    assert machine.gate.is_open
    machine.run(1, 4, 4)
    assert not machine.gate.is_open


def test_gate_on_an_engine_that_takes_no_time_stays_open() -> None:
    machine = Machine()
    machine.plain_seconds = 0.0
    machine.run(30, 4, 1)
    assert machine.gate.is_open
