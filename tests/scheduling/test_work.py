"""Decode step or chunk, whose prompt, how much of it: situations and the work that follows."""

from dataclasses import dataclass

import numpy as np
import pytest
from tests.fixtures.scheduling import Shadow, make_job, make_settings, text

from superfluid.domain.request import QosClass
from superfluid.domain.scheduling import SchedulingRules
from superfluid.scheduling.plan import StepPlan
from superfluid.scheduling.rates import FIRST_CHUNK_TOKENS, MIN_CHUNK_TOKENS, Rates
from superfluid.scheduling.sequence import Lane, Sequence
from superfluid.scheduling.statistics import SchedulerCounters
from superfluid.scheduling.work import WorkChooser, part_of

INTERACTIVE, COMPLETION, AGENT, BACKGROUND = QosClass
PREFILL_SECONDS = 0.004
STEP_SECONDS = 0.04


@dataclass(frozen=True)
class Prompt:
    """A prompt on a lane, ``rest`` tokens of which are to be read; older ones come first in a list."""

    qos: QosClass = AGENT
    rest: int = 1000
    passed_ticks: float = 0.0


@dataclass(frozen=True)
class Reply:
    """A reply on a lane that wants its next token."""

    qos: QosClass = AGENT


def _chooser(
    lanes: list[Prompt | Reply], rules: SchedulingRules | None = None, *, can_cut_chunks: bool = True
) -> WorkChooser:
    rates = Rates()
    rates.observe_prefill(100, 100 * PREFILL_SECONDS)
    for count in range(1, len(lanes) + 1):
        rates.observe_decode(count, STEP_SECONDS)
    return WorkChooser(
        [_lane(index, state) for index, state in enumerate(lanes)],
        rates,
        rules or SchedulingRules(),
        SchedulerCounters(),
        can_cut_chunks=can_cut_chunks,
    )


def _lane(index: int, state: Prompt | Reply) -> Lane:
    length = state.rest if isinstance(state, Prompt) else 10
    tokens = np.array(text(index + 1, length), np.int32)
    job = make_job(tokens.tolist(), max_tokens=10, qos=state.qos)
    sequence = Sequence(job, tokens, order=index, window_tokens=10_000, is_replayed=False)
    lane = Lane(index)
    lane.place(sequence, 0, tick=0)
    if isinstance(state, Prompt):
        sequence.passed_ticks = state.passed_ticks
    else:
        lane.length = length
    return lane


@pytest.mark.parametrize(
    ("prompts", "chosen"),
    [
        # the better class, whatever its length and age
        ([Prompt(AGENT, 50), Prompt(INTERACTIVE, 2000)], 1),
        ([Prompt(BACKGROUND, 50), Prompt(AGENT, 50), Prompt(COMPLETION, 90)], 2),
        # within a class the shortest rest
        ([Prompt(rest=800), Prompt(rest=500), Prompt(rest=700)], 1),
        # of equals the oldest
        ([Prompt(rest=500), Prompt(rest=500)], 0),
        # one that has been passed over for eight ticks before all others
        ([Prompt(BACKGROUND, 900, passed_ticks=7.9), Prompt(INTERACTIVE, 20)], 1),
        ([Prompt(BACKGROUND, 900, passed_ticks=8.0), Prompt(INTERACTIVE, 20)], 0),
        ([Prompt(AGENT, 900, passed_ticks=9.0), Prompt(INTERACTIVE, 900, passed_ticks=8.0)], 1),
    ],
)
def test_prompt_that_is_read_next(prompts: list[Prompt | Reply], chosen: int) -> None:
    chunk = _chooser(prompts).choose(0.0).chunk
    assert chunk is not None
    assert chunk.lane == chosen


def test_prompt_passed_by_younger_ones_only_is_starved_in_the_end() -> None:
    """A long prompt beside a stream of short ones: it gets a chunk now and then, and the grants are counted."""
    shadow = Shadow(make_settings(lanes=2, window_tokens=8000))
    long = shadow.submit(make_job(text(1, 4000), max_tokens=1))
    shadow.step()
    seed = 10
    while not shadow.is_over(long):
        if sum(shadow.scheduler.statistics().queue_depth) == 0:
            shadow.submit(make_job(text(seed, 300), max_tokens=1))
            seed += 1
        shadow.step()
    served = [plan.chunk.job_id == long for plan in shadow.plans if plan.chunk is not None]
    assert served.count(True) < served.count(False)
    assert shadow.scheduler.statistics().counters.starvation_grants_total > 3


def test_prompt_behind_an_older_one_has_no_claim() -> None:
    chooser = _chooser([Prompt(rest=500), Prompt(rest=900, passed_ticks=5.0)])
    chunk = chooser.choose(0.0).chunk
    assert chunk is not None
    assert chunk.lane == 0
    chooser.completed_chunk(chunk, 1.2, is_cut=False)
    sequence = chooser.lanes[1].sequence
    assert sequence is not None
    assert sequence.passed_ticks == 0.0


@pytest.mark.parametrize(
    ("decoding", "rules", "can_cut", "tokens"),
    [
        # 0.4 s less a step of the others
        ([Reply()], SchedulingRules(), True, int((0.4 - STEP_SECONDS) / PREFILL_SECONDS)),
        ([Reply(BACKGROUND)], SchedulingRules(), True, int((0.4 - STEP_SECONDS) / PREFILL_SECONDS)),
        # a quarter of it while somebody reads along
        ([Reply(), Reply(INTERACTIVE)], SchedulingRules(), True, MIN_CHUNK_TOKENS),
        ([Reply(COMPLETION)], SchedulingRules(tick_target_seconds=0.8), True, 40),
        # a second while nobody does, if it can be cut short
        ([], SchedulingRules(), True, 250),
        ([], SchedulingRules(), False, 100),
        ([], SchedulingRules(tick_target_seconds=2.0), True, 500),
        # what the operator says
        ([Reply()], SchedulingRules(tick_target_seconds=0.1), True, 16),
        ([Reply()], SchedulingRules(prefill_budget_tokens=64), True, 64),
        ([], SchedulingRules(prefill_budget_tokens=64), True, 64),
        ([Reply()], SchedulingRules(prefill_budget_tokens=4096), True, 90),
    ],
)
def test_length_of_a_chunk(decoding: list[Reply], rules: SchedulingRules, can_cut: bool, tokens: int) -> None:
    chooser = _chooser([Prompt(rest=3000), *decoding], rules, can_cut_chunks=can_cut)
    work = chooser.choose(0.0)
    assert work.chunk is not None
    assert abs(work.chunk_budget_tokens - tokens) <= 1
    # Of 3000 tokens: chunks of one size.
    assert tokens - 3 <= work.chunk.length <= tokens + 3
    limit = rules.prefill_budget_tokens
    assert not limit or work.chunk.length <= limit


@pytest.mark.parametrize(
    ("rest", "budget", "chunks"),
    [
        (100, 150, [100]),
        # of one size, and as few as the budget allows
        (388, 150, [130, 129, 129]),
        (300, 150, [150, 150]),
        (250, 150, [125, 125]),
        (1000, 450, [334, 333, 333]),
        # a little more at once at the end, rather than a short rest
        (160, 150, [160]),
        (165, 150, [165]),
        # but only a little, and nowhere else
        (166, 150, [83, 83]),
        (310, 150, [104, 103, 103]),
        (1063, 1000, [1063]),
        (1064, 1000, [532, 532]),
        (350, 150, [117, 117, 116]),
        # equal ones would all be short: one of them is enough
        (120, 90, [90, 30]),
        (200, 90, [67, 67, 66]),
        (128, 90, [64, 64]),
        # short budgets
        (100, 40, [40, 40, 20]),
        (42, 40, [42]),
        (81, 40, [40, 41]),
        # one token is never left over
        (45, 40, [40, 5]),
        (41, 40, [41]),
        (17, 16, [17]),
        (2, 16, [2]),
    ],
)
def test_rest_of_a_prompt_is_divided_evenly_without_short_pieces(rest: int, budget: int, chunks: list[int]) -> None:
    divided: list[int] = []
    while rest:
        divided.append(part_of(rest, budget, budget * 11 // 10))
        rest -= divided[-1]
    assert divided == chunks


@pytest.mark.parametrize(
    ("rest", "budget", "chunks"),
    [
        # whole micro-batches, and with the last of them what is left
        (1030, 430, [256, 256, 256, 131, 131]),
        (1100, 430, [256, 256, 256, 332]),
        (1100, 600, [512, 588]),
        (600, 600, [600]),
        # where that would be a short micro-batch: two of one size
        (300, 430, [150, 150]),
        (257, 430, [129, 128]),
        (560, 600, [256, 152, 152]),
        (560, 430, [256, 152, 152]),
        # no room for one, or no need of one
        (512, 240, [171, 171, 170]),
        (388, 150, [130, 129, 129]),
        (256, 430, [256]),
        (100, 430, [100]),
    ],
)
def test_long_chunks_consist_of_whole_micro_batches(rest: int, budget: int, chunks: list[int]) -> None:
    divided: list[int] = []
    while rest:
        divided.append(part_of(rest, budget, budget * 11 // 10, micro_batch=256))
        rest -= divided[-1]
    assert divided == chunks


def test_scheduler_divides_by_the_micro_batches_that_the_engine_tells_of() -> None:
    shadow = Shadow(make_settings(lanes=1, micro_batch_tokens=100))
    shadow.submit(make_job(text(1, 412)))
    lengths = [plan.chunk.length for plan in iter(shadow.step, StepPlan()) if plan.chunk is not None]
    # The first one finds out what a token takes: 8 ms, so that a second is enough for 125 of them.
    assert lengths == [FIRST_CHUNK_TOKENS, 100, 100, 100, 80]


@pytest.mark.parametrize(("rest", "chunks"), [(100, [100]), (101, [99, 2]), (150, [75, 75]), (130, [65, 65])])
def test_chunk_has_no_more_tokens_than_the_operator_allows(rest: int, chunks: list[int]) -> None:
    chooser = _chooser([Prompt(rest=rest)], SchedulingRules(prefill_budget_tokens=100))
    lane, divided = chooser.lanes[0], list[int]()
    while lane.is_prefilling:
        chunk = chooser.choose(0.0).chunk
        assert chunk is not None
        divided.append(chunk.length)
        lane.length += chunk.length
    assert divided == chunks


def test_length_of_a_first_chunk_is_small() -> None:
    chooser = _chooser([Prompt(rest=3000)])
    chooser.rates = Rates()
    chunk = chooser.choose(0.0).chunk
    assert chunk is not None
    assert chunk.length == FIRST_CHUNK_TOKENS


# ---- decode steps


def test_decode_budget_serves_the_better_class_then_the_older_and_then_the_starved() -> None:
    chooser = _chooser(
        [Reply(BACKGROUND), Reply(), Reply(), Reply(INTERACTIVE)],
        SchedulingRules(decode_budget_tokens=2, starvation_ticks=3),
    )
    turns = [[row.lane for row in chooser.choose(0.0).decodes] for _ in range(9)]
    assert turns == [[1, 3], [1, 3], [1, 3], [0, 2], [1, 3], [1, 3], [1, 3], [0, 2], [1, 3]]
    assert chooser.counters.starvation_grants_total == 4


@pytest.mark.parametrize("budget", [0, 4, 100])
def test_decode_budget_that_suffices_leaves_nobody_out(budget: int) -> None:
    chooser = _chooser([Reply()] * 4, SchedulingRules(decode_budget_tokens=budget))
    assert [row.lane for row in chooser.choose(0.0).decodes] == [0, 1, 2, 3]


def test_steps_and_chunks_take_turns_until_the_background_rate_leaves_a_turn_to_the_prompt() -> None:
    chooser = _chooser([Prompt(rest=9000), Reply()])
    assert [bool(chooser.choose(0.0).decodes) for _ in range(6)] == [False, True] * 3
    chooser.background_divisor = 3
    assert [bool(chooser.choose(0.0).decodes) for _ in range(12)].count(True) == 3


@pytest.mark.parametrize("qos", [AGENT, BACKGROUND])
def test_job_that_runs_alone_is_not_slowed_and_the_chat_behind_it_has_its_turn(qos: QosClass) -> None:
    shadow = Shadow(make_settings(lanes=2))
    shadow.scheduler.set_background_rate(4_000_000_000)
    alone = shadow.submit(make_job(text(1, 20), max_tokens=5, qos=qos, is_batch_invariant=True))
    shadow.step()
    chat = shadow.submit(make_job(text(2, 20), max_tokens=5, qos=INTERACTIVE))
    for _ in range(20):
        shadow.step()
    assert set(shadow.finishes) == {alone, chat}


def test_reply_that_a_job_waits_for_which_is_to_run_alone_is_not_slowed() -> None:
    shadow = Shadow(make_settings(lanes=2))
    agent = shadow.submit(make_job(text(1, 20), max_tokens=5, qos=AGENT))
    shadow.step()
    shadow.scheduler.set_background_rate(4_000_000_000)
    alone = shadow.submit(make_job(text(2, 20), max_tokens=5, qos=AGENT, is_batch_invariant=True))
    chat = shadow.submit(make_job(text(3, 20), max_tokens=5, qos=INTERACTIVE))
    for _ in range(40):
        shadow.step()
    assert set(shadow.finishes) == {agent, alone, chat}


# ---- what a chunk is cut short for


@pytest.mark.parametrize(
    ("lanes", "running", "yields_to"),
    [
        (2, [AGENT], (INTERACTIVE, COMPLETION)),  # a free lane
        (1, [AGENT], (INTERACTIVE, COMPLETION)),  # its own lane is taken from it
        (1, [COMPLETION], (INTERACTIVE,)),
        (2, [COMPLETION], (INTERACTIVE,)),  # not for its equals
        (1, [INTERACTIVE], ()),
        (2, [INTERACTIVE], ()),
    ],
)
def test_chunk_yields_to_better_classes_that_would_get_a_lane(
    lanes: int, running: list[QosClass], yields_to: tuple[QosClass, ...]
) -> None:
    shadow = Shadow(make_settings(lanes=lanes))
    for seed, qos in enumerate(running, start=1):
        shadow.submit(make_job(text(seed, 3000), qos=qos))
    chunk = shadow.step().chunk
    assert chunk is not None
    assert chunk.yields_to == yields_to


def test_chunk_does_not_yield_to_a_class_at_its_bound() -> None:
    shadow = Shadow(make_settings(lanes=3, rules=SchedulingRules(class_lanes=(1, None, None, None))))
    shadow.submit(make_job(text(1, 20), max_tokens=900, qos=INTERACTIVE))
    shadow.step()
    shadow.submit(make_job(text(2, 3000)))
    shadow.run_until(lambda: shadow.prefilled > 20)
    chunk = shadow.plans[-1].chunk
    assert chunk is not None
    assert chunk.yields_to == (COMPLETION,)


def test_chunk_that_had_to_wait_for_its_turn_yields_to_nobody() -> None:
    shadow = Shadow(make_settings(lanes=2, window_tokens=8000))
    long = shadow.submit(make_job(text(1, 4000), max_tokens=1))
    shadow.step()
    seed = 10
    while (chunk := shadow.step().chunk) is None or shadow.scheduler.statistics().counters.starvation_grants_total == 0:
        if sum(shadow.scheduler.statistics().queue_depth) == 0:
            shadow.submit(make_job(text(seed, 300), max_tokens=1))
            seed += 1
    assert (chunk.job_id, chunk.yields_to) == (long, ())


def test_chunk_of_a_lane_had_by_waiting_yields_to_nobody_while_that_is_granted() -> None:
    shadow = Shadow(make_settings(lanes=1, window_tokens=100_000))
    chat = shadow.submit(make_job(text(1, 20), max_tokens=90_000, qos=INTERACTIVE))
    agent = shadow.submit(make_job(text(2, 3000), max_tokens=1))
    shadow.run_until(lambda: shadow.seconds > 25 * 0.4)
    shadow.submit(make_job(text(3, 20), qos=INTERACTIVE))
    shadow.cancel(chat)
    chunk = shadow.step().chunk
    assert chunk is not None
    assert (chunk.job_id, chunk.yields_to) == (agent, ())


def test_chunk_of_a_state_that_cannot_be_cut_yields_to_nobody() -> None:
    shadow = Shadow(make_settings(can_truncate=False))
    shadow.submit(make_job(text(1, 3000)))
    chunk = shadow.step().chunk
    assert chunk is not None
    assert chunk.yields_to == ()


def test_chunk_of_a_job_that_runs_alone_yields_to_nobody() -> None:
    shadow = Shadow(make_settings())
    shadow.submit(make_job(text(1, 3000), is_batch_invariant=True))
    chunk = shadow.step().chunk
    assert chunk is not None
    assert chunk.yields_to == ()


def test_chunk_that_was_cut_leaves_its_turn_to_whom_it_was_cut_for() -> None:
    shadow = Shadow(make_settings(window_tokens=8000))
    shadow.submit(make_job(text(1, 40), max_tokens=5000))
    agent = shadow.submit(make_job(text(2, 3000)))
    shadow.run_until(lambda: shadow.prefilled > 200 and shadow.plans[-1].chunk is None)
    shadow.cuts[agent] = 8
    assert shadow.step().chunk is not None
    chat = shadow.submit(make_job(text(3, 30), qos=INTERACTIVE))
    chunk = shadow.step().chunk
    assert chunk is not None
    assert (chunk.job_id, chunk.length) == (chat, 30)


@pytest.mark.parametrize("kept", [0, 64])
def test_chunk_that_was_cut_goes_on_where_it_ended_and_is_then_carried_through(kept: int) -> None:
    shadow = Shadow(make_settings())
    agent = shadow.submit(make_job(text(1, 1000)))
    shadow.step()
    shadow.cuts[agent] = kept
    before = shadow.prefilled
    shadow.step()
    assert shadow.prefilled == before + kept
    chunk = shadow.step().chunk
    assert chunk is not None
    assert (chunk.start, chunk.yields_to) == (before + kept, ())
    chunk = shadow.step().chunk
    assert chunk is not None
    assert chunk.yields_to != ()
    shadow.run()
    assert shadow.prefilled == 1000


def test_chunk_that_was_cut_teaches_nothing_about_rates() -> None:
    shadow = Shadow(make_settings())
    agent = shadow.submit(make_job(text(1, 3000)))
    shadow.step()
    shadow.step()
    expected = shadow.step().chunk
    shadow.cuts[agent] = 2
    shadow.step()
    after = shadow.step().chunk
    assert expected is not None
    assert after is not None
    assert (after.length, after.expected_seconds) == (expected.length, expected.expected_seconds)
