"""Tokens of prompts that ride along in decode steps: which lanes, and what it does to the books."""

from dataclasses import dataclass

import numpy as np
import pytest
from tests.fixtures.scheduling import DECODE_SECONDS_PER_LANE, Shadow, make_job, make_settings, text

from superfluid.domain.media import ImageRun
from superfluid.domain.request import QosClass
from superfluid.domain.scheduling import SchedulingRules
from superfluid.domain.speculation import SpeculationRules
from superfluid.scheduling.fillers import fillers
from superfluid.scheduling.plan import DecodeLane, StepPlan
from superfluid.scheduling.sequence import Lane, Sequence

AGENT, BACKGROUND = QosClass.AGENT, QosClass.BACKGROUND


@dataclass(frozen=True)
class Prompt:
    """On a lane, all but ``rest`` tokens of it are read; an image of two tokens begins ``image_in`` tokens further."""

    rest: int = 50
    adapter: int = 0
    image_in: int | None = None


PROMPTS = {
    "p": Prompt(),
    "3": Prompt(rest=3),
    "2": Prompt(rest=2),
    "a": Prompt(adapter=1),
    "i": Prompt(image_in=0),
    "b": Prompt(image_in=2),
    "t": Prompt(image_in=3),
}
READ_TOKENS = 20


def _lane(index: int, kind: str) -> Lane:
    lane = Lane(index)
    if kind == ".":
        return lane
    prompt = PROMPTS.get(kind.lower(), Prompt(rest=0, adapter=int(kind == "A")))
    length = READ_TOKENS + prompt.rest
    at = None if prompt.image_in is None else READ_TOKENS + prompt.image_in
    images = [] if at is None else [ImageRun(position=at, length=2, blob="0" * 64, index=0)]
    tokens = np.array(text(index + 1, length), np.int32)
    job = make_job(tokens.tolist(), images=images, adapter=prompt.adapter)
    lane.place(Sequence(job, tokens, order=index, window_tokens=1000, is_replayed=False), 0, tick=0)
    lane.length = READ_TOKENS
    return lane


@pytest.mark.parametrize(
    ("kinds", "most_rows", "filled"),
    [
        # D decodes in this step, d in another; p has a prompt that is being read; . is free
        ("DpD", 0, [1]),
        ("DppD", 0, [1, 2]),
        ("DpDDpD", 0, [1, 4]),
        # no more than there are lanes that decode
        ("DpppD", 0, []),
        ("DpppDD", 0, [1, 2, 3]),
        ("DppDppD", 0, [1, 2]),
        # at the edges there is nothing to close
        ("pDDp", 0, []),
        ("ppD", 0, []),
        ("DDD", 0, []),
        # all of a gap or nothing
        ("D.D", 0, []),
        ("Dp.D", 0, []),
        ("DpdD", 0, []),
        ("Dp.DpD", 0, [4]),
        # not what would leave one token of the prompt for a chunk, or is none of the text
        ("D3D", 0, [1]),
        ("D2D", 0, []),
        ("DiD", 0, []),
        ("DbD", 0, []),
        ("DtD", 0, [1]),
        # the whole step has one adapter
        ("DaD", 0, []),
        # what the operator allows
        ("DpDpD", 5, [1, 3]),
        ("DpDpD", 4, [1]),
        ("DppDpD", 4, [4]),
        ("DpD", 2, []),
    ],
)
def test_lanes_that_are_filled(kinds: str, most_rows: int, filled: list[int]) -> None:
    lanes = [_lane(index, kind) for index, kind in enumerate(kinds)]
    step = [lane.decode for lane, kind in zip(lanes, kinds, strict=True) if kind == "D" and lane.decode is not None]
    assert [row.lane for row in fillers(lanes, step, most_rows)] == filled


# ---- in plans


def _beside_a_prompt(shadow: Shadow, prompt: int = 1) -> int:
    """Replies on all lanes of four but ``prompt``, whose job has just arrived; its id."""
    jobs = [shadow.submit(make_job(text(seed, 20), max_tokens=400)) for seed in range(1, 5)]
    shadow.run_until(lambda: all(len(shadow.reply(job_id)) > 2 for job_id in jobs))
    shadow.cancel(jobs[prompt])
    return shadow.submit(make_job(text(9, 1000), max_tokens=1))


def _steps_until_read(shadow: Shadow, job_id: int) -> list[StepPlan]:
    """The decode steps until the job is over."""
    before = len(shadow.plans)
    shadow.run_until(lambda: shadow.is_over(job_id))
    return [plan for plan in shadow.plans[before:] if plan.decodes]


def test_plan_decode_steps_beside_a_prompt_are_filled_until_its_last_tokens() -> None:
    shadow = Shadow(make_settings())
    steps = _steps_until_read(shadow, job_id := _beside_a_prompt(shadow))
    assert {plan.fillers for plan in steps} == {(DecodeLane(job_id, 1),)}
    assert {tuple(row.lane for row in plan.decodes) for plan in steps} == {(0, 2, 3)}
    assert {tuple(row.lane for row in plan.rows) for plan in steps} == {(0, 1, 2, 3)}
    chunks = [plan.chunk.length for plan in shadow.plans if plan.chunk is not None and plan.chunk.job_id == job_id]
    assert sum(chunks) + len(steps) == 1000


def test_complete_fillers_count_as_read_tokens_and_not_as_drawn_ones() -> None:
    shadow = Shadow(make_settings())
    job_id = _beside_a_prompt(shadow)
    _steps_until_read(shadow, job_id)
    counters = shadow.scheduler.statistics().counters
    assert counters.prefill_tokens_total == 4 * 20 + 1000
    assert counters.decode_tokens_total == sum(len(shadow.reply(other)) for other in shadow.streams)


def test_complete_step_with_fillers_is_a_sample_for_its_count_of_rows() -> None:
    shadow = Shadow(make_settings())
    _steps_until_read(shadow, _beside_a_prompt(shadow))
    assert shadow.scheduler.rates.decode_seconds(4) == pytest.approx(4 * DECODE_SECONDS_PER_LANE)
    assert shadow.scheduler.rates.decode_seconds(3) == pytest.approx(3 * DECODE_SECONDS_PER_LANE)


@pytest.mark.parametrize(
    ("settings", "prompt"),
    [
        (make_settings(), 0),
        (make_settings(), 3),
        (make_settings(replays_replies=True), 1),
        (make_settings(can_truncate=False), 1),
        (make_settings(rules=SchedulingRules(decode_budget_tokens=3)), 1),
        (make_settings(speculation=SpeculationRules(strategy="prompt-lookup")), 1),
    ],
    ids=["first lane", "last lane", "exact", "cannot be cut", "budget", "speculation"],
)
def test_plan_no_fillers(settings: object, prompt: int) -> None:
    shadow = Shadow(settings)  # type: ignore[arg-type]
    steps = _steps_until_read(shadow, _beside_a_prompt(shadow, prompt))
    assert steps
    assert not any(plan.fillers for plan in steps)


def test_plan_lane_that_a_background_rate_leaves_out_stays_a_gap() -> None:
    shadow = Shadow(make_settings(lanes=3))
    for qos in (AGENT, BACKGROUND, AGENT):
        shadow.submit(make_job(text(1 + qos, 20), max_tokens=50, qos=qos))
    shadow.scheduler.set_background_rate(2)
    shadow.run()
    assert not any(plan.fillers for plan in shadow.plans)


def test_cancel_prompt_that_was_filled_leaves_what_it_had_for_the_next() -> None:
    shadow = Shadow(make_settings())
    job_id = _beside_a_prompt(shadow)
    shadow.run_until(lambda: bool(shadow.plans[-1].fillers) and shadow.scheduler.lane_lengths()[1] > 100)
    held = shadow.scheduler.lane_lengths()[1]
    shadow.cancel(job_id)
    again = shadow.submit(make_job(text(9, 1000), max_tokens=1))
    shadow.step()
    assert shadow.warm[again] == held


def test_plan_followers_begin_where_their_leader_has_come_by_a_filler() -> None:
    shadow = Shadow(make_settings(lanes=5))
    _beside_a_prompt(shadow)
    follower = shadow.submit(make_job([*text(9, 300), *text(10, 40)], max_tokens=1))
    shadow.run_until(lambda: shadow.is_over(follower))
    assert shadow.warm[follower] == 300


def test_complete_fault_in_a_filled_step_ends_its_jobs_and_no_other() -> None:
    shadow = Shadow(make_settings())
    job_id = _beside_a_prompt(shadow)
    shadow.run_until(lambda: bool(shadow.plans[-1].fillers))
    shadow.faulty_jobs.add(job_id)
    shadow.run_until(lambda: shadow.is_over(job_id))
    assert shadow.scheduler.lane_lengths()[1] == 0
    shadow.run()
