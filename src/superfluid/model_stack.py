"""The served model, put together: its worker, the use cases over it, its adapters, its text. Runs in the daemon."""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from superfluid.chat.model import LoadedText, open_text
from superfluid.config import ServeConfig
from superfluid.domain.statistics import InfillCounters
from superfluid.engine_settings import engine_settings, load_hint, uses_fake_engine
from superfluid.errors import CallerError, ModelLoadError
from superfluid.models.adapter_file import require_adapter
from superfluid.models.source import ModelFile
from superfluid.sessions.adapters import Adapters
from superfluid.sessions.counter import ReplyCounter
from superfluid.sessions.infill import InfillService
from superfluid.sessions.service import ModelService
from superfluid.sessions.text import SessionText
from superfluid.telemetry.tracer import Tracer
from superfluid.worker.adapter_trial import AdapterTrial
from superfluid.worker.process import without
from superfluid.worker.protocol import LogRecord
from superfluid.worker.supervisor import WorkerSupervisor


class ModelStack:
    """Made before the model is loaded, so that front ends can say meanwhile that it is loading."""

    def __init__(
        self,
        config: ServeConfig,
        file: ModelFile | None,
        *,
        counter: ReplyCounter,
        executor: Executor,
        infill_counters: InfillCounters,
        tracer: Tracer | None,
        media_directory: str | None,
        on_worker_log: Callable[[LogRecord], None],
        infill: InfillService | None = None,
    ) -> None:
        """``file`` is ``None`` for the fake engine. ``infill`` fills in the middle where the model itself does not."""
        self._config = config
        self._file = file
        self._executor = executor
        self._text: SessionText | None = None
        self.settings = engine_settings(
            config.model,
            file,
            config.sessions,
            is_traced=tracer is not None and tracer.wants_ticks,
            media_directory=media_directory,
        )
        self._environment = without(os.environ, {key.variable for key in config.http.key_policy})
        self.supervisor = WorkerSupervisor(
            self.settings,
            environment=self._environment,
            log_filter=config.log.filter,
            timeout_seconds=config.model.worker_timeout_seconds,
            on_log=on_worker_log,
            on_spans=None if tracer is None else tracer.ticked,
            on_kv_span=None if tracer is None else tracer.moved,
        )
        self._own_infill: InfillService | None = None
        if infill is None:
            infill = self._own_infill = InfillService(
                self.supervisor,
                counter=counter,
                executor=executor,
                counters=infill_counters,
                deadline_seconds=config.completion.deadline_seconds,
            )
        self.infill = infill
        self.service = ModelService(
            file.name if file is not None else "fake",
            created_unix=int(time.time()),
            backend=self.supervisor,
            generation=config.generation,
            counter=counter,
            executor=executor,
            infill=self.infill,
        )
        self.adapters = Adapters(
            self.service,
            self.supervisor.adapters,
            require_file=lambda path, architecture: self._require_adapter(Path(path), architecture),
            executor=executor,
            unix=time.time,
        )
        self.supervisor.adapters.on_lost = self.adapters.lost

    @property
    def session_text(self) -> SessionText:
        """Once ``load_text`` has returned."""
        assert self._text is not None
        return self._text

    async def start(self) -> None:
        """Loads the model and the adapters that the operator named. Raises ModelLoadError and what else a start can."""
        try:
            await self.supervisor.start()
        except ModelLoadError as error:
            raise ModelLoadError(error.message + load_hint(self.settings, error.message)) from error
        for name, path in self._config.model.loras:
            try:
                await self.adapters.load(name, str(path))
            except CallerError as error:
                raise ModelLoadError(f"--lora {name}: {error.message}") from error
        # From now on there are streams that a damaged file must not stop.
        trial = AdapterTrial(self.settings, environment=self._environment)
        self.supervisor.adapters.try_out = trial.fingerprint

    async def load_text(self) -> LoadedText:
        """Vocabulary and template of the model that a worker has loaded. If it fills in the middle, it does so from
        here on."""
        path = self._file.path if self._file is not None else None
        window = self.supervisor.facts.window_tokens
        text: LoadedText = await asyncio.get_running_loop().run_in_executor(
            self._executor,
            lambda: open_text(path, self._config.model.llama_library_path, window_tokens=window),
        )
        self._text = SessionText(text.tokenizer, text.codec, text.turns)
        if self._own_infill is not None:
            self._own_infill.attach_text(self._text)
        return text

    async def stop(self) -> None:
        """Ends the worker; jobs that are left fail."""
        await self.supervisor.stop()

    def _require_adapter(self, path: Path, architecture: str | None) -> None:
        if not uses_fake_engine(self._config.model):
            require_adapter(path, architecture)
