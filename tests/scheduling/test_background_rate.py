"""The background rate: classes 2 and 3 decode in some turns only, and those left out take as long as the others."""

import pytest
from tests.fixtures.scheduling import Shadow, make_job, make_settings, text

from superfluid.domain.request import QosClass
from superfluid.scheduling.work import MIN_PAUSE_SECONDS

SLOWED = (QosClass.AGENT, QosClass.BACKGROUND)


def decoding(*classes: QosClass) -> tuple[Shadow, list[int]]:
    """A job of each class, all of which decode from the next tick on."""
    shadow = Shadow(make_settings())
    jobs = [
        shadow.submit(make_job(text(seed, 8), max_tokens=3000, qos=qos)) for seed, qos in enumerate(classes, start=1)
    ]
    while any(not shadow.reply(job_id) for job_id in jobs):
        shadow.step()
    return shadow, jobs


def decodes(shadow: Shadow, job_id: int, ticks: int) -> list[bool]:
    return [any(row.job_id == job_id for row in shadow.step().decodes) for _ in range(ticks)]


@pytest.mark.parametrize("qos", SLOWED)
def test_slowed_class_beside_a_chat_decodes_on_every_third_tick(qos: QosClass) -> None:
    shadow, (chat, slowed) = decoding(QosClass.INTERACTIVE, qos)
    shadow.scheduler.set_background_rate(3)
    assert sum(decodes(shadow, slowed, 30)) == 10
    assert all(decodes(shadow, chat, 30))


@pytest.mark.parametrize("qos", [QosClass.INTERACTIVE, QosClass.COMPLETION])
def test_other_classes_decode_on_every_tick(qos: QosClass) -> None:
    shadow, (job_id, _) = decoding(qos, QosClass.BACKGROUND)
    shadow.scheduler.set_background_rate(1000)
    assert all(decodes(shadow, job_id, 20))


def tokens_a_second(shadow: Shadow, job_id: int, seconds: float = 20.0) -> float:
    begun, tokens = shadow.seconds, len(shadow.reply(job_id))
    shadow.run_until(lambda: shadow.seconds >= begun + seconds)
    return (len(shadow.reply(job_id)) - tokens) / (shadow.seconds - begun)


@pytest.mark.parametrize("divisor", [2, 5, 20])
def test_slowed_classes_with_nobody_else_there_get_their_share_and_the_engine_rests(divisor: int) -> None:
    shadow, (agent, background) = decoding(*SLOWED)
    full = tokens_a_second(shadow, agent, 2.0)
    shadow.scheduler.set_background_rate(divisor)
    assert tokens_a_second(shadow, agent) == pytest.approx(full / divisor, rel=0.1)
    assert tokens_a_second(shadow, background) == pytest.approx(full / divisor, rel=0.1)


def test_pauses_are_not_so_short_that_planning_them_is_work() -> None:
    shadow, _ = decoding(*SLOWED)
    shadow.step()
    shadow.scheduler.set_background_rate(1000)
    assert min(pause for _ in range(30) if (pause := shadow.step().pause_seconds)) >= MIN_PAUSE_SECONDS


def test_new_prompt_ends_a_pause() -> None:
    shadow, _ = decoding(*SLOWED)
    shadow.scheduler.set_background_rate(1000)
    shadow.run_until(lambda: shadow.plans[-1].pause_seconds > 0)
    late = shadow.submit(make_job(text(5, 20)))
    chunk = shadow.step().chunk
    assert chunk is not None
    assert chunk.job_id == late


def test_slowed_class_beside_a_long_prompt_and_a_chat_is_not_starved() -> None:
    shadow, (_, agent) = decoding(QosClass.INTERACTIVE, QosClass.AGENT)
    shadow.scheduler.set_background_rate(2)
    shadow.submit(make_job(text(9, 3000), qos=QosClass.INTERACTIVE))
    assert sum(decodes(shadow, agent, 40)) >= 10


@pytest.mark.parametrize("divisor", [0, 1])
def test_rate_of_one_or_none_slows_nobody(divisor: int) -> None:
    shadow, (_, agent) = decoding(QosClass.INTERACTIVE, QosClass.AGENT)
    shadow.scheduler.set_background_rate(5)
    shadow.scheduler.set_background_rate(divisor)
    assert all(decodes(shadow, agent, 20))
