"""Pins: what they keep, for how long, and which of them give way."""

import msgspec
import pytest
from tests.fixtures.scheduling import BYTES_PER_TOKEN, Shadow, make_job, make_settings, text

from superfluid.domain.job import PrefixPin
from superfluid.domain.memory import MemoryRules
from superfluid.scheduling.pins import MAX_PREFIX_PINS

FOR_LONG = 10**9


def _shadow(*, lanes: int = 1, host_tokens: int = 10_000, pin_percent: int = 50, can_truncate: bool = True) -> Shadow:
    rules = MemoryRules(pressure_high_percent=100, pressure_low_percent=99, pin_budget_percent=pin_percent)
    return Shadow(
        make_settings(
            lanes=lanes,
            host_cache_bytes=host_tokens * BYTES_PER_TOKEN,
            memory=rules,
            can_truncate=can_truncate,
        )
    )


def _run(shadow: Shadow, tokens: list[int], *, session: int = 0, pin_unix: float = 0.0, prefix: int = 0) -> int:
    """The warm tokens of a job that begins with them."""
    job = msgspec.structs.replace(
        make_job(tokens, max_tokens=2),
        session=session,
        pin_deadline_unix_ms=int(pin_unix * 1000),
        prefix_pins=[PrefixPin(prefix, FOR_LONG)] if prefix else [],
    )
    shadow.submit(job)
    shadow.run()
    return shadow.warm[job.job_id]


def _crowd(shadow: Shadow, tokens: int, first_seed: int = 50) -> None:
    """Other requests, of 500 tokens each, that want that much of the cache."""
    for seed in range(first_seed, first_seed + tokens // 500):
        _run(shadow, text(seed, 500))


@pytest.mark.parametrize("is_pinned", [False, True])
def test_pinned_session_outlives_a_crowd(is_pinned: bool) -> None:
    shadow = _shadow()
    _run(shadow, text(1, 600), session=7, pin_unix=FOR_LONG if is_pinned else 0.0)
    _crowd(shadow, 15_000)
    warm = _run(shadow, [*text(1, 600), *text(2, 100)], session=7)
    assert warm == (600 if is_pinned else 0)


@pytest.mark.parametrize("can_truncate", [True, False])
def test_pinned_prefix_outlives_a_crowd_for_whoever_begins_with_it(can_truncate: bool) -> None:
    shadow = _shadow(can_truncate=can_truncate)
    _run(shadow, [*text(1, 400), *text(2, 100)], prefix=400)
    _crowd(shadow, 15_000)
    assert _run(shadow, [*text(1, 400), *text(3, 100)]) == 400


def test_pin_follows_its_session_as_it_grows() -> None:
    shadow = _shadow()
    _run(shadow, text(1, 300), session=7, pin_unix=FOR_LONG)
    _run(shadow, [*text(1, 300), *text(2, 300)], session=7, pin_unix=FOR_LONG)
    _crowd(shadow, 15_000)
    assert _run(shadow, [*text(1, 300), *text(2, 300), *text(3, 50)]) == 600


def test_pin_set_between_turns_holds_what_the_last_one_left() -> None:
    shadow = _shadow()
    _run(shadow, text(1, 600), session=7)
    shadow.scheduler.pins.set_session(7, FOR_LONG, shadow.now_unix)
    _crowd(shadow, 15_000)
    assert _run(shadow, [*text(1, 600), *text(2, 100)]) == 600


def test_pin_that_is_let_go_is_evicted_as_any() -> None:
    shadow = _shadow()
    _run(shadow, text(1, 600), session=7, pin_unix=FOR_LONG)
    shadow.scheduler.pins.set_session(7, 0, shadow.now_unix)
    _crowd(shadow, 15_000)
    assert _run(shadow, [*text(1, 600), *text(2, 100)]) == 0
    assert shadow.scheduler.statistics().counters.pins_yielded_total == 0


def test_expire_counts_pins_whose_time_has_come() -> None:
    shadow = _shadow()
    _run(shadow, text(1, 600), session=7, pin_unix=2000.0)
    pins = shadow.scheduler.pins
    assert pins.next_deadline_unix == 2000.0
    assert not pins.expire(1999.9)
    assert pins.expire(2000.0)
    assert len(pins) == 0
    assert shadow.scheduler.statistics().counters.pins_expired_total == 1


def test_prefix_pinned_again_keeps_the_later_deadline() -> None:
    shadow = _shadow()
    for ttl_ms in (60_000, 5_000):
        job = make_job([*text(1, 400), *text(ttl_ms, 50)], max_tokens=1)
        shadow.submit(msgspec.structs.replace(job, prefix_pins=[PrefixPin(400, ttl_ms)]))
        shadow.run()
    assert len(shadow.scheduler.pins) == 1
    assert shadow.scheduler.pins.next_deadline_unix == shadow.now_unix + 60


def test_pins_over_the_budget_give_way_the_one_used_longest_ago_first() -> None:
    shadow = _shadow(lanes=1, host_tokens=4000, pin_percent=25)
    for session in (1, 2, 3, 4):
        _run(shadow, text(session, 400), session=session, pin_unix=FOR_LONG)
    statistics = shadow.scheduler.statistics()
    assert statistics.counters.pins_yielded_total == 2
    assert statistics.pins_held == 2
    assert 0 < statistics.pinned_bytes <= 1000 * BYTES_PER_TOKEN
    _crowd(shadow, 10_000)
    assert [_run(shadow, [*text(session, 400), 5, 6, 7]) > 0 for session in (1, 2)] == [False, False]
    assert [_run(shadow, [*text(session, 400), 5, 6, 7]) for session in (3, 4)] == [400, 400]


def test_pins_of_alike_prefixes_count_their_bytes_once() -> None:
    shadow = _shadow(lanes=1)
    for seed in (2, 3, 4):
        _run(shadow, [*text(1, 400), *text(seed, 100)], prefix=400)
    _run(shadow, [*text(1, 400), *text(2, 100), 8, 9], prefix=300)
    statistics = shadow.scheduler.statistics()
    assert statistics.pins_held == 2
    assert statistics.pinned_bytes <= 510 * BYTES_PER_TOKEN


def test_budget_of_0_records_only() -> None:
    shadow = _shadow(pin_percent=0)
    _run(shadow, text(1, 600), session=7, pin_unix=FOR_LONG, prefix=300)
    assert len(shadow.scheduler.pins) == 0
    _crowd(shadow, 15_000)
    assert _run(shadow, [*text(1, 600), *text(2, 100)]) == 0


def test_prefix_pins_are_bounded_in_number() -> None:
    shadow = _shadow(host_tokens=1_000_000)
    for seed in range(MAX_PREFIX_PINS + 3):
        _run(shadow, text(seed + 1, 20), prefix=18)
    assert len(shadow.scheduler.pins) == MAX_PREFIX_PINS
    assert shadow.scheduler.statistics().counters.pins_yielded_total == 3


@pytest.mark.parametrize("length", [0, 601, -3])
def test_prefix_pin_outside_the_prompt_is_ignored(length: int) -> None:
    shadow = _shadow()
    job = make_job(text(1, 600), max_tokens=1)
    shadow.submit(msgspec.structs.replace(job, prefix_pins=[PrefixPin(length, FOR_LONG)]))
    shadow.run()
    assert len(shadow.scheduler.pins) == 0


def test_forget_drops_what_is_pinned_for_erased_sessions() -> None:
    shadow = _shadow()
    _run(shadow, text(1, 600), session=7, pin_unix=FOR_LONG, prefix=300)
    _run(shadow, text(2, 600), session=8, pin_unix=FOR_LONG)
    shadow.scheduler.pins.forget([7])
    assert len(shadow.scheduler.pins) == 1
