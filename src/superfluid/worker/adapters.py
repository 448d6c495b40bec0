"""The LoRA adapters that the daemon asks for: loaded between two ticks, freed when no job has them. In the worker."""

from collections.abc import Callable
from pathlib import Path

from superfluid.engine.interface import Engine
from superfluid.errors import AdapterRefusedError, SuperfluidError
from superfluid.worker.protocol import AdapterLoaded, LoadAdapter


class WorkerAdapters:
    """``is_wanted`` says whether a job that waits or runs has the adapter."""

    def __init__(self, engine: Engine, is_wanted: Callable[[int], bool]) -> None:
        self._engine = engine
        self._is_wanted = is_wanted
        self._loaded: set[int] = {0}
        self._leaving: set[int] = set()

    def can_use(self, adapter: int) -> bool:
        """Whether a new job may have it. 0, the model alone, is always there."""
        return adapter in self._loaded

    def load(self, request: LoadAdapter) -> AdapterLoaded:
        """Never raises: why it is not loaded is part of the answer."""
        path = Path(request.path)
        try:
            fingerprint = _fingerprint(path)
            if request.fingerprint not in ("", fingerprint):
                raise AdapterRefusedError(f"{path} is not the file any more that was loaded")
            self._engine.load_adapter(request.adapter, path)
        except SuperfluidError as error:
            return AdapterLoaded(request.adapter, "", error.code, error.message)
        self._loaded.add(request.adapter)
        return AdapterLoaded(request.adapter, fingerprint)

    def unload(self, adapter: int) -> None:
        """Unknown numbers are ignored."""
        if adapter in self._loaded - {0}:
            self._loaded.discard(adapter)
            self._leaving.add(adapter)

    def free_unwanted(self) -> list[int]:
        """Frees what was unloaded and no job has any more; their numbers. Between two ticks."""
        freed = [adapter for adapter in self._leaving if not self._is_wanted(adapter)]
        if freed:
            self._engine.use_adapter(0)
        for adapter in freed:
            self._engine.free_adapter(adapter)
            self._leaving.discard(adapter)
        return freed


def _fingerprint(path: Path) -> str:
    try:
        found = path.stat()
    except OSError as error:
        raise AdapterRefusedError(f"{path} cannot be read: {error.strerror or error}") from error
    return f"{found.st_size}-{found.st_mtime_ns}"
