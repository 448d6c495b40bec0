"""What has been done so far, as records that metrics and monitors read. Content-free."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from msgspec import Struct

from superfluid.domain.request import QosClass

BLOCK_TOKENS: Final = 256
"""The unit in which the KV pool is reported."""


def blocks(tokens: int) -> int:
    """Blocks that ``tokens`` of one lane touch."""
    return -(-tokens // BLOCK_TOKENS)


class DurationHistogram(Struct, frozen=True):
    """``counts[i]`` durations were at most ``bounds_seconds[i]`` and over the one before; the last count is open."""

    bounds_seconds: tuple[float, ...]
    counts: tuple[int, ...]
    sum_seconds: float


LanePhase = Literal["free", "prefill", "decode"]


class LaneStatus(Struct, frozen=True):
    """One lane. A free one (``job_id`` 0) still holds ``held_tokens`` of whoever was there last, for reuse.

    ``stream_tokens`` is the whole stream of its job, ``prompt_tokens`` of which are prompt; ``warm_tokens`` of that
    came from a cache, namely ``pool`` (a lane), ``memory`` or ``disk``.
    """

    lane: int
    job_id: int = 0
    phase: LanePhase = "free"
    qos: QosClass = QosClass.AGENT
    held_tokens: int = 0
    stream_tokens: int = 0
    prompt_tokens: int = 0
    warm_tokens: int = 0
    warm_from: str = ""
    session: int | None = None
    """Of a free lane: the one that was there last."""


class KeptPrefix(Struct, frozen=True):
    """Computed state that a job can begin with: whose tokens, and how many."""

    session: int | None
    tokens: int


class Warmth(Struct, frozen=True):
    """How many tokens of a session's input need not be computed again: they are in a lane, which may be a free one, in
    host memory, on the disk."""

    lane: int = 0
    memory: int = 0
    disk: int = 0


class TickStatus(Struct, frozen=True):
    """The tick in flight: for how long already, and its plan. All 0 between ticks."""

    seconds: float = 0.0
    prefill_tokens: int = 0
    prefill_lanes: int = 0
    decode_lanes: int = 0
    admissions: int = 0


class EngineRates(Struct, frozen=True):
    """Of the last tick that did the one or the other: tokens a second over all lanes. 0 until there was one."""

    decode_tokens_per_second: float = 0.0
    prefill_tokens_per_second: float = 0.0


class ModelStatistics(Struct, frozen=True, kw_only=True):
    """Counters (``*_total``) only rise, over all workers the model has had; the rest is as of the last tick.

    ``queue_depth`` has one entry per ``QosClass``. ``failures`` counts those since the last tick that did something.
    ``decode_grant_tokens`` is what one lane may get in a tick. ``parks_total`` states were written to KV files,
    ``park_skips_total`` were lost before they could be; ``resumes_total`` jobs went on from one. ``kv_files`` are those
    of use to the model, ``kv_file_bytes`` is the size of all.
    """

    is_ready: bool
    jobs_running: int
    jobs_queued: int
    failures: int
    respawns_total: int
    ticks_total: int
    prefill_tokens_total: int
    decode_tokens_total: int
    warm_prefix_tokens_total: int
    cold_admissions_total: int
    host_saves_total: int
    host_restores_total: int
    preemptions_total: int
    starvation_grants_total: int
    lanes_active: int
    queue_depth: tuple[int, int, int, int]
    pool_blocks_used: int
    pool_blocks_total: int
    prefill_budget_tokens: int
    decode_grant_tokens: int
    host_cache_bytes: int
    host_cache_entries: int
    tick_wall_seconds: float
    first_token: DurationHistogram
    lanes: tuple[LaneStatus, ...] = ()
    tick: TickStatus = TickStatus()
    rates: EngineRates = EngineRates()
    first_token_last_seconds: float = 0.0
    spec_proposed_total: int = 0
    spec_accepted_total: int = 0
    parks_total: int = 0
    resumes_total: int = 0
    park_skips_total: int = 0
    kv_files_damaged_total: int = 0
    kv_files: int = 0
    kv_file_bytes: int = 0
    admits_deferred_total: int = 0
    pressure_evictions_total: int = 0
    pressure_bytes_evicted_total: int = 0
    os_pressure_events_total: int = 0
    pins_yielded_total: int = 0
    pins_expired_total: int = 0
    pins_held: int = 0
    pinned_bytes: int = 0
    memory_used_bytes: int = 0
    """Of lanes with a job and of host memory; ``memory_total_bytes`` is what both may hold."""
    memory_total_bytes: int = 0
    memory_prefixes: tuple[KeptPrefix, ...] = ()
    """What lies in host memory, the newest first, a few dozen at most; ``disk_prefixes`` the same of KV files."""
    disk_prefixes: tuple[KeptPrefix, ...] = ()


class SessionStatistics(Struct, frozen=True, kw_only=True):
    """What is kept of sessions. ``sessions_open`` are held in memory; counters (``*_total``) are those of this start.

    ``store_bytes`` is what the store's files take, ``store_used_bytes`` what of them holds something.
    """

    sessions_open: int
    store_bytes: int
    store_used_bytes: int
    commits_total: int
    failed_commits_total: int
    events_total: int
    last_commit_seconds: float


class SpanCounts(Struct, frozen=True):
    """Since the start. ``queue_full``, ``export_failed`` and ``rejected`` are the reasons for losing a span."""

    exported: int = 0
    queue_full: int = 0
    export_failed: int = 0
    rejected: int = 0

    @property
    def dropped(self) -> int:
        return self.queue_full + self.export_failed + self.rejected


class KeyStatistics(Struct, frozen=True, kw_only=True):
    """What a key of the key policy has asked for since the start. ``rejected`` has every reason, in a fixed order."""

    name: str
    requests_total: int
    rejected: Mapping[str, int]
    in_flight: int


@dataclass(slots=True)
class InfillCounters:
    """What became of requests to fill in the middle since the start; counted on the event loop. Failures are not."""

    generated: int = 0
    cached: int = 0
    expired: int = 0
    throttled: int = 0
