"""The messages between the daemon and a worker. Pure; used on both sides.

Token ids travel as packed little-endian int32. The first message to a worker is ``Load``; its first answer is
``Ready`` or ``LoadFailed``. How they are framed: ``worker.frames``.
"""

from typing import Literal

from msgspec import Struct

from superfluid.domain.job import Job
from superfluid.domain.model import ModelFacts
from superfluid.domain.reply import Finish
from superfluid.worker.settings import EngineSettings

# ---- daemon to worker


class Load(Struct, frozen=True, tag="load", array_like=True):
    settings: EngineSettings
    log_filter: str


class Submit(Struct, frozen=True, tag="submit", array_like=True):
    job: Job


class Cancel(Struct, frozen=True, tag="cancel", array_like=True):
    """Ends a job if it is still there. Its lane is free after the tick in flight; the worker answers with a
    ``LaneOutput`` whose finish is ``CANCELLED``, unless the job had ended already."""

    job_id: int


class Ping(Struct, frozen=True, tag="ping", array_like=True):
    """Answered with ``Pong`` by the tick loop itself, so that a wedged loop does not answer."""

    sequence: int


class SetLogFilter(Struct, frozen=True, tag="log_filter", array_like=True):
    directive: str


class SetBackgroundRate(Struct, frozen=True, tag="background_rate", array_like=True):
    """From now on agent and background jobs decode at one ``divisor``-th of their rate. At least 1."""

    divisor: int


class Forget(Struct, frozen=True, tag="forget", array_like=True):
    """Erase what was kept of the tokens of these sessions: in lanes, in memory and on the disk. Their jobs are over.

    Answered with ``Forgotten`` when all of it is gone."""

    request_id: int
    sessions: list[int]


class SetPin(Struct, frozen=True, tag="pin", array_like=True):
    """What the session holds is to stay cached until then; 0 lets it go. Its jobs say the same, each time anew."""

    session: int
    deadline_unix_ms: int


class LoadAdapter(Struct, frozen=True, tag="load_adapter", array_like=True):
    """Load a LoRA adapter under a number that no adapter has had. Answered with ``AdapterLoaded``.

    With ``fingerprint`` it is one that an earlier worker had, and is refused if its file is not the same any more.
    """

    adapter: int
    path: str
    fingerprint: str = ""


class UnloadAdapter(Struct, frozen=True, tag="unload_adapter", array_like=True):
    """Take no more jobs with that adapter, and free it when those that there are have ended."""

    adapter: int


class Stop(Struct, frozen=True, tag="stop", array_like=True):
    """Close the engine and exit 0. Running jobs are abandoned: drain first."""


class SizeImage(Struct, frozen=True, tag="size_image", array_like=True):
    """How many tokens does the image take? Answered with ``ImageSized``."""

    request_id: int
    blob: str


ToWorker = (
    Load
    | Submit
    | Cancel
    | Ping
    | SetLogFilter
    | SetBackgroundRate
    | SetPin
    | SizeImage
    | Stop
    | Forget
    | LoadAdapter
    | UnloadAdapter
)


# ---- worker to daemon


class Ready(Struct, frozen=True, tag="ready", array_like=True):
    facts: ModelFacts


class LoadFailed(Struct, frozen=True, tag="load_failed", array_like=True):
    """``code`` is that of an error leaf: ``model_file``, ``model_load``, ``engine_library``, ``usage``."""

    code: str
    message: str


class Rejected(Struct, frozen=True, tag="rejected", array_like=True):
    """The job will not run. ``code`` is that of an error leaf: ``queue_full``, ``context_length_exceeded``,
    ``engine_fault``."""

    job_id: int
    code: str
    message: str


class ImageSized(Struct, frozen=True, tag="image_sized", array_like=True):
    """``layout`` is packed int32 (see ``Engine.image_layout``); empty if there is a ``code``, that of an error leaf."""

    request_id: int
    layout: bytes
    code: str = ""
    message: str = ""


class ImageStep(Struct, frozen=True, tag="image_step", array_like=True):
    """A tick has come to an image. On a slow machine that takes long, and nothing is answered meanwhile."""


class AdapterLoaded(Struct, frozen=True, tag="adapter_loaded", array_like=True):
    """``code`` is that of an error leaf, empty if it was loaded; ``fingerprint`` tells its file from another."""

    adapter: int
    fingerprint: str
    code: str = ""
    message: str = ""


class TokenScores(Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: the chosen token's, and the best candidates', best first."""

    chosen: float
    top_tokens: list[int]
    top_logprobs: list[float]


class LaneOutput(Struct, frozen=True, array_like=True):
    """What one job got from a tick. ``tokens`` is packed int32 (the end-of-turn token included, if it was drawn).

    ``warm_tokens`` is set in the job's first output after its admission (which may carry no token yet), and ``None``
    later. ``finish`` is ``NONE`` until the last. ``scores`` has one entry a token if the job asked for logprobs.
    ``is_waiting_again``: the job has lost its lane to a better class; another admission will follow.
    Since the last output, ``guessed_tokens`` were guessed for it, of which ``right_guesses`` were drawn.
    """

    job_id: int
    tokens: bytes
    finish: Finish = Finish.NONE
    warm_tokens: int | None = None
    scores: list[TokenScores] = []
    is_waiting_again: bool = False
    guessed_tokens: int = 0
    right_guesses: int = 0


class LaneState(Struct, frozen=True, array_like=True):
    """One lane after a tick; see ``domain.statistics.LaneStatus``."""

    lane: int
    job_id: int
    is_prefilling: bool
    qos: int
    held_tokens: int
    stream_tokens: int
    prompt_tokens: int
    warm_tokens: int
    warm_from: str = ""


class TickRecord(Struct, frozen=True, array_like=True):
    """Content-free facts about a tick, for metrics, logs and spans. Counters are since the worker's start.

    Durations are in seconds. ``queue_depth`` has one entry per ``QosClass``.
    """

    sequence: int
    started_unix: float
    wall_seconds: float
    plan_seconds: float
    engine_seconds: float
    sample_seconds: float
    prefill_tokens: int
    prefill_lanes: int
    decode_lanes: int
    admissions: int
    retirements: int
    lanes_active: int
    queue_depth: tuple[int, int, int, int]
    pool_blocks_used: int
    pool_blocks_total: int
    chunk_budget_tokens: int
    host_cache_bytes: int
    host_cache_entries: int
    ticks_total: int
    prefill_tokens_total: int
    decode_tokens_total: int
    warm_prefix_tokens_total: int
    cold_admissions_total: int
    host_saves_total: int
    host_restores_total: int
    first_token_seconds: list[float]
    lanes: list[LaneState] | None = None
    """All lanes, a few times a second and whenever the worker falls idle; ``None`` in between."""
    preemptions_total: int = 0
    starvation_grants_total: int = 0
    admits_deferred_total: int = 0
    pressure_evictions_total: int = 0
    pressure_bytes_evicted_total: int = 0
    os_pressure_events_total: int = 0
    pins_yielded_total: int = 0
    pins_expired_total: int = 0
    pins_held: int = 0
    pinned_bytes: int = 0
    memory_used_bytes: int = 0
    memory_total_bytes: int = 0
    spec_proposed_total: int = 0
    spec_accepted_total: int = 0
    decode_tokens: int = 0
    """Drawn in this tick, by a decode step."""
    decode_grant_tokens: int = 1
    """What a lane could have got in this tick at most."""


class TickSpan(Struct, frozen=True, array_like=True):
    """One tick, for a trace: when it was (unix seconds), how many jobs waited, and which ones it worked on."""

    sequence: int
    started_unix: float
    wall_seconds: float
    queued: int
    jobs: list[int]


class KvSpan(Struct, frozen=True, tag="kv_span", array_like=True):
    """A state that was parked, or restored for the job of a session, for a trace: when (unix seconds), how long the
    tick loop was held up, tokens and bytes. ``tick`` is the ``TickSpan.sequence`` it belongs to, 0 between two ticks.
    """

    kind: Literal["park", "restore"]
    started_unix: float
    wall_seconds: float
    session: int
    covered: int
    size_bytes: int
    tick: int = 0


class Tick(Struct, frozen=True, tag="tick", array_like=True):
    """The outputs of one tick, or of the last few if they were fast; ``record`` is the last one's.

    ``spans`` has an entry for each of those ticks where ``EngineSettings.is_traced``, and none elsewhere.
    """

    outputs: list[LaneOutput]
    record: TickRecord
    spans: list[TickSpan] = []


class TickStarted(Struct, frozen=True, tag="tick_started", array_like=True):
    """A tick that will take long enough to be looked at has begun: its plan."""

    prefill_tokens: int
    prefill_lanes: int
    decode_lanes: int
    admissions: int


class Placed(Struct, frozen=True, tag="placed", array_like=True):
    """These jobs are about to get lanes. Sent before the step, which may be the worker's last: what ends it then is
    a job with a lane, and not one in the queue."""

    job_ids: list[int]


class Pong(Struct, frozen=True, tag="pong", array_like=True):
    sequence: int


class Forgotten(Struct, frozen=True, tag="forgotten", array_like=True):
    """``is_complete`` is false if the disk did not let a file go."""

    request_id: int
    is_complete: bool


class KvFileAdded(Struct, frozen=True, array_like=True):
    """A KV file that the worker can use. ``session`` is the one whose tokens it holds; ``digest`` is that of the
    ``tokens`` token ids (see ``kvfiles.names.token_digest``), ``digests`` those of the first ``lengths`` of them."""

    file_id: int
    session: int | None
    tokens: int
    digest: bytes
    lengths: list[int] = []
    digests: bytes = b""


class KvTotals(Struct, frozen=True, array_like=True):
    """Counters are since the worker's start: files written; jobs that went on from one; states that were lost before
    they could be written; files that turned out damaged. ``files`` are those of use to this model, ``size_bytes`` is
    that of all."""

    parks_total: int = 0
    resumes_total: int = 0
    skips_total: int = 0
    damaged_total: int = 0
    files: int = 0
    size_bytes: int = 0


class KvChanged(Struct, frozen=True, tag="kv", array_like=True):
    """Which files there are now, as changes. ``removed`` holds ids of ``added`` ones, perhaps of this message."""

    added: list[KvFileAdded]
    removed: list[int]
    totals: KvTotals


class HeldPrefix(Struct, frozen=True, array_like=True):
    """State that a job can begin with, in a free ``lane``, or in host memory where that is ``None``: ``tokens`` of
    ``session``. ``digests`` are those of the first ``lengths`` of them (see ``worker.prefix_marks``), at which
    it can be compared with other streams."""

    number: int
    lane: int | None
    session: int | None
    tokens: int
    lengths: list[int]
    digests: bytes


class PrefixesChanged(Struct, frozen=True, tag="prefixes", array_like=True):
    """What lies in free lanes and in host memory, as changes. ``removed`` holds numbers of earlier messages."""

    added: list[HeldPrefix]
    removed: list[int]


class LogRecord(Struct, frozen=True, tag="log", array_like=True):
    """One event of the worker's logger. ``fields`` are numbers, booleans and short codes, never text of a request."""

    unix: float
    level: int
    target: str
    message: str
    fields: dict[str, str | int | float | bool] = {}


FromWorker = (
    Ready
    | LoadFailed
    | Rejected
    | Tick
    | TickStarted
    | Pong
    | LogRecord
    | ImageSized
    | ImageStep
    | Forgotten
    | KvChanged
    | KvSpan
    | AdapterLoaded
    | Placed
    | PrefixesChanged
)
