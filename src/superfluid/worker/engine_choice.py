"""Loads the engine that the settings name. Each is imported only when it is chosen. Runs in the worker."""

from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from superfluid.engine.interface import Engine
from superfluid.worker.settings import EngineSettings

if TYPE_CHECKING:
    from superfluid.engine.llama import LlamaOptions


def load_engine(settings: EngineSettings) -> Engine:
    """Blocks until the model is loaded. Raises ModelFileError, ModelLoadError, EngineLibraryError or UsageError."""
    match settings.engine:
        case "fake":
            return _load_fake(settings)
        case "llamacpp":
            return _load_llama(settings)
        case _:
            assert_never(settings.engine)


def load_draft_engine(settings: EngineSettings, target: Engine, path: Path) -> Engine:
    """The engine of a model that drafts for ``target``. Blocks. Raises as ``load_engine``, and UsageError if its
    vocabulary is another one."""
    if settings.engine == "fake":
        from superfluid.engine.fake import FakeEngine
        from superfluid.engine.fake_script import load_script

        return FakeEngine(load_script(path), lanes=settings.lanes, window_tokens=target.facts.window_tokens)
    from superfluid.engine.llama import LlamaEngine
    from superfluid.engine.llama_draft import open_draft

    assert isinstance(target, LlamaEngine)
    return open_draft(target, Path(settings.model), path, _llama_options(settings))


def _load_fake(settings: EngineSettings) -> Engine:
    from superfluid.engine.fake import FakeEngine
    from superfluid.engine.fake_script import load_script

    script = load_script(Path(settings.model)) if settings.model else None
    return FakeEngine(script, lanes=settings.lanes, window_tokens=settings.window_tokens, threads=settings.threads or 1)


def _load_llama(settings: EngineSettings) -> Engine:
    from superfluid.engine.llama import LlamaEngine

    return LlamaEngine(Path(settings.model), _llama_options(settings))


def _llama_options(settings: EngineSettings) -> "LlamaOptions":
    from superfluid.engine.llama import LlamaOptions

    return LlamaOptions(
        lanes=settings.lanes,
        window_tokens=settings.window_tokens,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
        flash_attention=settings.flash_attention,
        llama_library=Path(settings.llama_library_path) if settings.llama_library_path else None,
        is_log_kept=settings.is_engine_log_kept,
        projector=Path(settings.projector) if settings.projector else None,
        projector_type=settings.projector_type,
        is_projector_optional=settings.is_projector_optional,
        is_window_fitted=settings.is_window_fitted,
        kv_bits=settings.kv_bits,
        host_cache_bytes=settings.host_cache_bytes,
        has_own_layout=not settings.is_trial,
    )
