"""Requests to erase, and who waits for their answers."""

from superfluid.worker.erasures import Erasures


async def test_answer_reaches_the_one_who_asked() -> None:
    erasures = Erasures()
    first, first_done = erasures.ask([1, 2])
    second, second_done = erasures.ask([3])
    assert (first.sessions, second.sessions) == ([1, 2], [3])
    erasures.answered(second.request_id)
    assert second_done.done()
    assert not first_done.done()


async def test_lost_worker_answers_everybody() -> None:
    erasures = Erasures()
    _, done = erasures.ask([1])
    erasures.worker_lost()
    assert done.done()
    assert done.exception() is None


async def test_answer_that_nobody_waits_for_is_ignored() -> None:
    erasures = Erasures()
    request, done = erasures.ask([1])
    done.cancel()
    erasures.answered(request.request_id)
    erasures.answered(request.request_id + 1)
