"""Puts the supervisor's numbers into the record that metrics and monitors read. Pure; used in the daemon."""

from typing import Final

import msgspec

from superfluid.domain.model import ModelFacts
from superfluid.domain.statistics import ModelStatistics, TickStatus, blocks
from superfluid.worker.journal import JobJournal
from superfluid.worker.parked_files import ParkedFiles
from superfluid.worker.protocol import TickRecord
from superfluid.worker.totals import TickTotals
from superfluid.worker.warm_prefixes import WarmPrefixes

NO_TICK = TickStatus()
NO_PARKED_FILES = ParkedFiles()
NO_WARM_PREFIXES = WarmPrefixes()
MAX_KEPT: Final = 32
"""Of so many prefixes in a tier it is told whose they are."""
EMPTY_TICK = TickRecord(
    sequence=0,
    started_unix=0.0,
    wall_seconds=0.0,
    plan_seconds=0.0,
    engine_seconds=0.0,
    sample_seconds=0.0,
    prefill_tokens=0,
    prefill_lanes=0,
    decode_lanes=0,
    admissions=0,
    retirements=0,
    lanes_active=0,
    queue_depth=(0, 0, 0, 0),
    pool_blocks_used=0,
    pool_blocks_total=0,
    chunk_budget_tokens=0,
    host_cache_bytes=0,
    host_cache_entries=0,
    ticks_total=0,
    prefill_tokens_total=0,
    decode_tokens_total=0,
    warm_prefix_tokens_total=0,
    cold_admissions_total=0,
    host_saves_total=0,
    host_restores_total=0,
    first_token_seconds=[],
)


def model_statistics(
    jobs: JobJournal,
    totals: TickTotals,
    *,
    is_ready: bool,
    failures: int,
    respawns: int,
    facts: ModelFacts | None = None,
    tick: TickStatus = NO_TICK,
    parked: ParkedFiles = NO_PARKED_FILES,
    warm: WarmPrefixes = NO_WARM_PREFIXES,
) -> ModelStatistics:
    """The scheduler's view where a worker is ticking; without one, every job waits. ``tick`` is the one in flight.

    ``facts`` are those of the model, once it has loaded: how large the pool is, is known before the first tick.
    """
    counters, kv = totals.counters(), parked.totals()
    last = totals.last or EMPTY_TICK
    idle_blocks = 0 if facts is None else facts.lanes * blocks(facts.window_tokens)
    running = jobs.jobs_with_lane
    # The last record can be older than the last job's end.
    is_ticking = totals.last is not None and len(jobs) > 0
    return ModelStatistics(
        is_ready=is_ready,
        jobs_running=running,
        jobs_queued=len(jobs) - running,
        failures=failures,
        respawns_total=respawns,
        ticks_total=counters.ticks,
        prefill_tokens_total=counters.prefill_tokens,
        decode_tokens_total=counters.decode_tokens,
        warm_prefix_tokens_total=counters.warm_prefix_tokens,
        cold_admissions_total=counters.cold_admissions,
        host_saves_total=counters.host_saves,
        host_restores_total=counters.host_restores,
        preemptions_total=counters.preemptions,
        starvation_grants_total=counters.starvation_grants,
        admits_deferred_total=counters.admits_deferred,
        pressure_evictions_total=counters.pressure_evictions,
        pressure_bytes_evicted_total=counters.pressure_bytes_evicted,
        os_pressure_events_total=counters.os_pressure_events,
        pins_yielded_total=counters.pins_yielded,
        pins_expired_total=counters.pins_expired,
        pins_held=last.pins_held,
        pinned_bytes=last.pinned_bytes,
        memory_used_bytes=last.memory_used_bytes,
        memory_total_bytes=last.memory_total_bytes,
        spec_proposed_total=counters.spec_proposed,
        spec_accepted_total=counters.spec_accepted,
        lanes_active=last.lanes_active if is_ticking else 0,
        queue_depth=last.queue_depth if is_ticking else jobs.waiting_by_class(),
        pool_blocks_used=last.pool_blocks_used,
        pool_blocks_total=last.pool_blocks_total or idle_blocks,
        prefill_budget_tokens=last.chunk_budget_tokens,
        decode_grant_tokens=last.decode_grant_tokens,
        host_cache_bytes=last.host_cache_bytes,
        host_cache_entries=last.host_cache_entries,
        tick_wall_seconds=last.wall_seconds,
        first_token=totals.first_token(),
        lanes=tuple([msgspec.structs.replace(lane, session=warm.lane_session(lane)) for lane in totals.lanes]),
        tick=tick,
        rates=totals.rates,
        first_token_last_seconds=totals.first_token_last_seconds,
        parks_total=kv.parks_total,
        resumes_total=kv.resumes_total,
        park_skips_total=kv.skips_total,
        kv_files_damaged_total=kv.damaged_total,
        kv_files=kv.files,
        kv_file_bytes=kv.size_bytes,
        memory_prefixes=warm.newest_in_memory(MAX_KEPT),
        disk_prefixes=parked.newest(MAX_KEPT),
    )


def no_statistics() -> ModelStatistics:
    """Those of a model that has no worker yet."""
    return model_statistics(JobJournal(), TickTotals(), is_ready=False, failures=0, respawns=0)
