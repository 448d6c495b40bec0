"""When another worker is tried: the policy by itself, on a clock that a test turns."""

import asyncio

import pytest

from superfluid.worker import restarts
from superfluid.worker.restarts import MAX_FAILURES, RETRY_SECONDS, RestartPolicy


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def unix(self) -> float:
        return self.now


def test_failure_is_tried_again_at_once_until_the_last_of_three() -> None:
    policy = RestartPolicy(FakeClock())
    assert [policy.failed() for _ in range(MAX_FAILURES)] == [True, True, False]


def test_progress_between_failures_begins_the_count_anew() -> None:
    policy = RestartPolicy(FakeClock())
    policy.failed()
    policy.failed()
    policy.progressed()
    assert policy.failed()
    assert policy.failures == 1


async def test_job_right_after_giving_up_is_no_reason_and_a_later_one_is() -> None:
    clock = FakeClock()
    policy = RestartPolicy(clock)
    policy.give_up()
    waiting = asyncio.ensure_future(policy.wait_for_reason())
    await asyncio.sleep(0)
    policy.job_refused()
    await asyncio.sleep(0)
    assert not waiting.done()
    clock.now += RETRY_SECONDS
    policy.job_refused()
    assert await waiting


async def test_nobody_asks_and_it_is_tried_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "UNASKED_RETRY_SECONDS", 0.0)
    policy = RestartPolicy(FakeClock())
    policy.give_up()
    assert not await policy.wait_for_reason()


async def test_stop_ends_a_wait_and_every_later_one() -> None:
    policy = RestartPolicy(FakeClock())
    waiting = asyncio.ensure_future(policy.wait_for_reason())
    await asyncio.sleep(0)
    policy.stop()
    assert await waiting
    assert await policy.wait_for_reason()


def test_worker_that_loads_ends_the_giving_up() -> None:
    policy = RestartPolicy(FakeClock())
    policy.give_up()
    assert policy.is_given_up
    policy.loaded()
    assert not policy.is_given_up
