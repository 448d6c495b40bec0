"""The sampler against a naive one that sorts everything, and the rules a client can rely on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superfluid.domain.request import SamplingParams
from superfluid.engine.interface import Logits
from superfluid.engine.sampling import Sampler, greatest, is_plainly_greedy, leading_tokens, uniform
from superfluid.errors import EngineFaultError


def _naive_adjusted(logits: Logits, params: SamplingParams, recent: list[int], unpenalized: frozenset[int]) -> Logits:
    adjusted = logits.copy()
    for token, bias in params.logit_bias.items():
        adjusted[token] += np.float32(bias)
    window = recent[-64:]
    for token in sorted(set(window) - unpenalized):
        value, repeat = adjusted[token], np.float32(params.repeat_penalty)
        value = value / repeat if value > 0 else value * repeat
        cost = np.float32(params.presence_penalty) + np.float32(window.count(token)) * np.float32(
            params.frequency_penalty
        )
        adjusted[token] = value - cost
    return adjusted


def _naive_survivors(logits: Logits, params: SamplingParams) -> tuple[list[int], Logits]:
    """The tokens that all cuts leave, and the softmax weights of the whole vocabulary."""
    scale = np.float32(1.0 / max(params.temperature, 1e-6))
    weights = np.exp((logits - logits.max()) * scale)
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    survivors = ranked[: params.top_k] if params.top_k else ranked
    survivors = [token for token in survivors if weights[token] >= np.float32(params.min_p)]
    if params.top_p < 1:
        wanted, share, count = params.top_p * float(weights.sum()), 0.0, 0
        for token in ranked:
            share, count = share + float(weights[token]), count + 1
            if share >= wanted:
                break
        kept = set(ranked[:count])
        survivors = [token for token in survivors if token in kept]
    return sorted(survivors), weights


def _naive_draw(logits: Logits, params: SamplingParams, position: int) -> int:
    if params.temperature <= 0:
        return min(range(len(logits)), key=lambda token: (-logits[token], token))
    survivors, weights = _naive_survivors(logits, params)
    total = sum(float(weights[token]) for token in survivors)
    target, share = uniform(params.seed, position) * total, 0.0
    for token in survivors:
        share += float(weights[token])
        if share > target:
            return token
    return survivors[-1]


@st.composite
def _rows(draw: st.DrawFn) -> Logits:
    """Rows of any shape: spread out, nearly flat, full of ties, full of -inf; small, and large enough to be folded."""
    size = draw(st.sampled_from([1, 2, 5, 63, 64, 65, 300, 20_000]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    row = generator.normal(0, draw(st.sampled_from([0.01, 1.0, 4.0, 30.0])), size).astype(np.float32)
    if draw(st.booleans()):
        row = np.round(row)
    if draw(st.booleans()):
        row[generator.random(size) < 0.5] = -np.inf
        row[generator.integers(size)] = 1.0
    return row


_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-9, 0.1, 0.8, 1.0, 2.0]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.95, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 40, 150, 100_000]),
    seed=st.integers(-(2**63), 2**64),
)


@settings(max_examples=250, deadline=None)
@given(_rows(), _params, st.integers(0, 2**31))
def test_draw_any_row_and_cuts_agrees_with_the_naive_sampler(
    row: Logits, params: SamplingParams, position: int
) -> None:
    before = row.copy()
    assert Sampler(len(row)).draw(row, params, position).token == _naive_draw(row, params, position)
    assert np.array_equal(row, before)


_penalties = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1.0]),
    repeat_penalty=st.sampled_from([0.5, 1.0, 1.3]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 0.7]),
    frequency_penalty=st.sampled_from([-0.1, 0.0, 0.4]),
    logit_bias=st.dictionaries(st.integers(0, 19), st.floats(-100, 100), max_size=4),
    seed=st.integers(0, 2**32),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-20, 20, width=32), min_size=20, max_size=20),
    _penalties,
    st.lists(st.integers(0, 19), max_size=90),
    st.frozensets(st.integers(0, 19), max_size=5),
)
def test_draw_bias_and_penalties_agree_with_the_naive_sampler(
    values: list[float], params: SamplingParams, recent: list[int], unpenalized: frozenset[int]
) -> None:
    row = np.array(values, np.float32)
    expected = _naive_draw(_naive_adjusted(row, params, recent, unpenalized), params, len(recent))
    assert Sampler(20, unpenalized).draw(row, params, len(recent), recent).token == expected


@given(_rows(), st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_leading_tokens_are_those_of_a_full_sort(row: Logits, count: int) -> None:
    ranked = sorted(range(len(row)), key=lambda token: (-row[token], token))
    assert leading_tokens(row, count).tolist() == ranked[:count]


def test_draw_greedy_of_equal_logits_the_lowest_id_wins() -> None:
    row = np.array([0, 3, 1, 3], np.float32)
    assert Sampler(4).draw(row, SamplingParams(temperature=0), 0).token == 1


@given(
    row=st.lists(st.floats(-5, 5, width=32), min_size=3, max_size=8),
    bias=st.dictionaries(st.integers(0, 2), st.sampled_from([-np.inf, -1.0, 0.0, 2.0])),
)
def test_draw_greedy_with_a_bias_is_the_argmax_of_what_it_leaves(row: list[float], bias: dict[int, float]) -> None:
    logits = np.array(row, np.float32)
    before = logits.copy()
    adjusted = _naive_adjusted(logits, SamplingParams(logit_bias=bias), [], frozenset())
    drawn = Sampler(len(row)).draw(logits, SamplingParams(temperature=0, logit_bias=bias), 0)
    assert drawn.token == adjusted.argmax()
    assert (logits == before).all()


def test_greatest_of_each_row_is_its_argmax_and_nothing_where_that_is_no_finite_number() -> None:
    inf, nan = np.inf, np.nan
    rows = [[1, 3, 3], [-inf, -2, -3], [-inf] * 3, [1, nan, 2], [1, inf, 2], [nan, inf, 0], [1, -inf, 2]]
    assert greatest(np.array(rows, np.float32)) == [1, 1, None, None, None, None, 2]


@pytest.mark.parametrize(
    ("params", "is_plain"),
    [
        (SamplingParams(temperature=0), True),
        (SamplingParams(temperature=0, top_k=1, top_p=0.1, seed=4), True),
        (SamplingParams(temperature=0, logit_bias={1: -np.inf, 2: -1.0}), True),
        (SamplingParams(temperature=0, logit_bias={1: -1.0, 2: 0.5}), False),
        (SamplingParams(temperature=0, repeat_penalty=1.1), False),
        (SamplingParams(temperature=0, presence_penalty=0.1), False),
        (SamplingParams(temperature=0, frequency_penalty=0.1), False),
        (SamplingParams(temperature=0.1), False),
    ],
)
def test_draw_is_plainly_greedy_if_nothing_can_raise_another_token(params: SamplingParams, *, is_plain: bool) -> None:
    assert is_plainly_greedy(params) is is_plain


def test_draw_same_seed_and_position_gives_the_same_token_whatever_was_drawn_between() -> None:
    row = np.random.default_rng(1).normal(0, 1, 500).astype(np.float32)
    sampler, params = Sampler(500), SamplingParams(seed=42)
    stream = [sampler.draw(row, params, position).token for position in range(50)]
    assert [sampler.draw(row, params, position).token for position in reversed(range(50))] == stream[::-1]
    other = SamplingParams(seed=43)
    assert [sampler.draw(row, other, position).token for position in range(50)] != stream


def test_draw_frequencies_follow_the_softmax() -> None:
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler, params = Sampler(4), SamplingParams(seed=7)
    drawn = np.bincount([sampler.draw(row, params, position).token for position in range(20_000)], minlength=4)
    assert np.allclose(drawn / 20_000, [0.5, 0.3, 0.15, 0.05], atol=0.015)


def test_draw_top_p_is_measured_on_the_whole_softmax_not_on_what_top_k_left() -> None:
    row = np.log(np.array([0.4, 0.2, 0.2, 0.2], np.float32))
    params = SamplingParams(top_k=2, top_p=0.5, seed=1)
    drawn = {Sampler(4).draw(row, params, position).token for position in range(200)}
    assert drawn == {0, 1}


def test_uniform_is_spread_evenly_over_positions_and_over_seeds() -> None:
    for values in ([uniform(9, n) for n in range(10_000)], [uniform(n, 9) for n in range(10_000)]):
        counts = np.histogram(values, bins=20, range=(0, 1))[0]
        assert abs(counts - 500).max() < 120
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05


def test_uniform_is_pinned_since_stored_streams_depend_on_it() -> None:
    assert [uniform(0, 0), uniform(1, 0), uniform(1, 1), uniform(-1, 10)] == [
        0.8833108082136426,
        0.7497482413580301,
        0.37239342287916577,
        0.3298102465576014,
    ]


def test_draw_penalties_look_back_over_64_tokens_only() -> None:
    row = np.array([2.0, 1.0, -9.0], np.float32)
    params = SamplingParams(temperature=0, presence_penalty=2.0)
    assert Sampler(3).draw(row, params, 65, [0] + [2] * 64).token == 0
    assert Sampler(3).draw(row, params, 64, [0] + [2] * 63).token == 1
    assert Sampler(3, frozenset({0})).draw(row, params, 64, [0] + [2] * 63).token == 0


def test_draw_mask_leaves_only_what_it_allows() -> None:
    row = np.array([9.0, 1.0, 2.0], np.float32)
    mask = np.array([False, True, True])
    draw = Sampler(3).draw(row, SamplingParams(temperature=0), 0, mask=mask, top_n=2)
    assert draw.token == 2
    assert draw.scores is not None
    assert draw.scores.top_tokens == [2, 1]


def test_draw_scores_are_the_log_softmax_before_temperature() -> None:
    row = np.array([1.0, 3.0, 2.0, -np.inf], np.float32)
    params = SamplingParams(temperature=0.1, top_k=1, logit_bias={0: 5.0})
    scores = Sampler(4).draw(row, params, 0, top_n=2).scores
    normalizer = float(np.log(np.exp([6.0, 3.0, 2.0]).sum()))
    assert scores is not None
    assert scores.chosen == pytest.approx(6.0 - normalizer, abs=1e-6)
    assert scores.top_tokens == [0, 1]
    assert scores.top_logprobs == pytest.approx([6.0 - normalizer, 3.0 - normalizer], abs=1e-6)


def test_draw_scores_without_alternatives_still_give_the_chosen() -> None:
    scores = Sampler(2).draw(np.zeros(2, np.float32), SamplingParams(temperature=0), 0, top_n=0).scores
    assert scores is not None
    assert scores.chosen == pytest.approx(-np.log(2))
    assert scores.top_tokens == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
def test_draw_logits_not_finite_is_an_engine_fault(bad: list[float], temperature: float) -> None:
    with pytest.raises(EngineFaultError):
        Sampler(2).draw(np.array(bad, np.float32), SamplingParams(temperature=temperature), 0)
