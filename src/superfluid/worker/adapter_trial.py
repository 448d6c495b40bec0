"""Has a LoRA adapter loaded by a worker that may die of it, before the one that serves is asked to. In the daemon."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from superfluid.domain.speculation import NO_SPECULATION
from superfluid.errors import AdapterRefusedError, SuperfluidError, WorkerFailedError
from superfluid.worker.process import WORKER_COMMAND, WorkerExit, WorkerProcess
from superfluid.worker.protocol import AdapterLoaded, FromWorker, Load, LoadAdapter, LoadFailed, Stop
from superfluid.worker.settings import EngineSettings

TRIAL_SECONDS: Final = 600.0
_WINDOW_TOKENS: Final = 512
_ADAPTER: Final = 1


class AdapterTrial:
    """``settings`` and ``environment`` are those of the worker that serves. One trial at a time; others wait."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        environment: Mapping[str, str],
        command: Sequence[str] = WORKER_COMMAND,
        timeout_seconds: float = TRIAL_SECONDS,
    ) -> None:
        self._settings = trial_settings(settings)
        self._environment = environment
        self._command = command
        self._timeout_seconds = timeout_seconds
        self._turn = asyncio.Lock()

    async def fingerprint(self, path: str) -> str:
        """What tells the file that was tried from any other under its name. When this is cancelled the process ends.

        Raises AdapterRefusedError: it does not fit, or whoever loads it dies or never comes back; WorkerFailedError if
        no process can be had to try it.
        """
        async with self._turn:
            return await self._try(path)

    async def _try(self, path: str) -> str:
        answers: list[FromWorker] = []
        process = await WorkerProcess.spawn(self._command, self._environment, answers.append, lambda _line: None)
        is_over = False
        try:
            for message in (Load(self._settings, "error"), LoadAdapter(_ADAPTER, path), Stop()):
                process.send(message)
            is_over = await process.wait_lost(self._timeout_seconds)
        finally:
            if not is_over:
                process.kill(f"was not done after {self._timeout_seconds:g} s")
            worker_exit = await process.end()
        for answer in answers:
            match answer:
                case AdapterLoaded(code=""):
                    return answer.fingerprint
                case AdapterLoaded():
                    raise AdapterRefusedError(answer.message, param="path")
                case LoadFailed():
                    raise WorkerFailedError(f"The adapter could not be tried out: {answer.message}.")
                case _:
                    pass
        raise _untold(path, worker_exit)


def _untold(path: str, worker_exit: WorkerExit) -> SuperfluidError:
    """Why there was no answer. A process that somebody killed, as a system without memory does, says nothing of the
    file."""
    if worker_exit.fault is None and worker_exit.return_code in (-signal.SIGKILL, -signal.SIGTERM):
        return WorkerFailedError(
            f"The adapter could not be tried out: a process that tried it {worker_exit.describe()}."
        )
    return AdapterRefusedError(f"{path} is damaged: a process that tried it {worker_exit.describe()}", param="path")


def trial_settings(settings: EngineSettings) -> EngineSettings:
    """The same model with as little beside it as can be, and out of the way of the one that serves."""
    return msgspec.structs.replace(
        settings,
        lanes=1,
        window_tokens=_WINDOW_TOKENS,
        is_window_fitted=False,
        max_queue=0,
        threads=1,
        adapts_threads=False,
        gpu_layers=0,
        kv_bits=0,
        host_cache_bytes=0,
        is_traced=False,
        projector=None,
        kv_files=None,
        speculation=NO_SPECULATION,
        is_trial=True,
    )
