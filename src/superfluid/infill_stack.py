"""A model of its own that fills in the middle, put together: its worker, its text, the use case. Runs in the daemon."""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor

from superfluid.chat.model import LoadedText, open_text
from superfluid.config import ServeConfig
from superfluid.domain.statistics import InfillCounters, ModelStatistics
from superfluid.engine_settings import infill_engine_settings
from superfluid.errors import ModelLoadError, UsageError
from superfluid.models.source import ModelFile
from superfluid.sessions.counter import ReplyCounter
from superfluid.sessions.infill import InfillService
from superfluid.sessions.text import SessionText
from superfluid.worker.process import without
from superfluid.worker.protocol import LogRecord
from superfluid.worker.supervisor import WorkerSupervisor

logger = logging.getLogger("superfluid_daemon")


class InfillStack:
    """It serves the requests of all front ends that fill in the middle, and nothing else."""

    def __init__(
        self,
        config: ServeConfig,
        file: ModelFile | None,
        *,
        counter: ReplyCounter,
        executor: Executor,
        counters: InfillCounters,
        on_worker_log: Callable[[LogRecord], None],
    ) -> None:
        """``file`` is ``None`` for the fake engine."""
        self._config = config
        self._file = file
        self._executor = executor
        self.model_id = file.name if file is not None else "fake-fim"
        self.supervisor = WorkerSupervisor(
            infill_engine_settings(config.model, config.completion, file),
            environment=without(os.environ, {key.variable for key in config.http.key_policy}),
            log_filter=config.log.filter,
            timeout_seconds=config.model.worker_timeout_seconds,
            on_log=on_worker_log,
        )
        self.infill = InfillService(
            self.supervisor,
            counter=counter,
            executor=executor,
            counters=counters,
            deadline_seconds=config.completion.deadline_seconds,
            model_id=self.model_id,
        )

    async def start(self) -> None:
        """Loads the model. Raises UsageError if it has no tokens for filling in, and what else a start can."""
        try:
            await self.supervisor.start()
        except ModelLoadError as error:
            raise ModelLoadError(f"--fim-model {self.model_id}: {error.message}") from error
        path = None if self._file is None else self._file.path
        window = self.supervisor.facts.window_tokens
        text: LoadedText = await asyncio.get_running_loop().run_in_executor(
            self._executor,
            lambda: open_text(path, self._config.model.llama_library_path, window_tokens=window),
        )
        if text.tokenizer.infill_markers is None:
            raise UsageError(
                f"--fim-model {self.model_id} cannot fill in the middle: its vocabulary has no tokens for it",
                param="--fim-model",
            )
        self.infill.attach_text(SessionText(text.tokenizer, text.codec, text.turns))
        fields = {"model": self.model_id, "lanes": self.supervisor.facts.lanes, "window": window}
        logger.info("the model that fills in the middle is loaded", extra={"fields": fields})

    def statistics(self) -> ModelStatistics:
        return self.supervisor.statistics()

    async def stop(self) -> None:
        """Ends the worker; jobs that are left fail."""
        await self.supervisor.stop()
