"""The background rate: classes 2 and 3 decode on some ticks only, as long as there is other work."""

import pytest
from tests.fixtures.scheduling import Shadow, make_job, make_settings, text

from superfluid.domain.request import QosClass

SLOWED = (QosClass.AGENT, QosClass.BACKGROUND)


def decoding(*classes: QosClass) -> tuple[Shadow, list[int]]:
    """A job of each class, all of which decode from the next tick on."""
    shadow = Shadow(make_settings())
    jobs = [
        shadow.submit(make_job(text(seed, 8), max_tokens=1000, qos=qos)) for seed, qos in enumerate(classes, start=1)
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


def test_slowed_classes_with_nobody_else_there_decode_on_every_tick() -> None:
    shadow, (agent, background) = decoding(*SLOWED)
    shadow.scheduler.set_background_rate(1000)
    assert all(decodes(shadow, agent, 10))
    assert all(decodes(shadow, background, 10))


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
