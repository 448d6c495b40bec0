"""The daemon's end of the worker that there is at the moment: its start, its pulse, its end. On the event loop."""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from superfluid.clock import Clock
from superfluid.errors import SuperfluidError
from superfluid.worker.output import DEBUG_PREFIXES
from superfluid.worker.process import WorkerProcess
from superfluid.worker.protocol import FromWorker, Load, Ping, Stop, ToWorker
from superfluid.worker.refusals import exit_error
from superfluid.worker.watchdog import Watchdog

Pulse = Literal["busy", "idle", "loading"]

_output_logger = logging.getLogger("superfluid_daemon::worker")


class WorkerLink:
    """One worker at a time. ``on_message`` and ``pulse`` are called on the loop; ``pulse`` says what the worker is at.

    While that is ``loading`` (a file on a slow disk), silence is no sign of trouble.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        watchdog: Watchdog,
        clock: Clock,
        *,
        on_message: Callable[[FromWorker], None],
        pulse: Callable[[], Pulse],
    ) -> None:
        self._command = command
        self._environment = environment
        self._watchdog = watchdog
        self._clock = clock
        self._on_message = on_message
        self._pulse = pulse
        self._process: WorkerProcess | None = None
        self._is_serving = False
        self._is_stopping = False
        self._pings = 0

    @property
    def is_serving(self) -> bool:
        """Whether there is a worker that has loaded the model."""
        return self._is_serving

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def loaded(self) -> None:
        """The worker has said that it is ready."""
        assert self._process is not None
        self._is_serving = True
        self._watchdog.restart(self._clock.monotonic())

    def send(self, message: ToWorker) -> bool:
        """False if there is no worker that serves."""
        return self._is_serving and self.send_early(message)

    def send_early(self, message: ToWorker) -> bool:
        """To one that still loads, too. False if there is none."""
        if self._process is None:
            return False
        self._process.send(message)
        return True

    def stop(self) -> None:
        """Asks the worker to end. No other is started."""
        self._is_stopping = True
        if not self.send(Stop()):
            self.kill("was stopped while loading")

    def kill(self, fault: str) -> None:
        """``fault`` says why. Without effect where there is no worker."""
        if self._process is not None:
            self._process.kill(fault)

    async def run(self, load: Callable[[], Load]) -> SuperfluidError:
        """From spawning to the end of one worker, whose first message is ``load``'s; says why it ended.

        Raises WorkerFailedError if none can be started.
        """
        self._process = process = await WorkerProcess.spawn(
            self._command, self._environment, self._on_message, _log_line
        )
        if self._is_stopping:
            process.kill("was stopped while loading")
        try:
            process.send(load())
            # No deadline while it loads: a big file on a slow disk takes what it takes, and ``stop`` kills.
            while not await process.wait_lost(self._watchdog.check_seconds):
                if self._is_serving:
                    self._check_pulse(process)
        except Exception:
            # A bug of ours. The worker must not outlive whoever looks after it.
            process.kill("was left alone")
            await process.end()
            self._process, self._is_serving = None, False
            raise
        worker_exit = await process.end()
        was_loading = not self._is_serving
        self._process = None
        self._is_serving = False
        return exit_error(worker_exit, was_loading=was_loading)

    def _check_pulse(self, process: WorkerProcess) -> None:
        now, pulse = self._clock.monotonic(), self._pulse()
        if pulse == "loading":
            self._watchdog.restart(now)
            return
        match self._watchdog.check(now, is_busy=pulse == "busy"):
            case "ping":
                self._pings += 1
                process.send(Ping(self._pings))
            case "wedged":
                process.kill("stopped answering")
            case "fine":
                pass


def _log_line(line: str) -> None:
    """A worker's own output: into the log, except for what somebody has asked to see as it is."""
    if line.startswith(DEBUG_PREFIXES):
        print(line, file=sys.stderr, flush=True)
    else:
        _output_logger.info("%s", line)
