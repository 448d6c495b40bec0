"""Which LoRA adapters the worker has, or is to have again after it was lost. Used in the daemon; no I/O."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

from superfluid.errors import AdapterNotFoundError, AdapterRefusedError, ModelLoadingError, SuperfluidError
from superfluid.worker.protocol import AdapterLoaded, LoadAdapter, ToWorker, UnloadAdapter

_MAX_LOSSES: Final = 2
"""A file that a process has loaded before is given up when so many workers have died over it with no load between."""


@dataclass(slots=True)
class _Entry:
    """``fingerprint`` is that of a file that was tried out or loaded, else empty."""

    path: str
    answer: "asyncio.Future[None]"
    fingerprint: str = ""
    is_loading: bool = True
    is_unloaded: bool = False

    @property
    def was_loaded(self) -> bool:
        return self.answer.done()

    @property
    def file(self) -> tuple[str, str]:
        return self.path, self.fingerprint


class AdapterBook:
    """``sessions.adapters.AdapterBackend``. ``send`` is false if there is no worker that serves.

    ``on_lost`` is called when an adapter that was loaded is not any more, with its number and the reason. ``try_out``,
    where there is one, looks at a file first: it gives the fingerprint of what it saw, or raises.
    """

    def __init__(self, send: Callable[[ToWorker], bool]) -> None:
        self._send = send
        self.on_lost: Callable[[int, SuperfluidError], None] = lambda _adapter, _error: None
        self.try_out: Callable[[str], Awaitable[str]] | None = None
        self._entries: dict[int, _Entry] = {}
        self._losses: Counter[tuple[str, str]] = Counter()

    @property
    def is_loading(self) -> bool:
        """Whether an answer of the worker is outstanding: it is silent until then."""
        return any(entry.is_loading for entry in self._entries.values())

    def can_use(self, adapter: int) -> bool:
        """Whether a new job may have it. 0 is the model alone."""
        entry = self._entries.get(adapter)
        return adapter == 0 or (entry is not None and not entry.is_unloaded)

    async def load_adapter(self, adapter: int, path: str) -> None:
        assert adapter not in self._entries, "adapter numbers are used once"
        fingerprint = "" if self.try_out is None else await self.try_out(path)
        if self._losses[path, fingerprint] >= _MAX_LOSSES:
            raise _deadly_error(path)
        if not self._send(LoadAdapter(adapter, path, fingerprint)):
            raise _not_ready_error()
        entry = self._entries[adapter] = _Entry(path, asyncio.get_running_loop().create_future(), fingerprint)
        await asyncio.shield(entry.answer)

    def unload_adapter(self, adapter: int) -> None:
        if adapter in self._entries:
            self._entries[adapter].is_unloaded = True
        self._send(UnloadAdapter(adapter))

    def answered(self, message: AdapterLoaded) -> None:
        """Answers that nobody waits for are ignored."""
        entry = self._entries.get(message.adapter)
        if entry is None:
            return
        if message.code:
            self._drop(message.adapter, AdapterRefusedError(message.message, param="path"))
            return
        entry.is_loading = False
        entry.fingerprint = message.fingerprint
        del self._losses[entry.file]
        if not entry.answer.done():
            entry.answer.set_result(None)

    def worker_lost(self) -> None:
        """What was being loaded is taken for the cause: that is the first without an answer, since they come in order.

        A file that no process has ever loaded is refused, and another one if this befalls it again. Whoever asked for a
        new adapter otherwise is to try again; those that had been loaded before stay for the next worker.
        """
        loading = [adapter for adapter, entry in self._entries.items() if entry.is_loading]
        for place, adapter in enumerate(loading):
            entry = self._entries[adapter]
            entry.is_loading = False
            if place == 0:
                self._losses[entry.file] += 1
            if place == 0 and (not entry.fingerprint or self._losses[entry.file] >= _MAX_LOSSES):
                self._drop(adapter, _deadly_error(entry.path))
            elif not entry.was_loaded:
                self._drop(adapter, _not_ready_error())

    def for_new_worker(self, wanted: Collection[int]) -> tuple[list[LoadAdapter], list[UnloadAdapter]]:
        """What a new worker is to load before it gets its jobs, and to unload behind them. Of the unloaded ones only
        those are loaded that jobs still have, which are ``wanted``."""
        for adapter in [key for key, entry in self._entries.items() if entry.is_unloaded and key not in wanted]:
            del self._entries[adapter]
        for entry in self._entries.values():
            entry.is_loading = True
        loads = [LoadAdapter(adapter, entry.path, entry.fingerprint) for adapter, entry in self._entries.items()]
        return loads, [UnloadAdapter(adapter) for adapter, entry in self._entries.items() if entry.is_unloaded]

    def _drop(self, adapter: int, error: SuperfluidError) -> None:
        entry = self._entries.pop(adapter)
        if not entry.answer.done():
            entry.answer.set_exception(error)
            entry.answer.exception()  # whoever asked may have gone
        else:
            self.on_lost(adapter, error)


def not_loaded_error() -> AdapterNotFoundError:
    return AdapterNotFoundError("the adapter is not loaded any more", param="model")


def _not_ready_error() -> ModelLoadingError:
    return ModelLoadingError("The model's process is not ready; try again in a moment.")


def _deadly_error(path: str) -> AdapterRefusedError:
    return AdapterRefusedError(f"the model's process died while it loaded {path}", param="path")
