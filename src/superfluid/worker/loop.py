"""The worker's tick loop: take messages, plan, execute, report; asleep while there is nothing to do. Main thread."""

import contextlib
import logging
from collections.abc import Callable
from typing import Final, assert_never

from superfluid.clock import Clock
from superfluid.domain.job import Job
from superfluid.engine.interface import Engine
from superfluid.errors import AdapterNotFoundError, SuperfluidError
from superfluid.kvfiles.service import KvErased, KvEvent, KvNotWritten, KvOpened, KvRead, KvRemoved, KvWritten
from superfluid.scheduling.plan import StepOutcome, StepPlan
from superfluid.scheduling.pressure import PressureLevel
from superfluid.scheduling.scheduler import Scheduler, SchedulerSettings
from superfluid.worker.adapters import WorkerAdapters
from superfluid.worker.debug import tick_line
from superfluid.worker.draft_model import DraftModel
from superfluid.worker.executor import Execution, Executor
from superfluid.worker.held_prefixes import prefixes_changed
from superfluid.worker.idle_memory import IdleMemory
from superfluid.worker.images import WorkerImages
from superfluid.worker.inbox import Inbox
from superfluid.worker.interruption import Interruption
from superfluid.worker.kv_catalog import KvFileThreads
from superfluid.worker.kv_files import kept_kinds
from superfluid.worker.memory_watch import MemoryWatch
from superfluid.worker.parking import Parking
from superfluid.worker.protocol import (
    Cancel,
    Forget,
    FromWorker,
    KvSpan,
    Load,
    LoadAdapter,
    Ping,
    Placed,
    Pong,
    Rejected,
    SetBackgroundRate,
    SetLogFilter,
    SetPin,
    SizeImage,
    Stop,
    Submit,
    ToWorker,
    UnloadAdapter,
)
from superfluid.worker.settings import EngineSettings
from superfluid.worker.thread_control import ThreadControl
from superfluid.worker.threads import CoreReading, ThreadPolicy
from superfluid.worker.ticks import TickReporter, TickTimes, tick_started

TICKS_BETWEEN_RESTS: Final = 4096
LONG_TICK_SECONDS: Final = 0.05
"""A tick that will take this long is announced."""
LANES_INTERVAL_SECONDS: Final = 0.2
"""How often the state of all lanes is told."""

_logger = logging.getLogger("superfluid_daemon::worker")
_scheduler_logger = logging.getLogger("superfluid_daemon::scheduler")


class TickLoop:
    """Serves one loaded engine. ``send`` may block; what it raises ends the loop. ``rest`` is called where a pause of a
    few milliseconds hurts least: before the loop falls asleep, and between two ticks if it never does. ``debug`` gets a
    line for each tick."""

    def __init__(
        self,
        engine: Engine,
        settings: EngineSettings,
        inbox: Inbox,
        send: Callable[[FromWorker], None],
        *,
        clock: Clock,
        set_log_filter: Callable[[str], None] = lambda _: None,
        rest: Callable[[], object] = lambda: None,
        kv_files: KvFileThreads | None = None,
        debug: Callable[[str], None] | None = None,
        read_pressure: Callable[[], PressureLevel] | None = None,
        debug_pressure: Callable[[str], None] | None = None,
        draft_model: DraftModel | None = None,
        cpus: int | None = None,
        read_cores: Callable[[], CoreReading | None] = lambda: None,
        read_waited: Callable[[], float | None] = lambda: None,
    ) -> None:
        facts = engine.facts
        self._scheduler = Scheduler(
            SchedulerSettings(
                lanes=facts.lanes,
                window_tokens=facts.window_tokens,
                vocabulary_tokens=facts.vocabulary_tokens,
                max_queue=settings.max_queue,
                host_cache_bytes=settings.host_cache_bytes,
                can_truncate=facts.can_truncate,
                replays_replies=not facts.flash_attention,
                rules=settings.scheduling,
                memory=settings.memory,
                speculation=settings.speculation,
                micro_batch_tokens=facts.micro_batch_tokens,
            )
        )
        self._engine = engine
        self._adapters = WorkerAdapters(engine, self._scheduler.has_adapter)
        self._images = WorkerImages(engine, settings.media_directory, send)
        self._interruption = Interruption(engine, clock)
        self._executor = Executor(engine, self._scheduler, clock, self._images, self._interruption, draft_model)
        self._threads: ThreadControl | None = None
        if settings.adapts_threads and facts.threads > 1:
            self._threads = ThreadControl(
                ThreadPolicy(facts.threads, cpus),
                self._executor.set_threads,
                self._interruption,
                clock,
                read_cores=read_cores,
                read_waited=read_waited,
            )
        self._is_traced = settings.is_traced
        self._parking = Parking(
            kv_files,
            kept_kinds(settings.kv_files),
            self._scheduler.parks,
            self._scheduler.copies,
            self._executor,
            send,
            clock=clock,
            window_tokens=facts.window_tokens,
            is_traced=settings.is_traced,
        )
        self._memory = MemoryWatch(
            self._scheduler,
            clock,
            read_pressure=read_pressure if settings.memory.watches_system else None,
            debug=debug_pressure,
        )
        self._idle_memory = IdleMemory(engine.spare_memory, clock)
        self._reporter = TickReporter()
        self._inbox = inbox
        inbox.on_arrival = self._interruption.arrived
        self._send = send
        self._clock = clock
        self._set_log_filter = set_log_filter
        self._rest = rest
        self._debug = debug
        self._is_stopped = False
        self._stream_interval_seconds = settings.stream_interval_seconds
        self._reported_at = 0.0
        self._lanes_told_at = 0.0
        self._pause_seconds = 0.0

    def check_integrity(self) -> None:
        """Raises AssertionError if scheduler, host cache or engine disagree. For tests, between ticks."""
        self._scheduler.check_integrity()
        self._executor.check_integrity()
        self._parking.check_integrity()

    def run(self) -> None:
        """Returns when ``Stop`` came. Everything else that ends it is an exception, and a bug."""
        with contextlib.nullcontext() if self._threads is None else self._threads.watching():
            self._run()

    def _run(self) -> None:
        ticks = 0
        while True:
            self._take_messages()
            if self._is_stopped:
                self._parking.close()
                return
            is_busy = self.tick()
            # First the memory, piece by piece: whoever comes meanwhile does not wait for an export into new memory.
            is_busy |= self._idle_memory.work(is_busy=is_busy or not self._inbox.is_empty) or self.park_one()
            ticks += 1
            if not is_busy or ticks % TICKS_BETWEEN_RESTS == 0:
                self._rest()
            if not is_busy or self._pause_seconds:
                self._sleep(self._pause_seconds or self._seconds_to_wait())

    def _seconds_to_wait(self) -> float | None:
        times = [part.seconds_to_wait() for part in (self._parking, self._memory, self._idle_memory)]
        return min((seconds for seconds in times if seconds is not None), default=None)

    def park_one(self) -> bool:
        """Between two ticks: has one lane saved, if its time has come and no message waits."""
        if not self._inbox.is_empty or not self._parking.park_one(is_busy=self._scheduler.is_running):
            return False
        self._memory.changed()
        return True

    def take(self, message: ToWorker | KvEvent) -> None:
        """Acts on one message; what it starts shows in the next tick."""
        match message:
            case Submit(job):
                self._submit(job)
            case Cancel(job_id):
                self._cancel(job_id)
            case Ping(sequence):
                self._send(Pong(sequence))
            case SetLogFilter(directive):
                self._set_log_filter(directive)
            case SetBackgroundRate(divisor):
                self._scheduler.set_background_rate(divisor)
            case SizeImage():
                self._send(self._images.size(message))
            case Stop():
                self._is_stopped = True
            case Forget():
                self._scheduler.pins.forget(message.sessions)
                self._parking.forget(message)
                self._memory.changed()
                self._tell_prefixes()
            case SetPin(session, deadline_unix_ms):
                self._memory.pin(session, deadline_unix_ms / 1000)
            case LoadAdapter():
                self._send(self._adapters.load(message))
            case UnloadAdapter(adapter):
                self._adapters.unload(adapter)
                self._free_adapters()
            case KvOpened() | KvWritten() | KvNotWritten() | KvRead() | KvRemoved() | KvErased():
                self._parking.take(message)
            case Load():
                _logger.error("a second model was to be loaded; a worker has one")
            case _:
                assert_never(message)

    def tick(self) -> bool:
        """One plan, carried out and reported. False if there was nothing to do."""
        begun_unix, begun = self._clock.unix(), self._clock.monotonic()
        self._parking.before_plan()
        self._scheduler.memory_at_hand(self._engine.spare_memory.ready_bytes)
        self._memory.before_plan(begun_unix, begun)
        plan = self._scheduler.plan(begun_unix)
        if plan.eviction_look is not None:
            self._memory.evicted(plan.eviction_look)
        if plan.is_system_short:
            self._engine.spare_memory.clear()
        self._parking.after_plan()
        self._pause_seconds = plan.pause_seconds
        if plan.preemptions:
            self._log_preemptions(plan)
        planned = self._clock.monotonic()
        if plan.is_empty and not self._reporter.has_news:
            self._scheduler.complete(plan, StepOutcome())
            if self._memory.take_changes():
                self._report(plan, Execution(), TickTimes(begun_unix, begun, planned, planned))
            return plan.pause_seconds > 0
        is_long = plan.chunk is not None and plan.chunk.expected_seconds >= LONG_TICK_SECONDS
        if not plan.is_empty and (self._reporter.is_urgent or (is_long and self._reporter.has_news)):
            # Jobs that were cancelled have left their lanes, which is told at once; and tokens do not wait for a long
            # chunk.
            times = TickTimes(begun_unix, begun, planned, planned)
            self._report(StepPlan(), Execution(), times, tells_lanes=self._reporter.is_urgent)
        if is_long:
            self._send(tick_started(plan))
        if plan.placements:
            self._send(Placed([placement.job_id for placement in plan.placements]))
        if self._threads is not None:
            self._threads.before_tick()
        execution = self._executor.execute(plan)
        restores = self._restores(plan, execution) if self._is_traced else ()
        result = self._scheduler.complete(plan, execution.outcome())
        times = TickTimes(begun_unix, begun, planned, self._clock.monotonic())
        self._reporter.completed(plan, execution, result, times)
        if self._threads is not None:
            self._threads.after_tick(plan, execution)
        if self._debug is not None and not plan.is_empty:
            self._debug(tick_line(plan, execution, times, self._scheduler))
        if self._is_traced and not plan.is_empty:
            sequence = self._reporter.trace(plan, self._scheduler.statistics(), times)
            for session, covered, size_bytes in restores:
                seconds = execution.restore_seconds
                self._send(KvSpan("restore", begun_unix, seconds, session, covered, size_bytes, sequence))
        for retired in result.retired:
            self._executor.forget(retired.job_id)
        if result.retired:
            self._free_adapters()
        self._parking.after_tick(plan, execution)
        # Further tokens of running replies can wait for the next tick's: every message costs the daemon and its clients
        # time on the cores that the engine computes on.
        is_due = times.done - self._reported_at >= self._stream_interval_seconds
        if is_due or self._reporter.is_urgent or execution.faults:
            self._report(plan, execution, times)
        return True

    def _restores(self, plan: StepPlan, execution: Execution) -> list[tuple[int, int, int]]:
        """Session, tokens and bytes of what came from the disk into lanes. While its jobs are still on them."""
        return [
            (self._scheduler.sequence(job_id).job.session, covered, size_bytes)
            for job_id, covered, size_bytes in self._parking.restored(plan, execution)
        ]

    def _log_preemptions(self, plan: StepPlan) -> None:
        for preempted in plan.preemptions:
            fields = {
                **({"session": preempted.session} if preempted.session else {}),
                "job": preempted.job_id,
                "lane": preempted.lane,
                "class": int(preempted.qos),
                "produced": preempted.produced_tokens,
            }
            _scheduler_logger.info("a lane was preempted", extra={"fields": fields})

    def _report(self, plan: StepPlan, execution: Execution, times: TickTimes, *, tells_lanes: bool = False) -> None:
        self._reported_at = times.done
        for job_id, message in execution.faults.items():
            self._send(Rejected(job_id, "engine_fault", message))
        statistics = self._scheduler.statistics()
        is_due = times.done - self._lanes_told_at >= LANES_INTERVAL_SECONDS
        are_lanes_due = tells_lanes or is_due or self._scheduler.is_idle
        if are_lanes_due:
            self._lanes_told_at = times.done
        lanes = self._scheduler.lane_views() if are_lanes_due else None
        self._send(self._reporter.report(plan, execution, statistics, times, lanes))
        if are_lanes_due:
            self._tell_prefixes()

    def _tell_prefixes(self) -> None:
        """With the lanes, and so not in every tick."""
        changed = prefixes_changed(self._scheduler.holdings, can_truncate=self._engine.facts.can_truncate)
        if changed is not None:
            self._send(changed)

    def _take_messages(self) -> None:
        self._interruption.taking_messages()
        while not self._is_stopped and not self._inbox.is_empty:
            self._sleep(0)

    def _sleep(self, timeout_seconds: float | None) -> None:
        """Until a message comes, which it takes, or the time is over."""
        message = self._inbox.get(timeout_seconds)
        if message is not None:
            self.take(message)

    def _cancel(self, job_id: int) -> None:
        retired = self._scheduler.cancel(job_id)
        if retired is not None:
            self._executor.forget(job_id)
            self._reporter.retire(retired)
            self._free_adapters()

    def _free_adapters(self) -> None:
        for adapter in self._adapters.free_unwanted():
            entries, lanes = self._scheduler.forget_adapter(adapter)
            for entry_id in entries:
                self._executor.host_cache.drop(entry_id)
            for lane in lanes:
                self._executor.clear(lane)
            self._parking.emptied(lanes)

    def _submit(self, job: Job) -> None:
        try:
            if not self._adapters.can_use(job.adapter):
                raise AdapterNotFoundError("the adapter was unloaded before the request could begin", param="model")
            retired = self._scheduler.submit(job)
        except SuperfluidError as error:
            self._send(Rejected(job.job_id, error.code, error.message))
            return
        self._reporter.submitted(job)
        if retired is not None:
            self._reporter.retire(retired)
