"""Loads the engine that the settings name. Each is imported only when it is chosen. Runs in the worker."""

from pathlib import Path
from typing import assert_never

from superfluid.engine.interface import Engine
from superfluid.worker.protocol import EngineSettings


def load_engine(settings: EngineSettings) -> Engine:
    """Blocks until the model is loaded. Raises ModelFileError, ModelLoadError, EngineLibraryError or UsageError."""
    match settings.engine:
        case "fake":
            return _load_fake(settings)
        case "llamacpp":
            return _load_llama(settings)
        case _:
            assert_never(settings.engine)


def _load_fake(settings: EngineSettings) -> Engine:
    from superfluid.engine.fake import FakeEngine
    from superfluid.engine.fake_script import load_script

    script = load_script(Path(settings.model)) if settings.model else None
    return FakeEngine(script, lanes=settings.lanes, window_tokens=settings.window_tokens, threads=settings.threads or 1)


def _load_llama(settings: EngineSettings) -> Engine:
    from superfluid.engine.llama import LlamaEngine, LlamaOptions

    options = LlamaOptions(
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
    )
    return LlamaEngine(Path(settings.model), options)
