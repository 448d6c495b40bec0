"""The models of a server that serves one: that model and its LoRA adapters, by name. On the daemon's event loop."""

from collections.abc import Sequence

from superfluid.errors import ModelLoadingError, ModelNotFoundError
from superfluid.sessions.adapters import Adapters
from superfluid.sessions.interface import ServedAdapter, ServedModel
from superfluid.sessions.service import ModelService


class SingleModel:
    """``ModelDirectory`` and ``AdapterDirectory`` of a server with one model, which may not be known yet."""

    def __init__(self) -> None:
        self._service: ModelService | None = None
        self._adapters: Adapters | None = None

    def add(self, service: ModelService, adapters: Adapters) -> None:
        self._service, self._adapters = service, adapters

    def resolve(self, name: str) -> ServedModel:
        if self._service is None:
            raise ModelLoadingError("the model is still loading")
        if name in (self._service.model_id, f"{self._service.model_id}:latest"):
            return self._service
        adapter = None if self._adapters is None else self._adapters.find(name)
        if adapter is None:
            raise ModelNotFoundError(
                f"there is no model {name!r} here; this server serves {self._service.model_id!r}", param="model"
            )
        return adapter

    def list_models(self) -> list[ServedModel]:
        return [] if self._service is None else [self._service]

    def list_adapters(self) -> Sequence[ServedAdapter]:
        return [] if self._adapters is None else self._adapters.list()

    async def load_adapter(self, name: str | None, path: str) -> ServedAdapter:
        return await self._known_adapters().load(name, path)

    def unload_adapter(self, name: str) -> ServedAdapter:
        return self._known_adapters().unload(name)

    def _known_adapters(self) -> Adapters:
        if self._adapters is None:
            raise ModelLoadingError("the model is still loading")
        return self._adapters
