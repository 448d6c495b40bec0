"""What is told of free lanes and host memory: once, when it is there, and when it is gone."""

import msgspec
from tests.fixtures.scheduling import BYTES_PER_TOKEN, Shadow, make_job, make_settings, text

from superfluid.scheduling.holdings import Holding

NOTHING: tuple[list[Holding], list[int]] = ([], [])


def shadow_with(*, lanes: int = 1, host_tokens: int = 10_000) -> Shadow:
    return Shadow(make_settings(lanes=lanes, host_cache_bytes=host_tokens * BYTES_PER_TOKEN))


def finish(shadow: Shadow, seed: int, *, session: int, length: int = 300, adapter: int = 0) -> None:
    """Runs a job of one token, which leaves ``length`` tokens in its lane."""
    job = msgspec.structs.replace(make_job(text(seed, length), max_tokens=1, adapter=adapter), session=session)
    shadow.submit(job)
    shadow.run()


def places(holdings: list[Holding]) -> list[tuple[int | None, int | None, int]]:
    """Lane, owner and length of each."""
    return [(holding.lane, holding.owner, len(holding.tokens)) for holding in holdings]


def test_lane_is_told_when_its_job_has_left_and_only_once() -> None:
    shadow = shadow_with(lanes=2)
    shadow.submit(msgspec.structs.replace(make_job(text(1, 300), max_tokens=4), session=7))
    shadow.run_until(lambda: shadow.scheduler.is_running)
    assert shadow.scheduler.holdings.changes() == NOTHING
    shadow.run()
    added, removed = shadow.scheduler.holdings.changes()
    assert (places(added), removed) == ([(0, 7, 303)], [])
    assert list(added[0].tokens[:300]) == text(1, 300)
    assert shadow.scheduler.holdings.changes() == NOTHING


def test_lane_that_goes_to_another_is_taken_back_and_its_copy_in_memory_is_told() -> None:
    shadow = shadow_with()
    finish(shadow, 1, session=7)
    (first,), _ = shadow.scheduler.holdings.changes()
    finish(shadow, 2, session=8)
    added, removed = shadow.scheduler.holdings.changes()
    assert places(added) == [(0, 8, 300), (None, 7, 300)]
    assert removed == [first.number]


def test_lane_whose_next_job_leaves_as_much_is_told_anew() -> None:
    shadow = shadow_with(host_tokens=0)
    finish(shadow, 1, session=7)
    (first,), _ = shadow.scheduler.holdings.changes()
    finish(shadow, 2, session=8)
    (second,), removed = shadow.scheduler.holdings.changes()
    assert (second.owner, removed) == (8, [first.number])
    assert second.number != first.number


def test_entry_that_has_to_go_is_taken_back() -> None:
    shadow = shadow_with(host_tokens=400)
    finish(shadow, 1, session=7)
    finish(shadow, 2, session=8)
    in_memory = next(holding for holding in shadow.scheduler.holdings.changes()[0] if holding.lane is None)
    assert in_memory.owner == 7
    finish(shadow, 3, session=9)
    added, removed = shadow.scheduler.holdings.changes()
    assert places(added) == [(0, 9, 300), (None, 8, 300)]
    assert in_memory.number in removed


def test_job_without_a_session_leaves_what_is_nobodys() -> None:
    shadow = shadow_with()
    finish(shadow, 1, session=0)
    assert places(shadow.scheduler.holdings.changes()[0]) == [(0, None, 300)]


def test_emptied_lane_holds_nothing() -> None:
    shadow = shadow_with()
    finish(shadow, 1, session=7, adapter=3)
    (held,), _ = shadow.scheduler.holdings.changes()
    assert held.adapter == 3
    shadow.scheduler.forget_adapter(3)
    assert shadow.scheduler.holdings.changes() == ([], [held.number])
