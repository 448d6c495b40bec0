"""The use cases of LoRA adapters: load, unload, list, and the served model that each is. Runs on the event loop."""

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import PurePath
from typing import Protocol

import msgspec

from superfluid.domain.adapter import AdapterFacts, checked_adapter_name
from superfluid.domain.model import ModelFacts
from superfluid.domain.request import ChatPrompt, GenerationRequest, SamplingOverrides
from superfluid.errors import AdapterNotFoundError, AdapterRefusedError, InvalidValueError, SuperfluidError
from superfluid.sessions.interface import Reply, ServedModel

_logger = logging.getLogger("superfluid_daemon")


class AdapterBackend(Protocol):
    """Has adapters loaded where the model is, and again whenever that is replaced."""

    async def load_adapter(self, adapter: int, path: str) -> None:
        """Under a number that was never used. Raises AdapterRefusedError, ModelLoadingError."""
        ...

    def unload_adapter(self, adapter: int) -> None:
        """Jobs that have it go on to their end; others get AdapterNotFoundError."""
        ...


class AdapterModel:
    """``ServedModel`` of a model with an adapter: all but its name and its generations are the model's."""

    def __init__(self, base: ServedModel, adapter: AdapterFacts) -> None:
        self._base = base
        self.adapter = adapter
        self.base_id = base.model_id
        self.model_id = f"{base.model_id}:{adapter.name}"
        self.created_unix = adapter.loaded_unix

    @property
    def is_ready(self) -> bool:
        return self._base.is_ready

    @property
    def facts(self) -> ModelFacts:
        return self._base.facts

    @property
    def sampling_defaults(self) -> SamplingOverrides:
        return self._base.sampling_defaults

    @property
    def default_max_tokens(self) -> int | None:
        return self._base.default_max_tokens

    @property
    def template_text(self) -> str | None:
        return self._base.template_text

    @property
    def infill_id(self) -> str:
        filling_in = self._base.infill_id
        return self.model_id if filling_in == self.base_id else filling_in

    @property
    def capabilities(self) -> Mapping[str, bool | str]:
        return self._base.capabilities

    async def start(self, request: GenerationRequest) -> Reply:
        return await self._base.start(msgspec.structs.replace(request, adapter=self.adapter.number))

    async def tokenize(self, text: str) -> list[int]:
        return await self._base.tokenize(text)

    async def count_tokens(self, prompt: ChatPrompt) -> int:
        return await self._base.count_tokens(prompt)


class Adapters:
    """Those of one model. ``require_file`` looks at a file first, in a thread: it raises AdapterRefusedError."""

    def __init__(
        self,
        model: ServedModel,
        backend: AdapterBackend,
        *,
        require_file: Callable[[str, str | None], None],
        executor: Executor,
        unix: Callable[[], float],
    ) -> None:
        self._model = model
        self._backend = backend
        self._require_file = require_file
        self._executor = executor
        self._unix = unix
        self._numbers = itertools.count(1)
        self._models: dict[str, AdapterModel] = {}
        self._loading: set[str] = set()

    def list(self) -> "list[AdapterModel]":
        """In the order in which they were loaded."""
        return list(self._models.values())

    def find(self, model_id: str) -> AdapterModel | None:
        """The one that clients name ``<model>:<adapter>``."""
        return next((model for model in self._models.values() if model.model_id == model_id), None)

    async def load(self, name: str | None, path: str) -> AdapterModel:
        """``name`` ``None`` is the file's own, without its ending. Returns when requests can have it.

        Raises AdapterRefusedError, InvalidValueError for a name that cannot be, ModelLoadingError. A call that is
        cancelled leaves nothing loaded.
        """
        path = _whole_path(path)
        name = checked_adapter_name(PurePath(path).stem if name is None else name)
        if name in self._models or name in self._loading:
            raise AdapterRefusedError(f"there is an adapter {name!r} already; unload it first", param="name")
        self._loading.add(name)
        try:
            architecture = self._model.facts.architecture
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._require_file, path, architecture)
            number = next(self._numbers)
            try:
                await self._backend.load_adapter(number, path)
            except asyncio.CancelledError:
                self._backend.unload_adapter(number)
                raise
        finally:
            self._loading.discard(name)
        facts = AdapterFacts(number=number, name=name, path=path, loaded_unix=int(self._unix()))
        self._models[name] = AdapterModel(self._model, facts)
        _logger.info("an adapter was loaded", extra={"fields": {"adapter": name, "path": path}})
        return self._models[name]

    def unload(self, name: str) -> AdapterModel:
        """Nobody finds it any more; requests that have it go on. Raises AdapterNotFoundError."""
        model = self._models.pop(name, None)
        if model is None:
            raise AdapterNotFoundError(f"there is no adapter {name!r}", param="name")
        self._backend.unload_adapter(model.adapter.number)
        _logger.info("an adapter was unloaded", extra={"fields": {"adapter": name}})
        return model

    def lost(self, number: int, error: SuperfluidError) -> None:
        """The model's process was replaced, and the new one could not load it."""
        for name, model in list(self._models.items()):
            if model.adapter.number == number:
                del self._models[name]
                _logger.error("an adapter was lost", extra={"fields": {"adapter": name, "reason": error.message}})


def _whole_path(path: str) -> str:
    if not path or "\0" in path:
        raise InvalidValueError("path must be that of a file on the server's machine", param="path")
    return os.path.abspath(os.path.expanduser(path))
