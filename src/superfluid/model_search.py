"""Finds the files that the configuration names, or pulls them, while the daemon already answers."""

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from superfluid.config import ServeConfig
from superfluid.models.progress import progress_for
from superfluid.models.source import NO_PROJECTOR, ModelFile, resolve_model

_T = TypeVar("_T")


def search_model(config: ServeConfig) -> "asyncio.Future[ModelFile]":
    """The result is there when all of the model is on the disk. Whoever does not want to wait cancels it."""
    return _in_daemon_thread(lambda: _find_model(config))


def search_infill_model(config: ServeConfig) -> "asyncio.Future[ModelFile]":
    """As ``search_model``, for the one that fills in the middle."""
    return _in_daemon_thread(lambda: _find_infill_model(config))


def _find_infill_model(config: ServeConfig) -> ModelFile:
    return resolve_model(
        config.completion.model,
        config.hub,
        config.home,
        progress_for(sys.stderr),
        is_offline=config.model.is_offline,
        mmproj=NO_PROJECTOR,
    )


def _find_model(config: ServeConfig) -> ModelFile:
    return resolve_model(
        config.model.model,
        config.hub,
        config.home,
        progress_for(sys.stderr),
        is_offline=config.model.is_offline,
        mmproj=config.model.mmproj,
        pulls_mmproj=config.model.pulls_mmproj,
        draft_model=config.model.speculation.draft_model,
    )


def _in_daemon_thread(work: Callable[[], _T]) -> "asyncio.Future[_T]":
    """Runs ``work`` in a thread that does not keep the process from ending: a pull can take hours."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  (handed to whoever waits)
            loop.call_soon_threadsafe(settle, None, error)
        else:
            loop.call_soon_threadsafe(settle, result, None)

    threading.Thread(target=run, name="pull", daemon=True).start()
    return future
