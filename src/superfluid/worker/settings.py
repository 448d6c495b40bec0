"""What a worker is told about its model when it is started. Pure; used on both sides."""

from typing import Literal

from msgspec import Struct

from superfluid.domain.memory import MemoryRules
from superfluid.domain.scheduling import SchedulingRules
from superfluid.domain.speculation import NO_SPECULATION, SpeculationRules


class KvFileSettings(Struct, frozen=True, kw_only=True):
    """Where a worker writes KV files, and how many bytes of them: of sessions' parks, and of the prefixes of requests.

    A budget of 0 keeps none of that kind, ``None`` sets no bound.
    """

    directory: str
    park_bytes: int | None
    request_bytes: int | None


class EngineSettings(Struct, frozen=True, kw_only=True):
    """How a worker loads its model. ``None`` threads means one per physical core that this process may use.

    ``model`` is a path for ``llamacpp``; for ``fake`` it is a path to a script (see ``engine/fake.py``) or empty.
    ``window_tokens`` is per lane; ``host_cache_bytes`` bounds the prefixes kept in host memory.
    ``stream_interval_seconds`` is how long drawn tokens may wait for those of the next ticks, so that fast ticks share
    a message. ``projector`` lets the model see images, which lie in ``media_directory`` under their SHA-256;
    ``projector_type`` is what its file calls it. One that is optional and does not fit the model is left out.
    ``kv_bits`` is 0 for f16, or 8 or 4 for one of llama.cpp's quantized types.
    """

    engine: Literal["llamacpp", "fake"]
    model: str
    lanes: int
    window_tokens: int | None
    max_queue: int
    threads: int | None = None
    gpu_layers: int = -1
    flash_attention: Literal["auto", "on", "off"] = "auto"
    host_cache_bytes: int = 0
    llama_library_path: str | None = None
    is_engine_log_kept: bool = False
    stream_interval_seconds: float = 0.0
    is_traced: bool = False
    """Whether ticks are told one by one, as ``TickSpan``."""
    projector: str | None = None
    projector_type: str = ""
    is_projector_optional: bool = False
    media_directory: str | None = None
    scheduling: SchedulingRules = SchedulingRules()
    kv_files: KvFileSettings | None = None
    adapts_threads: bool = False
    """Whether one thread fewer decodes while another process takes a core."""
    is_window_fitted: bool = False
    """Without ``window_tokens``: a window that cannot be fitted to the memory is an error."""
    kv_bits: int = 0
    memory: MemoryRules = MemoryRules()
    speculation: SpeculationRules = NO_SPECULATION
    is_trial: bool = False
    """It is there to be lost: it leaves the processor to others, and uses the weights as they lie in the file."""
