"""What the scheduler counts, and the frozen record in which it says so. Pure; lives in the worker."""

from dataclasses import dataclass

from msgspec import Struct


class SchedulerCounters(Struct):
    """Counters since the start. A job that is submitted again after a lost worker counts in no admission counter; one
    that gets a lane again after a preemption counts anew."""

    ticks_total: int = 0
    prefill_tokens_total: int = 0
    decode_tokens_total: int = 0
    admissions_total: int = 0
    warm_prefix_tokens_total: int = 0
    cold_admissions_total: int = 0
    host_saves_total: int = 0
    host_restores_total: int = 0
    preemptions_total: int = 0
    starvation_grants_total: int = 0
    admits_deferred_total: int = 0
    pressure_evictions_total: int = 0
    pressure_bytes_evicted_total: int = 0
    os_pressure_events_total: int = 0
    pins_yielded_total: int = 0
    pins_expired_total: int = 0
    spec_proposed_total: int = 0
    spec_accepted_total: int = 0


@dataclass(frozen=True, slots=True)
class LaneView:
    """One lane at this moment. ``job_id`` 0 is a free one, whose ``held_tokens`` are left over for reuse. ``warm_from``
    is where its job's ``warm_tokens`` came from: ``pool``, ``memory`` or ``disk``."""

    lane: int
    job_id: int
    is_prefilling: bool
    qos: int
    held_tokens: int
    stream_tokens: int
    prompt_tokens: int
    warm_tokens: int
    warm_from: str = ""


class SchedulerStatistics(Struct, frozen=True, kw_only=True):
    """Gauges of this moment, and the counters. ``queue_depth`` has one entry per ``QosClass``."""

    queue_depth: tuple[int, int, int, int]
    lanes_active: int
    lanes_prefilling: int
    pool_blocks_used: int
    pool_blocks_total: int
    host_cache_bytes: int
    host_cache_entries: int
    counters: SchedulerCounters
    pins_held: int = 0
    pinned_bytes: int = 0
    memory_used_bytes: int = 0
    memory_total_bytes: int = 0
