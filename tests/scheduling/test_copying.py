"""How deep a guess from the stream itself is worth being."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.fixtures.scheduling import text

from superfluid.scheduling.copying import Copying
from superfluid.scheduling.step_costs import StepCosts

_PROMPT = text(1, 200)


def _costs(extra: float, lanes: int = 1) -> StepCosts:
    """Steps of all sizes were seen: each guessed token adds ``extra`` plain steps."""
    costs = StepCosts(lanes)
    for _ in range(3):
        costs.observe_plain(0.01 * lanes)
    for tokens in (1, 3, 7, 15):
        for _ in range(3):
            costs.observe(tokens, 0.01 * lanes * (1 + extra * tokens))
    return costs


def _depths(prompt: Sequence[int], reply: Sequence[int], costs: StepCosts) -> list[int]:
    """What is guessed behind each token of the reply, if nothing is ever used."""
    copying, stream = Copying(), np.array([*prompt, *reply], np.int32)
    depths = []
    for count in range(len(prompt) + 1, len(stream)):
        guess = copying.look_up(stream[:count], 15)
        depths.append(0 if guess is None else copying.worthwhile_depth(guess, costs))
    return depths


def test_copy_is_guessed_as_deep_as_may_be_after_a_few_tokens() -> None:
    depths = _depths(_PROMPT, _PROMPT[40:120], _costs(0.3))
    assert min(depths[10:]) >= 7
    assert set(depths[-20:]) == {15}


def test_text_that_repeats_only_pairs_is_not_guessed_from() -> None:
    """Each pair of the prompt is followed by something else."""
    reply = [token for place in range(0, 120, 2) for token in (*_PROMPT[place : place + 2], 950 + place % 40)]
    assert not any(_depths(_PROMPT, reply, _costs(0.45)))


def test_text_whose_matches_are_right_is_soon_guessed_from_shorter_ones() -> None:
    """Five tokens are copied, then one is another, again and again."""
    reply = [token for place in range(0, 180, 6) for token in (*_PROMPT[place : place + 5], 950 + place % 40)]
    depths = _depths(_PROMPT, reply, _costs(0.2))
    assert sum(map(bool, depths[:30])) < sum(map(bool, depths[-30:]))


@pytest.mark.parametrize(("extra", "depth"), [(0.1, 15), (0.45, 15), (0.97, 0)])
def test_depth_follows_what_a_token_costs(extra: float, depth: int) -> None:
    assert _depths(_PROMPT, _PROMPT[40:140], _costs(extra))[-1] == depth


def test_depth_is_less_where_several_lanes_share_the_step() -> None:
    """Of two lanes one copies: a token of it is half a token a lane."""
    assert _depths(_PROMPT, _PROMPT[40:140], _costs(0.3, lanes=2))[-1] > 0
    assert _depths(_PROMPT, _PROMPT[40:140], _costs(0.3, lanes=4))[-1] == 0


def test_sizes_that_were_never_tried_are_tried() -> None:
    """Short drafts are dear on a processor, and say nothing of deep ones."""
    costs = StepCosts()
    for _ in range(3):
        costs.observe_plain(0.01)
        costs.observe(1, 0.019)
    assert _depths(_PROMPT, _PROMPT[40:140], costs)[-1] == 15


@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_copy_is_tried_whatever_the_count_of_lanes(lanes: int) -> None:
    """What a guessed token adds to a step of many lanes is not known yet, but less than to a single one's."""
    costs = StepCosts(lanes)
    for _ in range(3):
        costs.observe_plain(0.01 * lanes)
    assert _depths(_PROMPT, _PROMPT[40:140], costs)[-1] > 0


def test_guess_ends_with_the_stream_before_an_image() -> None:
    """Ids below 0 are an image's: neither part of a match nor of a guess."""
    image = [-5, -6, -7]
    prompt = [*image, *_PROMPT[:30], *image, *_PROMPT[30:60]]
    stream = np.array([*prompt, *_PROMPT[10:25]], np.int32)
    guess = Copying().look_up(stream, 15)
    assert guess is not None
    assert guess.tokens == tuple(_PROMPT[25:30])
    again = Copying().look_up(np.array([*prompt, *image], np.int32), 15)
    assert again is None
