"""Keeps one model's worker alive and its jobs going, whatever becomes of the process. Lives on the daemon's event loop.

A worker that dies or wedges is replaced, and every job that it had goes on in the next one behind the last token
received: its sink sees a pause. Three failures in a row without a tick that did something fail all jobs.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import assert_never

from superfluid.clock import Clock, SystemClock
from superfluid.domain.job import Job
from superfluid.domain.model import ModelFacts
from superfluid.domain.reply import Finish
from superfluid.domain.statistics import ModelStatistics, Warmth
from superfluid.errors import (
    ModelLoadingError,
    QueueFullError,
    ShuttingDownError,
    SuperfluidError,
    UnsupportedInputError,
    WorkerFailedError,
)
from superfluid.sessions.backend import JobSink
from superfluid.worker.adapter_book import AdapterBook, not_loaded_error
from superfluid.worker.erasures import Erasures, erase_from_disk
from superfluid.worker.flight import TickFlight
from superfluid.worker.journal import JobJournal
from superfluid.worker.link import Pulse, WorkerLink
from superfluid.worker.parked_files import ParkedFiles
from superfluid.worker.process import WORKER_COMMAND
from superfluid.worker.protocol import (
    AdapterLoaded,
    Cancel,
    Forgotten,
    FromWorker,
    ImageSized,
    ImageStep,
    KvChanged,
    KvSpan,
    Load,
    LoadFailed,
    LogRecord,
    Placed,
    Pong,
    PrefixesChanged,
    Ready,
    Rejected,
    SetBackgroundRate,
    SetLogFilter,
    SetPin,
    Submit,
    Tick,
    TickRecord,
    TickSpan,
    TickStarted,
    ToWorker,
)
from superfluid.worker.refusals import load_error, rejection_error
from superfluid.worker.restarts import RestartPolicy
from superfluid.worker.settings import EngineSettings
from superfluid.worker.sizings import ImageSizings
from superfluid.worker.statistics import model_statistics
from superfluid.worker.totals import TickTotals
from superfluid.worker.warm_prefixes import WarmPrefixes
from superfluid.worker.watchdog import Watchdog

STOP_SECONDS = 5.0

_logger = logging.getLogger("superfluid_daemon")


class WorkerSupervisor:
    """``sessions.backend.GenerationBackend`` over a worker process.

    ``on_tick``, ``on_log``, ``on_spans`` and ``on_kv_span`` are called on the loop for every tick's record, every
    record of the worker's logger, the ticks of a traced worker, and the states it has parked and restored; they must
    not block and must not raise. ``environment`` is handed to the worker without its credentials.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        environment: Mapping[str, str],
        log_filter: str = "info",
        timeout_seconds: float = 10.0,
        clock: Clock | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        on_tick: Callable[[TickRecord], None] | None = None,
        on_log: Callable[[LogRecord], None] | None = None,
        on_spans: Callable[[Sequence[TickSpan]], None] | None = None,
        on_kv_span: Callable[[KvSpan], None] | None = None,
    ) -> None:
        self._settings = settings
        self._log_filter = log_filter
        self._background_divisor = 1
        self._clock: Clock = clock or SystemClock()
        self._on_tick = on_tick
        self._on_log = on_log
        self._on_spans = on_spans
        self._on_kv_span = on_kv_span
        self._jobs = JobJournal()
        self._totals = TickTotals()
        self._sizings = ImageSizings()
        self._erasures = Erasures()
        self._flight = TickFlight()
        self._parked = ParkedFiles()
        self._warm = WarmPrefixes()
        self._watchdog = Watchdog(timeout_seconds)
        self._restarts = RestartPolicy(self._clock)
        self._link = WorkerLink(
            command, environment, self._watchdog, self._clock, on_message=self._on_message, pulse=self._pulse
        )
        self.adapters = AdapterBook(self._link.send)
        self._facts: ModelFacts | None = None
        self._load_error: SuperfluidError | None = None
        self._first_ready: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_draining = False
        self._is_stopping = False
        self._emptied = asyncio.Event()

    # ---- what front ends see

    @property
    def facts(self) -> ModelFacts:
        """Those of the newest worker that loaded. Raises ModelLoadingError until the first has."""
        if self._facts is None:
            raise ModelLoadingError("The model is still being loaded.")
        return self._facts

    @property
    def is_ready(self) -> bool:
        """Whether a submitted job will run. True while a lost worker is being replaced; false after it was given up."""
        return self._facts is not None and not self._restarts.is_given_up and not self._is_draining

    @property
    def worker_pid(self) -> int | None:
        return self._link.pid

    def submit(self, job: Job, sink: JobSink) -> None:
        """Never raises. While a lost worker is being replaced the job waits for the next one."""
        refusal = self._refusal() or (None if self.adapters.can_use(job.adapter) else not_loaded_error())
        if refusal is not None:
            sink.failed(refusal)
            return
        self._jobs.add(job, sink)
        if self._link.is_serving:
            self._link.send(Submit(self._jobs.to_send(job.job_id)))

    def cancel(self, job_id: int) -> None:
        """The sink sees ``finished(CANCELLED)`` after the tick in flight, or at once if there is no worker."""
        if job_id not in self._jobs:
            return
        if self._link.send(Cancel(job_id)):
            self._jobs.mark_cancelled(job_id)
        else:
            self._jobs.finish(job_id, Finish.CANCELLED)
            self._note_if_empty()

    async def size_image(self, blob: str) -> list[int]:
        """See ``sessions.backend.GenerationBackend``."""
        if self.facts.media is None:
            raise UnsupportedInputError(self.facts.no_images_reason)
        if not self._link.is_serving:
            raise ModelLoadingError("The model's process is being replaced; try again in a moment.")
        request, answer = self._sizings.ask(blob)
        self._link.send(request)
        return await answer

    def warmth(self, session: int, tokens: "array[int]") -> Warmth:
        """See ``sessions.backend.GenerationBackend``. As the worker last told it, at most a moment ago."""
        can_truncate = self._facts is None or self._facts.can_truncate
        warm = self._warm.warmth(session, tokens, can_truncate=can_truncate)
        running = [lane.held_tokens for lane in self._totals.lanes if self._jobs.session(lane.job_id) == session]
        return Warmth(
            lane=max(warm.lane, min(max(running, default=0), len(tokens))),
            memory=warm.memory,
            disk=self._parked.covered_tokens(session, tokens),
        )

    async def forget(self, sessions: Sequence[int]) -> None:
        """Erases what is kept of these sessions' tokens in the worker and on the disk. Their jobs must be over.

        Raises StoreUnavailableError if the disk does not let a file go.
        """
        self._warm.forget(sessions)
        self._parked.forget(sessions)
        if self._link.is_serving:
            request, answer = self._erasures.ask(sessions)
            self._link.send(request)
            # No deadline: a worker that does not answer is killed, and a dead one keeps nothing in memory.
            await answer
        if self._settings.kv_files is not None:
            # Again, whatever the worker said: it may have died before it came to that.
            await erase_from_disk(Path(self._settings.kv_files.directory), sessions)

    def set_log_filter(self, directive: str) -> None:
        """For this worker and every later one."""
        self._log_filter = directive
        self._link.send_early(SetLogFilter(directive))

    def pin(self, session: int, deadline_unix_ms: int) -> None:
        """For this worker. A later one has nothing that could be held, until a job of the session tells it again."""
        self._jobs.pin(session, deadline_unix_ms)
        self._link.send(SetPin(session, deadline_unix_ms))

    def set_background_rate(self, divisor: int) -> None:
        """For this worker and every later one."""
        self._background_divisor = divisor
        self._link.send(SetBackgroundRate(divisor))

    def statistics(self) -> ModelStatistics:
        return model_statistics(
            self._jobs,
            self._totals,
            is_ready=self.is_ready,
            failures=self._restarts.failures,
            respawns=self._restarts.respawns,
            facts=self._facts,
            tick=self._flight.status(self._clock.monotonic(), is_busy=self._link.is_serving and self._jobs.has_lanes),
            parked=self._parked,
            warm=self._warm,
        )

    def _refusal(self) -> SuperfluidError | None:
        if self._is_draining:
            return ShuttingDownError("The server is shutting down.")
        if self._restarts.is_given_up:
            self._restarts.job_refused()
            return _failed_error()
        if self._facts is None:
            return ModelLoadingError("The model is still being loaded.")
        # The worker's queue has the same bound; refusing here lets the caller be told before its stream has begun.
        if len(self._jobs) >= self._settings.lanes + self._settings.max_queue:
            return QueueFullError("Too many requests are waiting.")
        return None

    # ---- life

    async def start(self) -> None:
        """Spawns the worker and returns when the model is loaded. Raises the leaf that says why it could not be.

        After a failure nothing runs any more; the supervisor cannot be started again.
        """
        assert self._task is None, "started twice"
        self._first_ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._supervise(), name="worker supervisor")
        await asyncio.shield(self._first_ready)

    async def drain(self, timeout_seconds: float) -> bool:
        """Refuses new jobs and waits for the others to end. Whether they all did within the time."""
        self._is_draining = True
        self._note_if_empty()
        try:
            await asyncio.wait_for(self._emptied.wait(), timeout_seconds)
        except TimeoutError:
            return False
        return True

    async def stop(self, grace_seconds: float = STOP_SECONDS) -> None:
        """Ends the worker (killed after ``grace_seconds``) and fails the jobs that are left. Idempotent."""
        self._is_draining = self._is_stopping = True
        self._restarts.stop()
        if self._task is None:
            return
        self._link.stop()
        done, _ = await asyncio.wait({self._task}, timeout=grace_seconds)
        if not done:
            self._link.kill("did not stop in time")
            await asyncio.wait({self._task})

    async def _supervise(self) -> None:
        """The life of all workers, one after the other. Ends when stopped or when the first load fails."""
        try:
            while not self._is_stopping:
                error = await self._run_worker()
                if self._is_stopping:
                    break
                if self._facts is None:
                    self._settle_first_ready(error)
                    return
                await self._after_failure(error)
        except Exception as error:
            # Supervision point: whatever went wrong here, nobody may wait for a worker that will not come.
            _logger.exception("the worker's supervisor failed")
            self._restarts.give_up()
            self._jobs.fail_all(_failed_error())
            self._settle_first_ready(WorkerFailedError(f"The worker's supervisor failed: {error}"))
        finally:
            self._worker_gone()
            self._jobs.fail_all(ShuttingDownError("The server is shutting down."))
            self._note_if_empty()
            self._settle_first_ready(ShuttingDownError("The server is shutting down."))

    def _settle_first_ready(self, error: SuperfluidError | None) -> None:
        if self._first_ready is not None and not self._first_ready.done():
            if error is None:
                self._first_ready.set_result(None)
            else:
                self._first_ready.set_exception(error)
                self._first_ready.exception()  # a start that was cancelled will not look

    async def _after_failure(self, error: SuperfluidError) -> None:
        is_tried_again = self._restarts.failed()
        facts = {"reason": error.message, "failures": self._restarts.failures, "jobs": len(self._jobs)}
        if is_tried_again:
            _logger.warning("the worker was lost; starting another", extra={"fields": facts})
        else:
            _logger.error("the worker was lost too often; its jobs fail", extra={"fields": facts})
            await self._give_up()
        self._restarts.respawns += 1

    async def _give_up(self) -> None:
        """Fails everything and waits for a reason to try again."""
        self._restarts.give_up()
        self._jobs.fail_all(_failed_error())
        self._note_if_empty()
        if not await self._restarts.wait_for_reason():
            _logger.info("trying to start the worker again")

    # ---- one worker

    async def _run_worker(self) -> SuperfluidError:
        """From spawning to the end of one worker; says why it ended."""
        self._load_error = None
        try:
            error = await self._link.run(lambda: Load(self._settings, self._log_filter))
        except WorkerFailedError as not_started:
            return not_started
        self._totals.worker_lost()
        self._parked.worker_lost()
        self._warm.worker_lost()
        self._worker_gone()
        self._jobs.worker_lost()
        self._note_if_empty()
        return self._load_error or error

    def _worker_gone(self) -> None:
        """Whoever waits for an answer of it is told. Idempotent."""
        self.adapters.worker_lost()
        self._sizings.fail_all(WorkerFailedError("The model's process ended while it looked at the image."))
        self._erasures.worker_lost()

    def _pulse(self) -> Pulse:
        if self.adapters.is_loading:
            return "loading"
        return "busy" if len(self._jobs) > 0 or len(self._sizings) > 0 else "idle"

    # ---- messages; called by the socket's protocol

    def _on_message(self, message: FromWorker) -> None:
        match message:
            case Tick():
                self._on_tick_message(message)
            case KvSpan():
                if self._on_kv_span is not None:
                    self._on_kv_span(message)
            case Placed(job_ids):
                self._jobs.placed(job_ids)
            case TickStarted():
                self._flight.started(self._clock.monotonic(), message)
            case Pong():
                self._watchdog.heard()
            case LogRecord():
                if self._on_log is not None:
                    self._on_log(message)
            case KvChanged():
                self._parked.take(message)
            case PrefixesChanged():
                self._warm.take(message)
            case Forgotten():
                self._erasures.answered(message.request_id)
            case Rejected():
                self._jobs.fail(message.job_id, rejection_error(message))
                self._note_if_empty()
            case ImageStep():
                self._watchdog.image_begun()
            case ImageSized():
                self._watchdog.heard()
                self._sizings.answered(message)
            case AdapterLoaded():
                self.adapters.answered(message)
            case Ready():
                self._on_ready(message.facts)
            case LoadFailed():
                self._load_error = load_error(message)
            case _:
                assert_never(message)

    def _on_tick_message(self, tick: Tick) -> None:
        record = tick.record
        self._watchdog.ticked(record.wall_seconds)
        self._totals.add(record)
        self._flight.ended(self._clock.monotonic(), record)
        if tick.spans and self._on_spans is not None:
            self._on_spans(tick.spans)
        if record.decode_lanes or record.prefill_tokens:
            self._restarts.progressed()
        for output in tick.outputs:
            broken_job = self._jobs.deliver(output)
            if broken_job is not None:
                self._link.send(Cancel(broken_job))
        if self._is_draining:
            self._note_if_empty()
        if self._on_tick is not None:
            self._on_tick(record)

    def _on_ready(self, facts: ModelFacts) -> None:
        self._facts = facts
        self._restarts.loaded()
        self._link.loaded()
        if self._background_divisor > 1:
            self._link.send(SetBackgroundRate(self._background_divisor))
        loads, unloads = self.adapters.for_new_worker(self._jobs.adapters())
        jobs = [Submit(self._jobs.to_send(job_id)) for job_id in self._jobs.job_ids()]
        messages: list[ToWorker] = [*loads, *jobs, *unloads]
        for message in messages:
            self._link.send(message)
        self._settle_first_ready(None)

    def _note_if_empty(self) -> None:
        if self._is_draining and len(self._jobs) == 0:
            self._emptied.set()


def _failed_error() -> WorkerFailedError:
    return WorkerFailedError("The model's process failed repeatedly; try again in a moment.")
