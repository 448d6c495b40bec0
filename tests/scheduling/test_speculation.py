"""Which lanes guess ahead in a step, how far, and that it changes no token: situation, plan."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.scheduling import DECODE_SECONDS_PER_LANE, END_TOKEN, Shadow, make_job, make_settings, text

from superfluid.domain.job import Job
from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass
from superfluid.domain.scheduling import SchedulingRules
from superfluid.domain.speculation import NO_SPECULATION, SpeculationRules
from superfluid.scheduling.plan import DecodeLane, Drafted, Drawn, StepOutcome, StepPlan
from superfluid.scheduling.sequence import Lane, Sequence
from superfluid.scheduling.speculation import Speculation
from superfluid.scheduling.statistics import SchedulerCounters

_LOOKUP = SpeculationRules(strategy="prompt-lookup", has_gate=False)
_FIXED = msgspec.structs.replace(_LOOKUP, is_adaptive=False)
_TEXT = text(1, 40)


def _copying(stream: list[int]) -> int:
    """Says the text again and again."""
    return _TEXT[len(stream) % len(_TEXT)]


def _shadow(guessing: SpeculationRules, next_token: Callable[[list[int]], int] = _copying, **options: Any) -> Shadow:
    return Shadow(make_settings(speculation=guessing, **options), next_token)


def _drafts(shadow: Shadow) -> list[int]:
    """How much was guessed in each decode step."""
    return [sum(len(row.draft) + row.draft_limit for row in plan.decodes) for plan in shadow.plans if plan.decodes]


def _until_decode(shadow: Shadow) -> StepPlan:
    while True:
        plan = shadow.step()
        if plan.decodes:
            return plan


@pytest.mark.parametrize("depth", [1, 4, 15])
def test_fixed_drafts_are_as_deep_as_asked_for(depth: int) -> None:
    shadow = _shadow(msgspec.structs.replace(_FIXED, draft_tokens=depth))
    shadow.submit(make_job(_TEXT * 2, max_tokens=200))
    plan = _until_decode(shadow)
    assert plan.decodes[0].draft == tuple(_TEXT[1 : 1 + depth])


def test_adaptive_drafts_deepen_while_they_are_right() -> None:
    shadow = _shadow(_LOOKUP)
    job = shadow.submit(make_job(_TEXT * 2, max_tokens=200))
    shadow.run()
    assert shadow.reply(job) == (_TEXT * 5)[:200]
    drafts = _drafts(shadow)[:12]
    assert (drafts[0], drafts[-1]) == (4, 15)
    assert drafts == sorted(drafts)


def test_adaptive_drafts_begin_when_a_match_has_grown() -> None:
    """The prompt ends with 2 tokens of its beginning, and the reply goes on as the beginning does."""
    shadow = _shadow(_LOOKUP)
    shadow.submit(make_job([*_TEXT, *_TEXT[:2]], max_tokens=30))
    shadow.run()
    drafts = _drafts(shadow)
    assert not any(drafts[:2])
    assert all(drafts[6:-1])


@pytest.mark.parametrize(
    "job",
    [
        make_job(_TEXT * 2, max_tokens=50, is_batch_invariant=True),
        msgspec.structs.replace(make_job(_TEXT * 2, max_tokens=50), logprobs=0),
        msgspec.structs.replace(
            make_job(_TEXT * 2, max_tokens=50),
            sampling=msgspec.structs.replace(make_job(_TEXT).sampling, logit_bias={3: 1.0}),
        ),
    ],
    ids=["alone", "scores", "bias"],
)
def test_requests_with_scores_or_a_bias_or_that_run_alone_are_not_guessed_for(job: Job) -> None:
    shadow = _shadow(_LOOKUP)
    shadow.submit(job)
    shadow.run()
    assert not any(_drafts(shadow))


def test_state_that_cannot_be_cut_is_decoded_plainly() -> None:
    shadow = _shadow(_LOOKUP, can_truncate=False)
    shadow.submit(make_job(_TEXT * 2, max_tokens=50))
    shadow.run()
    assert not any(_drafts(shadow))


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 16, 17])
def test_reply_ends_exactly_at_max_tokens(max_tokens: int) -> None:
    shadow = _shadow(_FIXED)
    job = shadow.submit(make_job(_TEXT * 2, max_tokens=max_tokens))
    shadow.run()
    assert (len(shadow.reply(job)), shadow.finishes[job]) == (max_tokens, Finish.LENGTH)


@pytest.mark.parametrize("window", [81, 82, 85, 90])
def test_reply_ends_exactly_at_the_window(window: int) -> None:
    shadow = _shadow(_FIXED, window_tokens=window)
    job = shadow.submit(make_job(_TEXT * 2, max_tokens=500))
    shadow.run()
    assert (len(shadow.streams[job]), shadow.finishes[job]) == (window, Finish.LENGTH)


def test_end_of_turn_inside_a_draft_ends_the_reply_there() -> None:
    """The earlier turn ended with the same token, so that the draft goes on beyond it."""
    turn = [*_TEXT[:10], END_TOKEN, 5, 6, 7]
    shadow = _shadow(
        msgspec.structs.replace(_FIXED, draft_tokens=15), lambda stream: turn[(len(stream) - len(turn)) % len(turn)]
    )
    job = shadow.submit(make_job([*turn, *turn[:4]], max_tokens=100))
    shadow.run()
    assert (shadow.reply(job), shadow.finishes[job]) == (turn[4:11], Finish.END_OF_TURN)


def test_decode_budget_bounds_a_step_with_its_drafts() -> None:
    shadow = _shadow(_FIXED, rules=SchedulingRules(decode_budget_tokens=6))
    for seed in range(3):
        shadow.submit(make_job([*text(seed, 30), *_TEXT * 2], max_tokens=100))
    shadow.run()
    assert max(len(plan.decodes) + sum(len(row.draft) for row in plan.decodes) for plan in shadow.plans) == 6


def test_lanes_with_and_without_drafts_share_a_step() -> None:
    shadow = _shadow(_FIXED, lambda stream: _copying(stream) if stream[0] == _TEXT[0] else sum(stream) % 900)
    shadow.submit(make_job(text(7, 30), max_tokens=100))
    shadow.submit(make_job(_TEXT * 2, max_tokens=100))
    shadow.run_until(lambda: any(len(plan.decodes) == 2 for plan in shadow.plans))
    assert [bool(row.draft) for row in shadow.plans[-1].decodes] == [False, True]


def test_request_that_guesses_badly_stops() -> None:
    """Its text repeats two tokens that are followed by something else each time."""
    shadow = _shadow(
        msgspec.structs.replace(_FIXED, yield_rounds=5),
        lambda stream: (len(stream) % 3 or len(stream)) % 900,
    )
    shadow.submit(make_job(_TEXT, max_tokens=200))
    shadow.run()
    drafts = [bool(count) for count in _drafts(shadow)]
    assert (sum(drafts), any(drafts[-100:])) == (10, False)


def test_gate_measures_plain_steps_first_and_closes_where_drafts_cost_too_much() -> None:
    rules = SpeculationRules(strategy="prompt-lookup", reprobe_steps=20, is_adaptive=False)
    shadow = _shadow(rules)
    shadow.draft_token_seconds = 2 * DECODE_SECONDS_PER_LANE
    shadow.submit(make_job(_TEXT * 2, max_tokens=100))
    shadow.run()
    drafts = _drafts(shadow)
    first = next(place for place, count in enumerate(drafts) if count)
    assert first == 3
    assert not any(drafts[6:20])
    assert any(drafts[20:])


def test_gate_stays_open_where_drafts_are_cheap() -> None:
    shadow = _shadow(SpeculationRules(strategy="prompt-lookup", is_adaptive=False, draft_tokens=15))
    shadow.draft_token_seconds = 0.1 * DECODE_SECONDS_PER_LANE
    shadow.submit(make_job(_TEXT * 2, max_tokens=200))
    shadow.run()
    counters = shadow.scheduler.statistics().counters
    assert counters.spec_accepted_total == counters.spec_proposed_total
    assert len(_drafts(shadow)) < 25


@pytest.mark.parametrize(("copied", "is_guessing"), [(20, True), (6, False)])
def test_rest_of_the_gate_ends_with_a_long_copy_only(copied: int, is_guessing: bool) -> None:
    """Another request's drafts were all wrong, and the gate rests for a thousand steps."""
    lane = Lane(0)
    rules = SpeculationRules(strategy="prompt-lookup", reprobe_steps=1000)
    speculation = Speculation(rules, [lane], SchedulerCounters(), can_truncate=True, window_tokens=500)

    def place(tokens: list[int]) -> DecodeLane:
        job = make_job(tokens, max_tokens=100)
        lane.place(Sequence(job, np.array(tokens, np.int32), order=0, window_tokens=500, is_replayed=False), 0, 1)
        lane.length = len(tokens) - 1
        assert lane.decode is not None
        return lane.decode

    other = place(text(2, 50))
    for drafted in (0, 0, 0, 4, 4):
        outcome = StepOutcome(
            drawn=(Drawn(other.job_id, 1, False),),
            decode_seconds=0.01 * (1 + 0.4 * drafted),
            drafted=(Drafted(other.job_id, drafted, 0),) if drafted else (),
        )
        speculation.completed(StepPlan(decodes=(other,)), outcome)
    (row,) = speculation.with_drafts((place([*_TEXT, *_TEXT[:copied]]),))
    assert bool(row.draft) == is_guessing


@pytest.mark.parametrize("extra", [0.4, 0.8])
@pytest.mark.parametrize("seed", range(6))
def test_text_whose_phrases_return_by_chance_loses_three_percent_at_most(seed: int, extra: float) -> None:
    """Each word is followed by one of four: short matches everywhere, right one time in four."""
    source = random.Random(seed)
    followers = [[source.randrange(60) for _ in range(4)] for _ in range(60)]
    said = [0]
    while len(said) < 300:
        said.append(source.choice(followers[said[-1]]))
    prompt, reply = said[:44], said[44:]

    def seconds(rules: SpeculationRules) -> float:
        shadow = _shadow(rules, lambda stream: reply[len(stream) - len(prompt)])
        shadow.draft_token_seconds = extra * DECODE_SECONDS_PER_LANE
        job = shadow.submit(make_job(prompt, max_tokens=len(reply)))
        shadow.run()
        assert shadow.reply(job) == reply
        return shadow.seconds

    assert seconds(SpeculationRules(strategy="prompt-lookup")) < 1.03 * seconds(NO_SPECULATION)


def test_gate_is_for_each_count_of_lanes() -> None:
    """One lane has learned that drafts are dear; two lanes do not know yet."""
    shadow = _shadow(SpeculationRules(strategy="prompt-lookup", reprobe_steps=500, is_adaptive=False))
    shadow.draft_token_seconds = 2 * DECODE_SECONDS_PER_LANE
    shadow.submit(make_job(_TEXT * 2, max_tokens=300))
    for _ in range(30):
        shadow.step()
    shadow.submit(make_job([5, *_TEXT * 2], max_tokens=300))
    shadow.run_until(lambda: any(row.draft for plan in shadow.plans[-1:] for row in plan.decodes))
    assert len(shadow.plans[-1].decodes) == 2


def test_preempted_job_goes_on_as_if_nothing_had_been_guessed() -> None:
    shadow = _shadow(_FIXED, lanes=1)
    job = shadow.submit(make_job(_TEXT * 2, max_tokens=60))
    shadow.run_until(lambda: len(shadow.reply(job)) > 20)
    chat = shadow.submit(make_job(text(9, 20), max_tokens=5, qos=QosClass.INTERACTIVE))
    shadow.run()
    assert shadow.preempted() == [job]
    assert shadow.reply(job) == (_TEXT * 2)[:60]
    assert len(shadow.reply(chat)) == 5


_guess_rules = st.builds(
    SpeculationRules,
    strategy=st.sampled_from(["prompt-lookup", "draft-model"]),
    draft_tokens=st.integers(1, 15),
    is_adaptive=st.booleans(),
    has_gate=st.booleans(),
    min_yield=st.sampled_from([0.0, 0.75]),
    yield_rounds=st.integers(1, 30),
    reprobe_steps=st.integers(1, 5),
)


@given(
    rules=_guess_rules,
    prompts=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=60), min_size=1, max_size=4),
    right=st.lists(st.integers(0, 15), min_size=1, max_size=20),
    max_tokens=st.integers(1, 60),
    window=st.integers(62, 140),
    lanes=st.integers(1, 3),
)
@settings(max_examples=150, deadline=None)
def test_any_pattern_of_right_and_wrong_guesses_yields_the_tokens_of_plain_decoding(
    rules: SpeculationRules,
    prompts: list[list[int]],
    right: list[int],
    max_tokens: int,
    window: int,
    lanes: int,
) -> None:
    """A vocabulary of 6 tokens repeats itself all the time; each seventh or so of the sums ends a turn."""

    def next_token(stream: list[int]) -> int:
        value = sum(token * place for place, token in enumerate(stream[-5:], 1)) + len(stream) // 9
        return END_TOKEN if value % 41 == 7 else value % 6

    turns = iter(range(10**9))

    def guess(stream: list[int], limit: int) -> list[int]:
        good = right[next(turns) % len(right)]
        guesses: list[int] = []
        while len(guesses) < limit:
            token = next_token([*stream, *guesses])
            guesses.append(token if len(guesses) < good else (token + 1) % 6)
        return guesses

    shadow = _shadow(rules, next_token, window_tokens=window, lanes=lanes)
    shadow.guess = guess
    jobs = [shadow.submit(make_job(prompt, max_tokens=max_tokens)) for prompt in prompts]
    shadow.run()
    for job, prompt in zip(jobs, prompts, strict=True):
        stream = list(prompt)
        while len(stream) < min(window, len(prompt) + max_tokens):
            stream.append(next_token(stream))
            if stream[-1] == END_TOKEN:
                break
        assert shadow.streams[job] == stream
