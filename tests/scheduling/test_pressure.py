"""Watermarks and the operating system's word: what is given up, in which order, as a table of situations."""

import numpy as np
import pytest
from tests.fixtures.scheduling import BYTES_PER_TOKEN, Shadow, make_job, make_settings, text

from superfluid.domain.memory import MemoryRules
from superfluid.domain.request import QosClass
from superfluid.scheduling.prefix import HostEntry, PrefixIndex
from superfluid.scheduling.pressure import PressureLevel

RULES = MemoryRules(pressure_high_percent=80, pressure_low_percent=50)


def _index(sizes: dict[int, int], *, shared: tuple[int, ...] = (), pinned: tuple[int, ...] = ()) -> PrefixIndex:
    """Entries by their first token, used in the order of the table."""
    index = PrefixIndex(limit_bytes=10_000, is_nesting=True)
    entries: dict[int, HostEntry] = {}
    for tick, (name, size) in enumerate(sizes.items()):
        entries[name] = index.add(np.array([name, 1, 2], np.int32), tick, is_transient=False)
        index.record_size(entries[name].entry_id, size)
        entries[name].uses = 2 if name in shared else 1
    index.protected = frozenset(entries[name].entry_id for name in pinned)
    return index


def _names(index: PrefixIndex) -> list[int]:
    return [int(entry.tokens[0]) for entry in index]


@pytest.mark.parametrize(
    ("target", "spares_protected", "left"),
    [
        (400, False, [1, 2, 3, 4]),
        # The oldest that nobody shares, then the others that nobody shares.
        (399, False, [1, 3, 4]),
        (200, False, [1, 3]),
        # Then what is shared; pins last.
        (100, False, [3]),
        (0, False, []),
        (0, True, [3]),
    ],
)
def test_evict_takes_unshared_then_shared_then_pinned(target: int, spares_protected: bool, left: list[int]) -> None:
    index = _index({1: 100, 2: 100, 3: 100, 4: 100}, shared=(1,), pinned=(3,))
    index.evict(target, spares_protected=spares_protected)
    assert _names(index) == left
    index.check_integrity()


def test_evict_leaves_what_a_queued_job_holds() -> None:
    index = _index({1: 100, 2: 100})
    index.hold(0)
    assert index.evict(0, spares_protected=False) == [1]


def _fill(shadow: Shadow, jobs: int, first_seed: int = 1) -> None:
    for seed in range(first_seed, first_seed + jobs):
        shadow.submit(make_job(text(seed, 500), max_tokens=1))
        shadow.run()


def test_plan_at_the_high_mark_evicts_to_the_low_one() -> None:
    """One lane of 1,000 tokens and a host cache of 4,000: 80 % are 4,000, 50 % are 2,500."""
    shadow = Shadow(make_settings(lanes=1, window_tokens=1000, host_cache_bytes=4000 * BYTES_PER_TOKEN, memory=RULES))
    _fill(shadow, 8)
    statistics = shadow.scheduler.statistics()
    assert statistics.memory_total_bytes == 5000 * BYTES_PER_TOKEN
    assert statistics.host_cache_bytes == 3500 * BYTES_PER_TOKEN
    assert statistics.counters.pressure_evictions_total == 0
    _fill(shadow, 1, 20)
    _fill(shadow, 1, 21)
    assert not any(plan.is_system_short for plan in shadow.plans), "what has been freed serves the next states"
    counters = shadow.scheduler.statistics().counters
    assert counters.pressure_evictions_total == 1
    assert counters.pressure_bytes_evicted_total > 0
    assert shadow.scheduler.statistics().memory_used_bytes <= 3500 * BYTES_PER_TOKEN


def test_plan_never_takes_a_lane_for_the_marks() -> None:
    shadow = Shadow(make_settings(lanes=2, window_tokens=1000, host_cache_bytes=600 * BYTES_PER_TOKEN, memory=RULES))
    _fill(shadow, 3)
    jobs = [shadow.submit(make_job(text(seed, 900), max_tokens=90)) for seed in (30, 31)]
    shadow.run()
    assert all(len(shadow.reply(job)) == 90 for job in jobs)
    assert shadow.preempted() == []


@pytest.mark.parametrize(("level", "is_empty"), [(PressureLevel.NONE, False), (PressureLevel.WARNING, True)])
def test_plan_after_a_warning_drops_host_copies(level: PressureLevel, is_empty: bool) -> None:
    shadow = Shadow(make_settings(lanes=1))
    _fill(shadow, 4)
    shadow.scheduler.system_pressure(level)
    shadow.step()
    statistics = shadow.scheduler.statistics()
    assert (statistics.host_cache_entries == 0) == is_empty
    assert statistics.counters.os_pressure_events_total == int(is_empty)
    assert len(shadow.host) == statistics.host_cache_entries


def test_plan_after_a_critical_signal_takes_the_lanes_of_background_replies() -> None:
    shadow = Shadow(make_settings(lanes=3))
    background = shadow.submit(make_job(text(1, 100), max_tokens=60, qos=QosClass.BACKGROUND))
    agent = shadow.submit(make_job(text(2, 100), max_tokens=60))
    shadow.run_until(lambda: len(shadow.reply(background)) > 5 and len(shadow.reply(agent)) > 5)
    shadow.scheduler.system_pressure(PressureLevel.CRITICAL)
    shadow.scheduler.hold_background(is_held=True)
    plan = shadow.step()
    assert [lost.job_id for lost in plan.preemptions] == [background]
    produced = len(shadow.reply(background))
    for _ in range(20):
        shadow.step()
    assert len(shadow.reply(background)) == produced
    assert shadow.scheduler.statistics().counters.admits_deferred_total == 1
    shadow.scheduler.hold_background(is_held=False)
    shadow.run()
    assert len(shadow.reply(background)) == len(shadow.reply(agent)) == 60


def test_plan_that_only_preempts_is_not_empty() -> None:
    shadow = Shadow(make_settings(lanes=1))
    job = shadow.submit(make_job(text(1, 100), max_tokens=60, qos=QosClass.BACKGROUND))
    shadow.run_until(lambda: len(shadow.reply(job)) > 5)
    shadow.scheduler.system_pressure(PressureLevel.CRITICAL)
    shadow.scheduler.hold_background(is_held=True)
    assert not shadow.step().is_empty
    assert shadow.step().is_empty


def test_plan_looks_before_it_evicts() -> None:
    shadow = Shadow(make_settings(lanes=1, window_tokens=1000))
    _fill(shadow, 3)
    assert shadow.step().eviction_look is None
    shadow.scheduler.system_pressure(PressureLevel.WARNING)
    plan = shadow.step()
    look = plan.eviction_look
    assert plan.is_system_short
    assert look is not None
    assert (look.used_blocks, look.total_blocks) == (2, 4)
    assert look.evictable_bytes == 1000 * BYTES_PER_TOKEN
