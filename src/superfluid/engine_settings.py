"""From the configuration and the model file to what a worker is told. Runs in the daemon."""

import os

import msgspec

from superfluid.config import CompletionConfig, ModelConfig, SessionsConfig
from superfluid.domain.speculation import SpeculationRules
from superfluid.free_memory import available_memory_bytes
from superfluid.kvfiles.names import KV_DIRECTORY
from superfluid.models.source import ModelFile
from superfluid.worker.settings import EngineSettings, KvFileSettings

_MAX_HOST_CACHE_BYTES = 8 << 30
_HOST_CACHE_SHARE = 0.4
MAX_INFILL_WINDOW_TOKENS = 8192


def uses_fake_engine(config: ModelConfig) -> bool:
    return config.runtime == "fake"


def engine_settings(
    config: ModelConfig,
    file: ModelFile | None,
    sessions: SessionsConfig | None = None,
    *,
    is_traced: bool = False,
    media_directory: str | None = None,
) -> EngineSettings:
    """``file`` is ``None`` for the fake engine. KV files are kept beside the sessions, if those are kept.
    ``is_traced``: every tick is told, for a span of its own. ``media_directory`` is where sessions' images lie."""
    projector = None if file is None else file.projector
    host_cache = config.host_cache_bytes
    return EngineSettings(
        engine="fake" if file is None else "llamacpp",
        model=(config.model or "") if file is None else str(file.path),
        lanes=config.lanes,
        window_tokens=config.window_tokens,
        max_queue=config.max_queue,
        threads=config.threads,
        adapts_threads=config.adapts_threads,
        gpu_layers=config.gpu_layers,
        flash_attention=config.flash_attention,
        host_cache_bytes=automatic_host_cache_bytes() if host_cache is None else host_cache,
        llama_library_path=None if config.llama_library_path is None else str(config.llama_library_path),
        is_engine_log_kept=config.is_engine_log_kept,
        stream_interval_seconds=config.stream_interval_seconds,
        is_traced=is_traced,
        scheduling=config.scheduling,
        speculation=_speculation(config.speculation, file),
        projector=None if projector is None else str(projector.path),
        projector_type="" if projector is None else projector.encoder,
        is_projector_optional=projector is not None and not projector.is_named,
        media_directory=media_directory,
        kv_files=None if sessions is None else _kv_file_settings(sessions),
        is_window_fitted=config.is_window_fitted,
        kv_bits=config.kv_bits,
        memory=config.memory,
    )


def load_hint(settings: EngineSettings, message: str) -> str:
    """What to add to a failed load's ``message``: llama.cpp aborts without a word of which file it was at."""
    beside = [
        (settings.projector, "the projector", "--mmproj none"),
        (settings.speculation.draft_model, "the draft model", "--speculate off"),
    ]
    hints = [
        f"if it is {what} {path}, {flag} serves without it"
        for path, what, flag in beside
        if path is not None and path not in message
    ]
    return f" ({'; '.join(hints)})" if hints else ""


def infill_engine_settings(config: ModelConfig, completion: CompletionConfig, file: ModelFile | None) -> EngineSettings:
    """Of the model of its own that fills in the middle: nothing of what it computes is kept for later."""
    window = completion.window_tokens
    if window is None and file is not None:
        window = min(file.header.trained_window_tokens or MAX_INFILL_WINDOW_TOKENS, MAX_INFILL_WINDOW_TOKENS)
    return EngineSettings(
        engine="fake" if file is None else "llamacpp",
        model=(completion.model or "") if file is None else str(file.path),
        lanes=completion.lanes,
        window_tokens=window,
        max_queue=config.max_queue,
        threads=config.threads,
        gpu_layers=config.gpu_layers,
        flash_attention=config.flash_attention,
        llama_library_path=None if config.llama_library_path is None else str(config.llama_library_path),
        is_engine_log_kept=config.is_engine_log_kept,
        stream_interval_seconds=config.stream_interval_seconds,
        scheduling=config.scheduling,
        kv_bits=config.kv_bits,
    )


def _speculation(rules: SpeculationRules, file: ModelFile | None) -> SpeculationRules:
    """With the path of the draft model as it was found."""
    draft = None if file is None else file.draft_model
    return rules if draft is None else msgspec.structs.replace(rules, draft_model=str(draft))


def _kv_file_settings(config: SessionsConfig) -> KvFileSettings | None:
    if config.directory is None:
        return None
    return KvFileSettings(
        directory=str(config.directory / KV_DIRECTORY),
        park_bytes=config.park_budget_bytes if config.is_parked else 0,
        request_bytes=config.prefix_budget_bytes,
    )


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def automatic_host_cache_bytes() -> int:
    """A share of the memory that is free now, at most 8 GiB. It is a bound: memory is taken as prefixes are kept."""
    available = available_memory_bytes()
    if available is None:
        # macOS: what is free cannot be asked without a tool; half of what there is stands for it.
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min(_MAX_HOST_CACHE_BYTES, int(available * _HOST_CACHE_SHARE))
