"""The daemon's record of every job it gave to a worker, from which a new worker can go on. No I/O."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from superfluid.domain.job import Job
from superfluid.domain.reply import Finish
from superfluid.errors import EngineFaultError, SuperfluidError, WorkerFailedError
from superfluid.sessions.backend import JobSink
from superfluid.worker.frames import FrameError
from superfluid.worker.protocol import LaneOutput

TOKEN_BYTES = 4
MAX_LOSSES_WITHOUT_TOKEN = 5

_logger = logging.getLogger("superfluid_daemon")


@dataclass(slots=True)
class _Entry:
    job: Job
    sink: JobSink
    received: bytearray = field(default_factory=bytearray)
    was_sent: bool = False
    has_lane: bool = False
    is_placed: bool = False
    has_started: bool = False
    is_cancelled: bool = False
    losses: int = 0

    @property
    def tokens_left(self) -> int:
        return self.job.max_tokens - len(self.received) // TOKEN_BYTES

    def present_job(self) -> Job:
        """The job that continues behind what was received."""
        if not self.was_sent:
            return self.job
        return msgspec.structs.replace(
            self.job,
            tokens=self.job.tokens + bytes(self.received),
            max_tokens=self.tokens_left,
            is_resubmission=True,
        )


class JobJournal:
    """Every job between its submission and its one terminal event, in the order of submission.

    It is the only caller of the sinks. A sink that raises loses its own job, not the other jobs of the tick.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._entries

    @property
    def has_lanes(self) -> bool:
        """Whether any job has a lane."""
        return any(entry.has_lane for entry in self._entries.values())

    @property
    def jobs_with_lane(self) -> int:
        return sum(entry.has_lane for entry in self._entries.values())

    def session(self, job_id: int) -> int:
        """That of a job, 0 if it has none, or is not there."""
        entry = self._entries.get(job_id)
        return 0 if entry is None else entry.job.session

    def adapters(self) -> set[int]:
        """Those that jobs have."""
        return {entry.job.adapter for entry in self._entries.values()}

    def waiting_by_class(self) -> tuple[int, int, int, int]:
        """Jobs that have no lane, per ``QosClass``."""
        counts = [0, 0, 0, 0]
        for entry in self._entries.values():
            if not entry.has_lane:
                counts[entry.job.qos] += 1
        return (counts[0], counts[1], counts[2], counts[3])

    def add(self, job: Job, sink: JobSink) -> None:
        assert job.job_id not in self._entries, f"job {job.job_id} was submitted twice"
        self._entries[job.job_id] = _Entry(job, sink)

    def pin(self, session: int, deadline_unix_ms: int) -> None:
        """From here on jobs of the session tell a worker this deadline."""
        for entry in self._entries.values():
            if entry.job.session == session:
                entry.job = msgspec.structs.replace(entry.job, pin_deadline_unix_ms=deadline_unix_ms)

    def mark_cancelled(self, job_id: int) -> None:
        self._entries[job_id].is_cancelled = True

    def to_send(self, job_id: int) -> Job:
        """The job as a worker is to get it now; taken as sent."""
        entry = self._entries[job_id]
        job = entry.present_job()
        entry.was_sent = True
        return job

    def job_ids(self) -> list[int]:
        return list(self._entries)

    def placed(self, job_ids: Iterable[int]) -> None:
        """They are about to get lanes. Unknown ids are ignored."""
        for job_id in job_ids:
            if job_id in self._entries:
                self._entries[job_id].is_placed = True

    def deliver(self, output: LaneOutput) -> int | None:
        """Hands a job's output to its sink. Returns the job's id if the sink raised: the worker should cancel it.

        Raises FrameError if the tokens are no int32 array. Output of unknown jobs is ignored.
        """
        entry = self._entries.get(output.job_id)
        if entry is None:
            return None
        tokens = _unpack(output.tokens) if output.tokens else None
        is_last = output.finish is not Finish.NONE
        if is_last:
            del self._entries[output.job_id]
        if _call(output.job_id, lambda: _pass_on(entry, output, tokens)):
            return None
        self._entries.pop(output.job_id, None)
        return None if is_last else output.job_id

    def finish(self, job_id: int, finish: Finish) -> None:
        entry = self._entries.pop(job_id, None)
        if entry is not None:
            _call(job_id, lambda: entry.sink.finished(finish))

    def fail(self, job_id: int, error: SuperfluidError) -> None:
        """Unknown ids are ignored."""
        entry = self._entries.pop(job_id, None)
        if entry is not None:
            _call(job_id, lambda: entry.sink.failed(error))

    def fail_all(self, error: SuperfluidError) -> None:
        for job_id in self.job_ids():
            self.fail(job_id, error)

    def worker_lost(self) -> None:
        """Ends the jobs that have nothing to wait for any more; the others stay, without a lane.

        A job on whose lane several workers went without its getting a token is taken for their killer and fails, so
        that one poisonous request does not pause everybody for ever. Those in the queue had no part in it.
        """
        for job_id, entry in list(self._entries.items()):
            was_placed, entry.is_placed = entry.is_placed, False
            entry.has_lane = False
            if entry.is_cancelled:
                self.finish(job_id, Finish.CANCELLED)
            elif entry.was_sent and entry.tokens_left <= 0:
                self.finish(job_id, Finish.LENGTH)
            elif was_placed:
                entry.losses += 1
                if entry.losses >= MAX_LOSSES_WITHOUT_TOKEN:
                    self.fail(job_id, WorkerFailedError("The model's process failed again and again on this request."))


def _unpack(packed: bytes) -> list[int]:
    try:
        return memoryview(packed).cast("i").tolist()
    except TypeError as error:
        raise FrameError(f"{len(packed)} bytes are no int32 array") from error


def _call(job_id: int, call: Callable[[], None]) -> bool:
    """False if the receiver raised, which it must not."""
    try:
        call()
    except Exception:
        # Supervision point: one front end's bug must not end everybody's stream.
        _logger.exception("a job's receiver failed", extra={"fields": {"job": job_id}})
        return False
    return True


def _pass_on(entry: _Entry, output: LaneOutput, tokens: list[int] | None) -> None:
    if output.warm_tokens is not None:
        entry.has_lane = True
        if not entry.has_started:
            entry.has_started = True
            entry.sink.started(output.warm_tokens)
    if output.is_waiting_again:
        entry.has_lane = False
    if output.guessed_tokens:
        entry.sink.guessed(output.guessed_tokens, output.right_guesses)
    if tokens is not None:
        entry.received += output.tokens
        entry.losses = 0
        entry.sink.tokens(tokens, output.scores)
    if output.finish is Finish.ERROR:
        entry.sink.failed(EngineFaultError("The engine could not continue this generation."))
    elif output.finish is not Finish.NONE:
        entry.sink.finished(output.finish)
