"""Models whose state cannot be cut: what is saved on the way through a prompt, and who begins there."""

import msgspec
import pytest
from tests.fixtures.scheduling import END_TOKEN, Shadow, make_job, make_settings, text

from superfluid.domain.job import Job, PrefixPin
from superfluid.domain.request import QosClass
from superfluid.scheduling.checkpoints import MAX_CHECKPOINTS

HEADER = [901, 902, 903]


def _shadow(**options: int) -> Shadow:
    return Shadow(make_settings(can_truncate=False, **options))  # type: ignore[arg-type]


def _chat(conversation: list[int], **options: object) -> Job:
    """A job that knows where its conversation ends."""
    job = make_job([*conversation, *HEADER], **options)  # type: ignore[arg-type]
    return msgspec.structs.replace(job, input_tokens=len(conversation))


def test_plan_next_turn_with_another_reply_begins_where_the_input_ended() -> None:
    shadow = _shadow()
    first = text(1, 300)
    shadow.submit(_chat(first))
    shadow.run()
    turn = shadow.submit(_chat([*first, *text(2, 50)]))
    shadow.run()
    assert shadow.warm[turn] == 300


def test_plan_next_turn_with_the_same_reply_begins_behind_it() -> None:
    shadow = _shadow()
    first = shadow.submit(_chat(text(1, 300), max_tokens=20))
    shadow.run()
    turn = shadow.submit(_chat([*shadow.streams[first], *text(2, 50)]))
    shadow.run()
    assert shadow.warm[turn] == 300 + len(HEADER) + 19


def test_plan_fork_at_the_input_begins_there_in_another_lane() -> None:
    shadow = _shadow()
    first = text(1, 300)
    shadow.submit(_chat(first, max_tokens=50))
    shadow.run_until(lambda: bool(shadow.host))
    retry = shadow.submit(_chat(first))
    shadow.run()
    assert shadow.warm[retry] == 300


@pytest.mark.parametrize(("length", "saves"), [(127, 0), (128, 1)])
def test_plan_short_conversations_are_not_saved(length: int, saves: int) -> None:
    shadow = _shadow()
    shadow.submit(_chat(text(1, length)))
    shadow.run()
    assert sum(len(plan.saves) for plan in shadow.plans) == saves


def test_plan_later_turn_supersedes_the_checkpoint_of_the_earlier() -> None:
    shadow = _shadow()
    conversation = text(1, 200)
    for turn in range(5):
        shadow.submit(_chat(conversation))
        shadow.run()
        assert [len(held) for held in shadow.host.values()] == [len(conversation)]
        conversation = [*conversation, *text(10 + turn, 60)]


def test_plan_checkpoints_are_bounded_in_number_the_oldest_go() -> None:
    shadow = _shadow(host_cache_bytes=1_000_000_000)
    for seed in range(MAX_CHECKPOINTS + 6):
        shadow.submit(_chat(text(seed + 1, 150), max_tokens=1))
        shadow.run()
    kept = [entry for entry in shadow.scheduler._index if entry.checkpoint is not None]
    assert len(kept) == MAX_CHECKPOINTS
    assert {entry.tokens[0] for entry in kept} == set(range(7, MAX_CHECKPOINTS + 7))


@pytest.mark.parametrize("count", [2, 8, 20])
def test_plan_jobs_sent_together_prefill_their_common_prefix_once(count: int) -> None:
    shadow = _shadow(lanes=4)
    prefix = text(1, 1100)
    jobs = [shadow.submit(make_job([*prefix, *text(100 + index, 20)])) for index in range(count)]
    shadow.run()
    assert shadow.prefilled == 1100 + count * 20
    assert [shadow.warm[job] for job in jobs] == [0] + [1100] * (count - 1)


def test_plan_identical_prompts_evaluate_two_tokens_each() -> None:
    shadow = _shadow(lanes=4)
    for _ in range(4):
        shadow.submit(make_job(text(1, 1200)))
    shadow.run()
    assert shadow.prefilled == 1200 + 3 * 2


def test_plan_shorter_common_prefix_is_not_waited_for() -> None:
    shadow = _shadow(lanes=4)
    prefix = text(1, 1000)
    for index in range(4):
        shadow.submit(make_job([*prefix, *text(100 + index, 20)]))
    assert len(shadow.step().placements) == 4


def test_plan_shared_checkpoint_outlives_the_conversations_behind_it() -> None:
    shadow = _shadow(lanes=2)
    prefix = text(1, 1100)
    for index in range(2):
        shadow.submit(_chat([*prefix, *text(100 + index, 200)]))
    shadow.run()
    late = shadow.submit(_chat([*prefix, *text(200, 200)]))
    shadow.run()
    assert shadow.warm[late] == 1100


def test_plan_without_a_host_cache_saves_nothing_and_waits_for_nobody() -> None:
    shadow = _shadow(lanes=4, host_cache_bytes=0)
    prefix = text(1, 1100)
    for index in range(3):
        shadow.submit(_chat([*prefix, *text(100 + index, 20)]))
    assert len(shadow.step().placements) == 3
    shadow.run()
    assert not any(plan.saves for plan in shadow.plans)


def test_plan_pinned_lengths_are_saved() -> None:
    shadow = _shadow()
    prefix = text(1, 500)
    job = make_job([*prefix, *text(2, 100)])
    shadow.submit(msgspec.structs.replace(job, prefix_pins=[PrefixPin(500, 60_000)]))
    shadow.run()
    late = shadow.submit(make_job([*prefix, *text(3, 100)]))
    shadow.run()
    assert shadow.warm[late] == 500


def test_plan_preempted_job_goes_on_from_its_own_state() -> None:
    shadow = _shadow(lanes=1)
    agent = shadow.submit(make_job(text(1, 300), max_tokens=40))
    shadow.run_until(lambda: len(shadow.reply(agent)) == 7)
    shadow.submit(make_job(text(2, 40), qos=QosClass.INTERACTIVE))
    shadow.run()
    assert shadow.preempted() == [agent]
    assert shadow.warm[agent] == 306
    assert shadow.prefilled == 340


def test_plan_models_that_can_be_cut_save_nothing_on_the_way() -> None:
    shadow = Shadow(make_settings())
    shadow.submit(_chat(text(1, 300)))
    shadow.run()
    assert not any(plan.saves for plan in shadow.plans)
    assert END_TOKEN not in shadow.streams
