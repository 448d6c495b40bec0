"""The composition root: builds the daemon from its configuration, runs it, stops it in order. The daemon process."""

import asyncio
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from superfluid.banner import announce_loading, announce_ready, base_url, guessing_lines
from superfluid.clock import SystemClock
from superfluid.config import ServeConfig
from superfluid.descriptors import raise_descriptor_limit
from superfluid.domain.statistics import InfillCounters, ModelStatistics
from superfluid.engine_settings import uses_fake_engine
from superfluid.http.app import create_app
from superfluid.http.guards import open_door_notice
from superfluid.http.server import HttpServer, bind_listener, listener_address
from superfluid.infill_stack import InfillStack
from superfluid.model_search import search_infill_model, search_model
from superfluid.model_stack import ModelStack
from superfluid.monitor_link import MonitorLink
from superfluid.session_stack import SessionStack
from superfluid.sessions.counter import ReplyCounter
from superfluid.sessions.metering import CompletionMeter
from superfluid.sessions.single_model import SingleModel
from superfluid.telemetry.access_log import log_generation
from superfluid.telemetry.logs import DaemonLog, emit_remote, set_up_logging
from superfluid.telemetry.metrics import MetricsPage, node_name
from superfluid.telemetry_stack import TelemetryStack
from superfluid.tui.protocol import Hello, Sample
from superfluid.worker.protocol import LogRecord
from superfluid.worker.statistics import no_statistics

logger = logging.getLogger("superfluid_daemon")

_T = TypeVar("_T")
_DRAIN_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_TEXT_THREADS = 2


def serve(config: ServeConfig) -> int:
    """Runs the daemon until it is told to stop; the exit code. Raises what keeps it from starting."""
    # The port first: a taken one must not cost a pull or a load.
    listener = bind_listener(config.http.host, config.http.port)
    raise_descriptor_limit()
    logs = set_up_logging(config.log)
    try:
        import uvloop

        return uvloop.run(_Daemon(config, logs).run(listener))
    finally:
        listener.close()
        logs.close()


class _Daemon:
    """What lives as long as the event loop."""

    def __init__(self, config: ServeConfig, logs: DaemonLog) -> None:
        self._config = config
        self._logs = logs
        self._models = SingleModel()
        self._infill_counters = InfillCounters()
        self._meter = CompletionMeter(config.completion, time.monotonic, self._infill_counters)
        self._model: ModelStack | None = None
        self._infill: InfillStack | None = None
        self._metrics = MetricsPage(
            self._statistics,
            lambda: logs.dropped_lines,
            node_name(os.environ, socket.gethostname()),
            lambda: None if self._sessions is None else self._sessions.statistics(),
            lambda: None if self._telemetry is None else self._telemetry.span_counts(),
            self._infill_counters,
            lambda: next(iter(self._models.list_models()), None),
            lambda: None if self._infill is None else (self._infill.model_id, self._infill.statistics()),
        )
        self._telemetry: TelemetryStack | None = None
        self._monitor: MonitorLink | None = None
        self._started = time.monotonic()
        self._executor = ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="text")
        self._sessions: SessionStack | None = None
        self._counter = ReplyCounter()
        self._stop_requests = 0
        self._server: HttpServer | None = None
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()

    async def run(self, listener: socket.socket) -> int:
        app = create_app(
            self._models,
            config=self._config.http,
            metrics=self._metrics,
            record_generation=log_generation,
            statistics=self._statistics,
            session_of=self._session_of,
            meter=self._meter,
            adapters=self._models,
        )
        if self._config.sessions.directory is not None:
            self._sessions = SessionStack(self._config.sessions, clock=SystemClock())
        self._telemetry = self._start_telemetry()
        host, port = listener_address(listener)
        if (notice := open_door_notice(self._config.http.host, has_key=self._config.http.has_key)) is not None:
            logger.log(*notice)
        self._server = HttpServer(app, listener, drain_timeout_seconds=self._config.drain_timeout_seconds)
        loop = asyncio.get_running_loop()
        for number in _DRAIN_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup asks to go on
            loop.add_signal_handler(signal.SIGHUP, self._on_signal, signal.SIGHUP)
        serving = loop.create_task(self._server.serve(), name="http")
        try:
            is_loaded = await self._load(host, port)
            if is_loaded:
                await self._stopping.wait()
                await self._drain(serving)
        finally:
            self._server.stop(at_once=True)
            await asyncio.gather(serving, return_exceptions=True)
            for stack in (self._model, self._infill):
                if stack is not None:
                    await stack.stop()
            if self._sessions is not None:
                await self._sessions.close()
            await self._telemetry.stop()
            if self._monitor is not None:
                await self._monitor.close()
            self._executor.shutdown(wait=False, cancel_futures=True)
        return 0

    def _start_telemetry(self) -> TelemetryStack:
        telemetry = TelemetryStack(
            self._config.otlp,
            node=node_name(os.environ, socket.gethostname()),
            store_id=None if self._sessions is None else self._sessions.store_id,
            model=lambda: next((model.model_id for model in self._models.list_models()), ""),
        )
        self._counter.observer = telemetry.tracer
        telemetry.start(self._metrics)
        return telemetry

    async def _drain(self, serving: "asyncio.Task[None]") -> None:
        """Both front ends at the same time; a second Ctrl-C ends the wait."""
        draining: list[asyncio.Future[Any]] = [serving]
        if self._sessions is not None:
            seconds = self._config.drain_timeout_seconds
            draining.append(asyncio.ensure_future(self._sessions.drain(seconds, at_once=False)))
        hurrying = asyncio.ensure_future(self._hurrying.wait())
        finished = asyncio.gather(*draining, return_exceptions=True)
        waiting: set[asyncio.Future[Any]] = {finished, hurrying}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if not finished.done() and self._sessions is not None:
            await self._sessions.drain(0.0, at_once=True)

    # ---- start

    async def _load(self, host: str, port: int) -> bool:
        """Finds and loads the model; false if the daemon was told to stop meanwhile."""
        config = self._config
        announce_loading(sys.stderr, config.model.model)
        file = None
        if not uses_fake_engine(config.model):
            file = await self._unless_stopped(search_model(config))
        if self._stopping.is_set() or not await self._find_infill():
            return False
        assert self._telemetry is not None
        model = self._model = ModelStack(
            config,
            file,
            counter=self._counter,
            executor=self._executor,
            infill_counters=self._infill_counters,
            tracer=self._telemetry.tracer,
            media_directory=None if self._sessions is None else self._sessions.media_path,
            on_worker_log=self._on_worker_log,
            infill=None if self._infill is None else self._infill.infill,
        )
        self._models.add(model.service, model.adapters)
        if self._sessions is not None:
            await self._sessions.serve(
                model.supervisor,
                counter=self._counter,
                executor=self._executor,
                metrics_text=lambda: self._metrics()[0].decode(),
                set_log_level=self._set_log_level,
                infill=model.infill,
                meter=self._meter,
                drain_seconds=config.drain_timeout_seconds,
            )
        started = time.monotonic()
        if self._infill is not None:
            # The small one first: the other's window is fitted to the memory that is left.
            await self._unless_stopped(asyncio.ensure_future(self._infill.start()))
        await self._unless_stopped(asyncio.ensure_future(model.start()))
        if self._stopping.is_set():
            return False
        text = await model.load_text()
        model.service.attach_text(
            text, None if self._sessions is None else self._sessions.attach_text(model.session_text)
        )
        logger.info(
            "the model is loaded",
            extra={"fields": {"model": model.service.model_id, "seconds": round(time.monotonic() - started, 2)}},
        )
        # What the first long session needs takes a tenth of a second to import: not while its client waits.
        importlib.import_module("superfluid.native.varint_arrays")
        _collect_rarely()
        banner = announce_ready(
            sys.stdout,
            model.service,
            host=host,
            port=port,
            has_key=config.http.has_key,
            session_lines=[
                *guessing_lines(config.model, model.service.facts),
                *([] if self._sessions is None else self._sessions.banner_lines()),
            ],
        )
        if config.has_monitor:
            await self._open_monitor(model, base_url(host, port), banner)
        return True

    async def _find_infill(self) -> bool:
        """Makes the stack of another model that fills in, if there is to be one; false as ``_load``."""
        config = self._config
        if config.completion.model is None:
            return True
        file = None
        if not uses_fake_engine(config.model):
            file = await self._unless_stopped(search_infill_model(config))
            if self._stopping.is_set():
                return False
        self._infill = InfillStack(
            config,
            file,
            counter=self._counter,
            executor=self._executor,
            counters=self._infill_counters,
            on_worker_log=self._on_worker_log,
        )
        return True

    async def _unless_stopped(self, work: "asyncio.Future[_T]") -> _T | None:
        """The result of ``work``, or ``None`` as soon as the daemon is told to stop."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        waiting: set[asyncio.Future[Any]] = {work, stopping}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if work.done():
            return work.result()
        work.cancel()
        return None

    # ---- stop

    def _on_signal(self, number: signal.Signals) -> None:
        """The first signal drains. A second Ctrl-C stops at once; a second SIGTERM means the same as the first."""
        self._stop_requests += 1
        self._counter.is_draining = True
        self._stopping.set()
        assert self._server is not None
        if self._stop_requests > 1 and number == signal.SIGINT:
            logger.warning("stopping at once")
            self._hurrying.set()
            self._server.stop(at_once=True)
            return
        if self._stop_requests == 1:
            seconds = self._config.drain_timeout_seconds
            logger.info(f"draining: running requests have {seconds:g} s; press Ctrl-C again to stop at once")
        self._server.stop()

    def _set_log_level(self, directive: str) -> None:
        self._logs.replace_filter(directive)
        if self._model is not None:
            self._model.supervisor.set_log_filter(directive)
        if self._infill is not None:
            self._infill.supervisor.set_log_filter(directive)

    async def _open_monitor(self, model: ModelStack, url: str, banner: str) -> None:
        """Serving does without it if it cannot be had."""
        facts = model.service.facts
        hello = Hello(
            model=model.service.model_id,
            engine=facts.engine,
            node=node_name(os.environ, socket.gethostname()),
            url=url,
            banner=banner,
            lanes=facts.lanes,
            window_tokens=facts.window_tokens,
            tick_target_seconds=model.settings.scheduling.tick_target_seconds,
        )
        sessions, log = self._config.sessions.directory, self._config.log
        directory = sessions / "logs" if sessions is not None and log.directory is None else None
        monitor = MonitorLink(
            self._logs,
            hello,
            self._sample,
            lambda: self._on_signal(signal.SIGINT),
            log_directory=directory,
        )
        try:
            await monitor.open()
        except (OSError, termios.error) as error:
            logger.warning("the monitor could not be opened; the server does without", exc_info=error)
            return
        self._monitor = monitor

    def _sample(self) -> Sample:
        statistics = self._statistics()
        return Sample(
            uptime_seconds=time.monotonic() - self._started,
            statistics=statistics,
            sessions=[self._session_of(lane.job_id) or 0 for lane in statistics.lanes],
            is_draining=self._stop_requests > 0,
            dropped_lines=self._logs.dropped_lines,
        )

    def _on_worker_log(self, record: LogRecord) -> None:
        """A worker knows jobs. The sessions of requests that named none are known here only."""
        job = record.fields.get("job")
        session = self._session_of(job) if isinstance(job, int) else None
        if session is not None:
            fields = {"session": session} | {name: value for name, value in record.fields.items() if name != "session"}
            record = msgspec.structs.replace(record, fields=fields)
        emit_remote(record)

    def _session_of(self, job_id: int) -> int | None:
        facts = self._counter.facts(job_id)
        return None if facts is None else facts.session

    def _statistics(self) -> ModelStatistics:
        return no_statistics() if self._model is None else self._model.supervisor.statistics()


def _collect_rarely() -> None:
    """From here on garbage collections are rare, and spare what lives as long as the daemon.

    A collection is a pause on a core that the engine computes on, so that all streams wait for it: at the interpreter's
    default rate they cost 8 % of the throughput of one stream on two cores.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
