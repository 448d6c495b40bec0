"""What ``/slots`` and ``/props`` say, as plain data. Pure; asks no engine, so that it answers while one is busy."""

import platform
import sys
from collections.abc import Callable
from typing import Any

from superfluid.domain.request import QOS_LABELS
from superfluid.domain.statistics import KeptPrefix, LaneStatus, ModelStatistics
from superfluid.sessions.interface import ServedModel
from superfluid.version import __version__

SessionOf = Callable[[int], int | None]


def slots_entry(
    model_id: str, statistics: ModelStatistics, session_of: SessionOf, *, now_unix: float
) -> dict[str, Any]:
    """The one entry of ``/slots``, for the whole engine, with its ``lanes``.

    ``session_of`` gives the session of a running job, if it has one.
    """
    tick = statistics.tick
    is_busy = statistics.lanes_active > 0
    return {
        "id": 0,
        "model": model_id,
        "path": model_id,
        "is_processing": is_busy,
        "lanes_active": statistics.lanes_active,
        "cache_position": statistics.pool_blocks_used,
        "kv_pool_used": statistics.pool_blocks_used,
        "kv_pool_total": statistics.pool_blocks_total,
        "reuse_snapshots": 0,
        "idle_seconds": 0,
        "last_access": int(now_unix),
        "tick_wall_ms": round(statistics.tick_wall_seconds * 1000),
        "tick_in_flight_ms": round(tick.seconds * 1000),
        "tick_plan_prefill_tokens": tick.prefill_tokens,
        "tick_plan_prefill_lanes": tick.prefill_lanes,
        "tick_plan_decode_lanes": tick.decode_lanes,
        "tick_plan_admits": tick.admissions,
        "tick_plan_retires": 0,
        "decode_tok_s": round(statistics.rates.decode_tokens_per_second),
        "prefill_tok_s": round(statistics.rates.prefill_tokens_per_second),
        "ttft_last_ms": round(statistics.first_token_last_seconds * 1000),
        "queue_depth": dict(zip(QOS_LABELS.values(), statistics.queue_depth, strict=True)),
        "host_cache_entries": statistics.host_cache_entries,
        "host_cache_bytes": statistics.host_cache_bytes,
        "pins_held": statistics.pins_held,
        "pinned_bytes": statistics.pinned_bytes,
        "memory_used_bytes": statistics.memory_used_bytes,
        "memory_total_bytes": statistics.memory_total_bytes,
        "pressure_evictions": statistics.pressure_evictions_total,
        "os_pressure_events": statistics.os_pressure_events_total,
        "disk_cache_entries": statistics.kv_files,
        "disk_cache_bytes": statistics.kv_file_bytes,
        "lanes": [_lane(lane, session_of) for lane in statistics.lanes],
        "host_cache": list(map(_kept, statistics.memory_prefixes)),
        "disk_cache": list(map(_kept, statistics.disk_prefixes)),
    }


def _kept(prefix: KeptPrefix) -> dict[str, Any]:
    return {"session": prefix.session, "tokens": prefix.tokens}


def _lane(lane: LaneStatus, session_of: SessionOf) -> dict[str, Any]:
    """A free lane only tells what it still holds for reuse, and whose that is."""
    entry: dict[str, Any] = {"lane": lane.lane, "state": lane.phase, "kv_tokens": lane.held_tokens}
    if lane.job_id == 0:
        return entry | {"session": lane.session}
    return entry | {
        "session": session_of(lane.job_id),
        "class": QOS_LABELS[lane.qos],
        "prompt_tokens": lane.prompt_tokens,
        "warm_tokens": lane.warm_tokens,
        "warm_from": lane.warm_from or None,
        "generated_tokens": max(0, lane.stream_tokens - lane.prompt_tokens),
    }


def props_page(model: ServedModel, models: list[ServedModel], *, max_request_bytes: int) -> dict[str, Any]:
    """``model`` is the described one, the first of ``models`` the default. What only a loaded model knows is left out
    until then."""
    facts = model.facts if model.is_ready else None
    page: dict[str, Any] = {
        "model": model.model_id,
        "default_model": models[0].model_id,
        "models": [other.model_id for other in models if other.is_ready],
        "loaded": facts is not None,
        "max_context": None if facts is None else facts.window_tokens,
        "total_slots": 1,
        "lanes": None if facts is None else facts.lanes,
        "default_generation_settings": _generation_settings(model),
        "build": {"version": __version__, "target": f"{sys.platform}-{platform.machine()}"},
        "server": "superfluid",
        "max_request_bytes": max_request_bytes,
        "capabilities": None if facts is None else dict(model.capabilities),
        # What a chat request may hold: clients show their buttons by it. Sessions take images if the model does.
        "modalities": {"vision": False, "audio": False},
    }
    if facts is not None:
        page["kv_cache"] = {"bits": facts.kv_bits, "dtype": facts.kv_type}
        page["engine"] = {"name": facts.engine, "build": facts.engine_build, "flash_attention": facts.flash_attention}
        if model.template_text is not None:
            page["chat_template"] = model.template_text
    return page


def _generation_settings(model: ServedModel) -> dict[str, Any]:
    window = model.facts.window_tokens if model.is_ready else None
    limit = window if model.default_max_tokens is None else model.default_max_tokens
    settings: dict[str, Any] = {"max_context": window, "n_ctx": window, "n_predict": limit, "max_tokens": limit}
    if not model.is_ready:
        return settings
    sampling = model.sampling_defaults
    if sampling.temperature is not None:
        settings["temperature"] = sampling.temperature
    if any(value is not None for value in (sampling.top_p, sampling.top_k, sampling.min_p)):
        settings["top_p"] = 1.0 if sampling.top_p is None else sampling.top_p
        settings["top_k"] = 0 if sampling.top_k is None else sampling.top_k
        settings["min_p"] = 0.0 if sampling.min_p is None else sampling.min_p
    if sampling.repeat_penalty is not None:
        settings["repeat_penalty"] = sampling.repeat_penalty or 1.0
    return settings
