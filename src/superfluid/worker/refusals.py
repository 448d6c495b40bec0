"""Turns a worker's refusals, and its end, into leaves of the error tree. Pure; used in the daemon."""

from superfluid.errors import (
    AdapterNotFoundError,
    ContextLengthExceededError,
    EngineFaultError,
    EngineLibraryError,
    ModelFileError,
    ModelLoadError,
    QueueFullError,
    SuperfluidError,
    UsageError,
    WorkerFailedError,
)
from superfluid.worker.process import WorkerExit
from superfluid.worker.protocol import LoadFailed, Rejected

_LOAD_LEAVES: dict[str, type[SuperfluidError]] = {
    leaf.code: leaf for leaf in (ModelFileError, ModelLoadError, EngineLibraryError, UsageError)
}
_JOB_LEAVES: dict[str, type[SuperfluidError]] = {
    leaf.code: leaf for leaf in (QueueFullError, ContextLengthExceededError, EngineFaultError, AdapterNotFoundError)
}


def load_error(message: LoadFailed) -> SuperfluidError:
    """An unknown code is a ModelLoadError."""
    return _LOAD_LEAVES.get(message.code, ModelLoadError)(message.message)


def rejection_error(message: Rejected) -> SuperfluidError:
    """An unknown code is an EngineFaultError."""
    return _JOB_LEAVES.get(message.code, EngineFaultError)(message.message)


def exit_error(worker_exit: WorkerExit, *, was_loading: bool) -> SuperfluidError:
    """Says how the process ended and what it printed last."""
    last = f" Its last line was: {worker_exit.last_line}" if worker_exit.last_line else ""
    if was_loading:
        return ModelLoadError(f"The model's process {worker_exit.describe()} while loading the model.{last}")
    return WorkerFailedError(f"The model's process {worker_exit.describe()}.{last}")
