"""Copies of free lanes in host memory: when one is made, what it is good for, and what goes first."""

import msgspec
import pytest
from tests.fixtures.scheduling import BYTES_PER_TOKEN, Shadow, make_job, make_settings, text

from superfluid.domain.memory import MemoryRules
from superfluid.scheduling.losses import WORTH_KEEPING_TOKENS
from superfluid.scheduling.plan import SaveLane
from superfluid.scheduling.pressure import PressureLevel

FIRST = text(1, 300)


def finish(shadow: Shadow, tokens: list[int], *, session: int = 0, adapter: int = 0) -> list[int]:
    """Runs a job of one token to its end; the tokens that it leaves in its lane."""
    job = msgspec.structs.replace(make_job(tokens, max_tokens=1, adapter=adapter), session=session)
    shadow.submit(job)
    shadow.run()
    return shadow.streams[job.job_id][:-1]


def warm_tokens(shadow: Shadow, tokens: list[int], adapter: int = 0) -> tuple[int, str]:
    """What a job would begin with, and where that would come from."""
    job = shadow.submit(make_job(tokens, max_tokens=4, adapter=adapter))
    shadow.run_until(lambda: job in shadow.warm)
    source = next(view.warm_from for view in shadow.scheduler.lane_views() if view.job_id == job)
    shadow.run()
    return shadow.warm[job], source


# ---- when one is made


@pytest.mark.parametrize(
    ("length", "host_tokens", "lows", "is_copied"),
    [
        (300, 10_000, 70, True),
        (WORTH_KEEPING_TOKENS, 10_000, 70, True),
        (WORTH_KEEPING_TOKENS - 1, 10_000, 70, False),
        (300, 0, 70, False),
        (300, 299, 70, False),
        (300, 599, 70, False),
        (300, 600, 70, True),
        (300, 10_000, 4, False),
    ],
)
def test_lane_is_copied_if_that_is_worth_it_and_there_is_room(
    length: int, host_tokens: int, lows: int, is_copied: bool
) -> None:
    """Beside it there is an entry of 300 tokens, where there is room for one."""
    memory = MemoryRules(pressure_low_percent=lows, pressure_high_percent=90)
    host_bytes = host_tokens * BYTES_PER_TOKEN
    shadow = Shadow(make_settings(lanes=1, window_tokens=1000, host_cache_bytes=host_bytes, memory=memory))
    finish(shadow, text(9, 300))
    finish(shadow, text(2, length))
    assert (shadow.copy(0) is not None) is is_copied
    assert shadow.copy(0) is None, "never twice"


def test_copy_of_a_grown_conversation_needs_room_for_what_is_new_only() -> None:
    shadow = Shadow(make_settings(lanes=1, window_tokens=1000, host_cache_bytes=400 * BYTES_PER_TOKEN))
    finish(shadow, FIRST)
    assert shadow.copy(0) is not None
    finish(shadow, [*FIRST, *text(2, 60)])
    assert shadow.copy(0) is not None
    shadow.step()
    assert [len(tokens) for tokens in shadow.host.values()] == [360]


# ---- what it is good for


def test_lane_that_has_a_copy_is_given_away_without_a_save() -> None:
    shadow = Shadow(make_settings(lanes=1))
    held = finish(shadow, FIRST)
    shadow.copy(0)
    shadow.submit(make_job(text(2, 300), max_tokens=1))
    assert shadow.step().saves == ()
    shadow.run()
    assert warm_tokens(shadow, [*held, *text(3, 20)]) == (300, "memory")
    assert shadow.scheduler.statistics().counters.host_saves_total == 2, "the copy, and the lane without one"


def test_lane_that_has_gone_on_behind_its_copy_is_saved_if_that_is_worth_it() -> None:
    for more, saves in [(WORTH_KEEPING_TOKENS - 1, ()), (60, (SaveLane(0, 1, 360),))]:
        shadow = Shadow(make_settings(lanes=1))
        finish(shadow, FIRST)
        shadow.copy(0)
        finish(shadow, [*FIRST, *text(2, more)])
        shadow.submit(make_job(text(3, 300), max_tokens=1))
        assert shadow.step().saves == saves


def test_lane_wins_over_its_copy() -> None:
    shadow = Shadow(make_settings(lanes=2))
    held = finish(shadow, FIRST)
    shadow.copy(0)
    assert warm_tokens(shadow, [*held, *text(2, 20)]) == (300, "pool")


def test_empty_lane_is_given_away_before_one_with_a_copy() -> None:
    shadow = Shadow(make_settings(lanes=2))
    finish(shadow, FIRST)
    shadow.copy(0)
    stranger = shadow.submit(make_job(text(3, 100), max_tokens=1))
    plan = shadow.step()
    assert [(place.job_id, place.lane) for place in plan.placements] == [(stranger, 1)]


def test_lane_with_a_copy_is_given_away_before_one_without() -> None:
    shadow = Shadow(make_settings(lanes=2))
    finish(shadow, FIRST)
    finish(shadow, text(2, 100))
    shadow.copy(0)
    stranger = shadow.submit(make_job(text(3, 100), max_tokens=1))
    plan = shadow.step()
    assert [(place.job_id, place.lane) for place in plan.placements] == [(stranger, 0)]


def test_copy_behind_which_the_lane_went_on_serves_as_a_prefix() -> None:
    shadow = Shadow(make_settings(lanes=1))
    held = finish(shadow, FIRST)
    shadow.copy(0)
    finish(shadow, [*held, *text(2, 20)])
    finish(shadow, text(3, 300))
    assert warm_tokens(shadow, [*held[:200], *text(4, 20)]) == (200, "memory")


@pytest.mark.parametrize(("kept", "warm"), [(300, 300), (299, 0), (200, 0)])
def test_copy_of_a_state_that_cannot_be_cut_serves_at_its_length_only(kept: int, warm: int) -> None:
    shadow = Shadow(make_settings(lanes=1, can_truncate=False))
    held = finish(shadow, FIRST)
    shadow.copy(0)
    finish(shadow, text(3, 300))
    assert warm_tokens(shadow, [*held[:kept], *text(4, 20)])[0] == warm


def test_copy_of_a_state_that_cannot_be_cut_takes_the_place_of_the_turn_befores() -> None:
    shadow = Shadow(make_settings(lanes=2, can_truncate=False))
    first = finish(shadow, FIRST)
    shadow.copy(0)
    finish(shadow, text(5, 300))
    shadow.copy(1)
    second = finish(shadow, [*first, *text(2, 60)])
    shadow.copy(0)
    assert sorted(shadow.host.values()) == sorted([second, text(5, 300)])


# ---- whose it is


def test_copy_of_an_adapters_lane_is_for_that_adapter_and_goes_with_it() -> None:
    shadow = Shadow(make_settings(lanes=1))
    held = finish(shadow, FIRST, adapter=3)
    entry = shadow.copy(0)
    finish(shadow, text(2, 300))
    assert warm_tokens(shadow, [*held, *text(4, 20)])[0] == 0
    finish(shadow, text(2, 300))
    assert warm_tokens(shadow, [*held, *text(4, 20)], adapter=3) == (300, "memory")
    entries, lanes = shadow.scheduler.forget_adapter(3)
    assert (entries, lanes) == ([entry], [0])


def test_copy_of_a_forgotten_session_goes_and_no_other() -> None:
    shadow = Shadow(make_settings(lanes=2))
    finish(shadow, FIRST, session=11)
    finish(shadow, text(2, 300), session=12)
    copies = [shadow.copy(lane) for lane in (0, 1)]
    entries, _ = shadow.scheduler.parks.forget({11})
    assert entries == [copies[0]]


# ---- what goes first


@pytest.mark.parametrize("level", [PressureLevel.NONE, PressureLevel.WARNING])
def test_copy_goes_under_pressure_and_its_lane_stays(level: PressureLevel) -> None:
    shadow = Shadow(make_settings(lanes=1))
    held = finish(shadow, FIRST)
    entry = shadow.copy(0)
    shadow.scheduler.system_pressure(level)
    plan = shadow.step()
    assert [drop.entry_id for drop in plan.drops] == ([] if level is PressureLevel.NONE else [entry])
    assert warm_tokens(shadow, [*held, *text(2, 20)]) == (300, "pool")


def test_copy_of_what_a_lane_holds_goes_before_older_entries_that_are_all_there_is() -> None:
    """Room for two and a half; the third must push one out."""
    shadow = Shadow(make_settings(lanes=2, window_tokens=1000, host_cache_bytes=750 * BYTES_PER_TOKEN))
    finish(shadow, text(5, 300))
    finish(shadow, text(6, 300))
    finish(shadow, FIRST)
    copied = shadow.copy(0)
    assert copied is not None
    assert len(shadow.host) == 2
    shadow.submit(make_job([*FIRST, *text(2, 20)], max_tokens=200))
    shadow.step()
    finish(shadow, text(7, 300))
    shadow.step()
    assert copied not in shadow.host
    assert text(5, 300) in shadow.host.values()


def test_copy_of_a_lane_that_was_lost_since_goes_when_its_time_has_come() -> None:
    shadow = Shadow(make_settings(lanes=1, window_tokens=1000, host_cache_bytes=750 * BYTES_PER_TOKEN))
    finish(shadow, text(5, 300))
    finish(shadow, FIRST)
    copied = shadow.copy(0)
    finish(shadow, text(6, 300))
    finish(shadow, text(7, 300))
    shadow.step()
    assert copied in shadow.host
    assert text(5, 300) not in shadow.host.values()


def test_pinned_copy_is_spared_while_others_go() -> None:
    shadow = Shadow(make_settings(lanes=1))
    finish(shadow, FIRST, session=11)
    shadow.scheduler.pins.set_session(11, shadow.now_unix + 60, shadow.now_unix)
    entry = shadow.copy(0)
    finish(shadow, text(2, 300))
    other = shadow.copy(0)
    shadow.step()
    shadow.scheduler.system_pressure(PressureLevel.WARNING)
    shadow.step()
    assert entry in shadow.host
    assert other not in shadow.host
