"""What guessed tokens cost, from samples of which some are wrong."""

import pytest

from superfluid.scheduling.step_costs import ASSUMED_EXTRA, REFRESH_STEPS, StepCosts


def _costs(plain: float = 0.01, samples: int = 3) -> StepCosts:
    costs = StepCosts()
    for _ in range(samples):
        costs.observe_plain(plain)
    return costs


def test_cost_is_one_step_until_a_draft_was_seen() -> None:
    assert _costs().cost(8) == 1.0


@pytest.mark.parametrize("disturbed", range(4))
def test_cost_is_that_of_an_undisturbed_step(disturbed: int) -> None:
    costs = _costs()
    for sample in range(4):
        costs.observe(4, 0.3 if sample == disturbed else 0.02)
    assert costs.cost(4) == pytest.approx(2.0)


def test_cost_is_learned_for_each_size() -> None:
    """Single tokens add more than many do."""
    costs = _costs()
    for _ in range(3):
        costs.observe(1, 0.019)
        costs.observe(15, 0.07)
    assert [costs.cost(1), costs.cost(15)] == pytest.approx([1.9, 7.0])


def test_expected_cost_of_a_size_seen_too_seldom_is_not_above_the_assumed() -> None:
    costs = _costs()
    costs.observe(4, 0.3)
    assert costs.expected(4) == 1 + 4 * ASSUMED_EXTRA
    for _ in range(3):
        costs.observe(4, 0.05)
    assert costs.expected(4) == pytest.approx(5.0)


def test_plain_samples_become_stale_with_drafts_and_are_due_again() -> None:
    costs = _costs()
    assert (costs.is_stale, costs.is_refresh_due) == (False, False)
    for _ in range(REFRESH_STEPS):
        costs.observe(4, 0.02)
    assert (costs.is_stale, costs.is_refresh_due) == (True, True)
    costs.observe_plain(0.01)
    assert (costs.is_stale, costs.is_refresh_due) == (True, False)


def test_steps_compared_anew_count_by_the_plain_samples_of_now() -> None:
    """All has become three times as slow, drafts and plain steps."""
    costs = _costs()
    for _ in range(3):
        costs.observe(4, 0.06)
    assert costs.cost(4) == pytest.approx(6.0)
    costs.restart_plain()
    assert not costs.has_plain
    for _ in range(3):
        costs.observe_plain(0.03)
    costs.compare_anew(3)
    assert costs.cost(4) == pytest.approx(2.0)
