"""From ``serve``'s flags and the environment to the configuration. Pure: it checks whatever needs no I/O."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from superfluid import config
from superfluid.cli.infill_settings import completion_config
from superfluid.cli.key_policy import MAX_REQUESTS_PER_MINUTE, parse_key_policy
from superfluid.cli.lora_settings import lora_settings
from superfluid.cli.memory_settings import context_window, kv_bits, memory_rules
from superfluid.cli.otlp_settings import otlp_config
from superfluid.cli.scheduling_settings import http_qos, scheduling_rules
from superfluid.cli.speculation_settings import speculation_rules
from superfluid.config import (
    DEFAULT_HTTP_HOST,
    DEFAULT_HTTP_PORT,
    DEFAULT_PARK_BUDGET_BYTES,
    DEFAULT_PREFIX_BUDGET_BYTES,
    FlashAttention,
    GenerationConfig,
    HttpConfig,
    LogConfig,
    ModelConfig,
    OtlpConfig,
    Runtime,
    Secret,
    ServeConfig,
    SessionsConfig,
    default_socket_path,
    environment_value,
    is_socket_path_short_enough,
    require_at_least,
    require_range,
)
from superfluid.domain.request import SamplingOverrides
from superfluid.errors import UsageError

MIN_WORKER_TIMEOUT_SECONDS = 0.1
MAX_TOOL_LEASE_MS = 100 * 365 * 24 * 3600 * 1000  # a century
MAX_LANES = 256  # llama.cpp's LLAMA_MAX_SEQ
_RUNTIMES: Mapping[str, Runtime] = {
    "auto": "auto",
    "llamacpp": "llamacpp",
    "llama.cpp": "llamacpp",
    "llama-cpp": "llamacpp",
    "fake": "fake",
}


class Terminal(NamedTuple):
    """``is_there``: the server was started on one. ``can_draw``: what it takes to draw on it is installed."""

    is_there: bool
    can_draw: bool


NO_TERMINAL = Terminal(False, False)


@dataclass(frozen=True, kw_only=True)
class ServeFlags:
    """The flags as click hands them over; None and empty mean not given."""

    models: tuple[str, ...] = ()
    model_flags: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    is_offline: bool = False
    mmproj: str | None = None
    is_pulled_without_mmproj: bool = False
    http: str | None = None
    host: str | None = None
    port: int | None = None
    api_key: str | None = None
    key_policy: Path | None = None
    rate_limit_rpm: int = 0
    max_context: str | None = None
    max_batch: int | None = None
    max_tokens: int | None = None
    max_queue: int = 512
    threads: int | None = None
    adapts_threads: bool = True
    gpu_layers: int = -1
    flash_attention: FlashAttention = "auto"
    host_cache_gb: str = "auto"
    worker_timeout: float = 10.0
    stream_interval_ms: float = 16.0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    drain_timeout: float = 60.0
    log_filter: str = "info"
    log_directory: Path | None = None
    log_file: Path | None = None
    wants_monitor: bool | None = None
    continuous_batching: str | None = None
    sessions_directory: Path | None = None
    has_no_sessions: bool = False
    socket: Path | None = None
    web: str | None = None
    web_origins: tuple[str, ...] = ()
    http_commit_ms: float = 100.0
    http_session_ttl: float | None = None
    store_budget_gb: float | None = None
    tool_lease_ms: int = 0
    otlp_endpoint: str | None = None
    otlp_metrics: str | None = None
    otlp_headers: tuple[str, ...] = ()
    otlp_service_name: str = "superfluid"
    otlp_filter: str = OtlpConfig().span_filter
    otlp_queue: int = 8192
    otlp_batch_ms: float = 1000.0
    otlp_timeout_ms: float = 5000.0
    otlp_interval_ms: float = 15_000.0
    starvation_ticks: int = 8
    class_lanes: str | None = None
    prefill_budget: int = 0
    tick_target_ms: float = 400.0
    tick_decode_budget: int = 0
    http_default_qos: str = "agent"
    has_no_qos_header: bool = False
    allows_batch_invariant: bool = False
    speculate: str = "off"
    spec_draft_tokens: int | None = None
    is_spec_adaptive: bool | None = None
    spec_max_temperature: float | None = None
    spec_min_yield: float | None = None
    spec_yield_rounds: int | None = None
    has_spec_gate: bool | None = None
    spec_gate_probe_tokens: int | None = None
    spec_min_speedup: float | None = None
    spec_gate_reprobe: int | None = None
    spec_gate_reprobe_max: int | None = None
    completion_rate: float = 10.0
    completion_burst: int = 20
    completion_deadline_ms: int = 0
    fim_model: str | None = None
    fim_max_context: int | None = None
    fim_max_batch: int | None = None
    is_parking: bool | None = None
    park_budget_gb: float | None = None
    prefix_disk_gb: float | None = None
    kv_bits: int = 0
    pressure_high: int = 85
    pressure_low: int = 70
    pin_budget_pct: int = 50
    watches_os_pressure: bool = True
    loras: tuple[str, ...] = ()


def build_serve_config(
    flags: ServeFlags,
    environment: Mapping[str, str],
    *,
    cores: int,
    note: Callable[[str], None],
    terminal: Terminal = NO_TERMINAL,
    key_policy: bytes | None = None,
) -> ServeConfig:
    """The configuration of a server. Raises UsageError naming the flag or variable that is wrong.

    ``cores`` bounds ``--threads``. ``note`` is told what was taken differently from how it was written. ``terminal`` is
    what the monitor could be drawn on. ``key_policy`` is what the file of that flag holds.
    """
    require_at_least("--drain-timeout", flags.drain_timeout, 0)
    home = config.home_directory(environment)
    return ServeConfig(
        home=home,
        sessions=_sessions_config(flags, home, environment),
        model=_model_config(flags, environment, cores, note),
        generation=_generation_config(flags),
        http=_http_config(flags, environment, key_policy),
        log=LogConfig(filter=flags.log_filter, directory=flags.log_directory, file=flags.log_file),
        drain_timeout_seconds=flags.drain_timeout,
        hub=config.hub_settings(environment),
        completion=completion_config(flags),
        has_monitor=_has_monitor(flags.wants_monitor, terminal, note),
        node_name=environment_value(environment, "SUPERFLUID_NODE_NAME"),
        otlp=otlp_config(
            endpoint=flags.otlp_endpoint,
            metrics=flags.otlp_metrics,
            headers=flags.otlp_headers,
            service_name=flags.otlp_service_name,
            span_filter=flags.otlp_filter,
            queue=flags.otlp_queue,
            batch_ms=flags.otlp_batch_ms,
            timeout_ms=flags.otlp_timeout_ms,
            interval_ms=flags.otlp_interval_ms,
        ),
    )


def _has_monitor(wanted: bool | None, terminal: Terminal, note: Callable[[str], None]) -> bool:
    """On a terminal, unless it was refused; asked for, it must be possible."""
    if wanted and not terminal.is_there:
        raise UsageError("--tui draws on a terminal, and standard output is none", param="--tui")
    if wanted and not terminal.can_draw:
        raise UsageError("--tui needs Textual: pip install 'superfluid-llm[tui]'", param="--tui")
    if wanted is None and terminal.is_there and not terminal.can_draw:
        note("pip install 'superfluid-llm[tui]' for a monitor on this terminal")
    return wanted is not False and terminal.is_there and terminal.can_draw


def _model_config(
    flags: ServeFlags, environment: Mapping[str, str], cores: int, note: Callable[[str], None]
) -> ModelConfig:
    model = _the_model(flags)
    library = environment_value(environment, "SUPERFLUID_LLAMA_LIB")
    require_at_least("--max-queue", flags.max_queue, 0)
    require_at_least("--gpu-layers", flags.gpu_layers, -1)
    require_range("--stream-interval-ms", flags.stream_interval_ms, 0, 1000)
    require_at_least("--worker-timeout", flags.worker_timeout, MIN_WORKER_TIMEOUT_SECONDS)
    lanes = _lanes(flags)
    return ModelConfig(
        model=model,
        runtime=_runtime(flags.runtimes, model),
        window_tokens=context_window(flags.max_context, note),
        lanes=lanes,
        max_queue=flags.max_queue,
        threads=_threads(flags.threads, cores),
        adapts_threads=flags.adapts_threads,
        gpu_layers=flags.gpu_layers,
        flash_attention=flags.flash_attention,
        host_cache_bytes=_host_cache_bytes(flags.host_cache_gb),
        is_offline=flags.is_offline,
        mmproj=_mmproj(flags.mmproj),
        pulls_mmproj=not flags.is_pulled_without_mmproj,
        loras=lora_settings(flags.loras),
        llama_library_path=Path(library).expanduser() if library else None,
        is_engine_log_kept=_is_engine_log_kept(environment),
        worker_timeout_seconds=flags.worker_timeout,
        stream_interval_seconds=flags.stream_interval_ms / 1000,
        scheduling=scheduling_rules(flags, lanes, note),
        is_window_fitted=flags.max_context == "auto",
        kv_bits=kv_bits(flags),
        memory=memory_rules(flags, note),
        speculation=speculation_rules(flags, environment),
    )


def _is_engine_log_kept(environment: Mapping[str, str]) -> bool:
    names = ("SUPERFLUID_LLAMA_LOG", "SUPERFLUID_ENGINE_VERBOSE")
    return any(environment_value(environment, name) not in (None, "0") for name in names)


def _the_model(flags: ServeFlags) -> str | None:
    models = list(dict.fromkeys((*flags.models, *flags.model_flags)))
    if len(models) > 1:
        raise UsageError(f"one server serves one model for now, but {len(models)} are named: {', '.join(models)}")
    if models and not models[0]:
        raise UsageError("the model's name is empty; leave it out for the embedded default", param="--model")
    return models[0] if models else None


def _runtime(runtimes: tuple[str, ...], model: str | None) -> Runtime:
    """The last one given counts. ``MODEL=ID`` must name the model that is served."""
    chosen: Runtime = "auto"
    for text in runtimes:
        owner, _, name = text.rpartition("=")
        if owner and owner != model:
            raise UsageError(f"--runtime {text}: no model {owner!r} is being served", param="--runtime")
        if name not in _RUNTIMES:
            raise UsageError(f"--runtime must be one of {', '.join(_RUNTIMES)}, got {name!r}", param="--runtime")
        chosen = _RUNTIMES[name]
    return chosen


def _lanes(flags: ServeFlags) -> int:
    lanes = flags.max_batch
    if lanes is None and flags.continuous_batching:
        lanes = _whole_number("--continuous-batching", flags.continuous_batching)
    if lanes is None:
        return ModelConfig().lanes
    require_range("--max-batch", lanes, 1, MAX_LANES)
    return lanes


def _threads(threads: int | None, cores: int) -> int | None:
    if threads is None:
        return None
    require_at_least("--threads", threads, 1)
    if threads > cores:
        raise UsageError(
            f"--threads {threads} is more than the {cores} cores there are; more threads than cores only slow it down",
            param="--threads",
        )
    return threads


def _host_cache_bytes(text: str) -> int | None:
    if text == "auto":
        return None
    try:
        gigabytes = float(text)
    except ValueError:
        raise UsageError(f"--host-cache-gb must be a number or auto, got {text!r}", param="--host-cache-gb") from None
    return _gibibytes("--host-cache-gb", gigabytes, 0)


def _generation_config(flags: ServeFlags) -> GenerationConfig:
    if flags.max_tokens is not None:
        require_at_least("--max-tokens", flags.max_tokens, 1)
    if flags.top_k is not None:
        require_at_least("--top-k", flags.top_k, 0)
    bounded = (
        ("--temperature", flags.temperature, 2.0),
        ("--top-p", flags.top_p, 1.0),
        ("--min-p", flags.min_p, 1.0),
        ("--repeat-penalty", flags.repeat_penalty, 2.0),
    )
    for flag, value, high in bounded:
        if value is not None:
            require_range(flag, value, 0.0, high)
    return GenerationConfig(
        max_tokens=flags.max_tokens,
        sampling=SamplingOverrides(
            temperature=flags.temperature,
            top_p=flags.top_p,
            top_k=flags.top_k,
            min_p=flags.min_p,
            repeat_penalty=flags.repeat_penalty,
        ),
    )


def _http_config(flags: ServeFlags, environment: Mapping[str, str], key_policy: bytes | None) -> HttpConfig:
    host, port = flags.host, flags.port
    flag = "--port"
    if flags.http is not None:
        host, port = _address(flags.http)
        flag = "--http"
    if host is not None and not host.strip():
        raise UsageError("--host must not be empty", param="--host")
    if port is not None:
        require_range(flag, port, 0, 65_535)
    if flags.api_key is not None and not flags.api_key.strip():
        # Most likely an unset variable in a script: serving without a key would be the worst answer.
        raise UsageError("--api-key must not be empty; leave the flag out to serve without a key", param="--api-key")
    require_range("--rate-limit", flags.rate_limit_rpm, 0, MAX_REQUESTS_PER_MINUTE)
    api_key = None if flags.api_key is None else Secret(flags.api_key)
    return HttpConfig(
        host=DEFAULT_HTTP_HOST if host is None else host,
        port=DEFAULT_HTTP_PORT if port is None else port,
        api_key=api_key,
        qos=http_qos(flags),
        key_policy=() if key_policy is None else parse_key_policy(key_policy, environment, api_key),
        rate_limit_rpm=flags.rate_limit_rpm,
    )


def _sessions_config(flags: ServeFlags, home: Path, environment: Mapping[str, str]) -> SessionsConfig:
    for flag, value in (("--http-session-ttl", flags.http_session_ttl), ("--store-budget-gb", flags.store_budget_gb)):
        if value is not None and not 0 < value < 1e12:
            raise UsageError(f"{flag} must be above 0, got {value:g}", param=flag)
        if value is not None and flags.has_no_sessions:
            raise UsageError(f"--no-sessions keeps nothing that {flag} could let go of", param="--no-sessions")
    require_range("--http-commit-ms", flags.http_commit_ms, 0, 10_000)
    require_range("--tool-lease-ms", flags.tool_lease_ms, 0, MAX_TOOL_LEASE_MS)
    if flags.web_origins and not flags.web:
        raise UsageError("--web-origin has no effect without --web", param="--web-origin")
    if flags.has_no_sessions:
        if flags.sessions_directory or flags.socket or flags.web:
            raise UsageError("--no-sessions contradicts --sessions, --socket and --web", param="--no-sessions")
        if flags.is_parking or flags.park_budget_gb is not None or flags.prefix_disk_gb:
            raise UsageError(
                "--no-sessions keeps nothing on the disk: not with --park, --park-budget-gb and --prefix-disk-gb",
                param="--no-sessions",
            )
        return SessionsConfig()
    if flags.is_parking is False and flags.park_budget_gb is not None:
        raise UsageError("--park-budget-gb has no effect with --no-park", param="--park-budget-gb")
    return SessionsConfig(
        directory=(flags.sessions_directory or home / "sessions").expanduser(),
        socket=_socket_path(flags.socket, home, environment),
        web=None if flags.web is None else _web_address(flags.web),
        web_origins=flags.web_origins,
        http_commit_seconds=flags.http_commit_ms / 1000,
        http_ttl_seconds=flags.http_session_ttl,
        budget_bytes=None if flags.store_budget_gb is None else round(flags.store_budget_gb * 2**30),
        tool_lease_ms=flags.tool_lease_ms,
        is_parked=flags.is_parking is not False,
        park_budget_bytes=_gibibytes("--park-budget-gb", flags.park_budget_gb, DEFAULT_PARK_BUDGET_BYTES) or None,
        prefix_budget_bytes=_gibibytes("--prefix-disk-gb", flags.prefix_disk_gb, DEFAULT_PREFIX_BUDGET_BYTES),
    )


def _gibibytes(flag: str, value: float | None, default: int) -> int:
    if value is None:
        return default
    require_range(flag, value, 0, 1_000_000)
    # Rounded up: 0 has a meaning of its own, the opposite of a very small number's for some flags.
    return math.ceil(value * 2**30)


def _socket_path(given: Path | None, home: Path, environment: Mapping[str, str]) -> Path:
    if given is None:
        return default_socket_path(home, environment)
    if not is_socket_path_short_enough(given):
        raise UsageError(f"--socket {given} is too long for a unix socket", param="--socket")
    return given


def _web_address(text: str) -> tuple[str, int]:
    host, port = _address(text, "--web")
    require_range("--web", port, 0, 65_535)
    if host not in ("127.0.0.1", "::1", "localhost"):
        raise UsageError(
            f"--web listens on this machine only: 127.0.0.1, [::1] or localhost, not {host}", param="--web"
        )
    return host, port


def _address(text: str, flag: str = "--http") -> tuple[str, int]:
    """``host:port``; an IPv6 host stands in brackets."""
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or not port.isdecimal() or (":" in host and not is_bracketed):
        usual = 8460 if flag == "--web" else 8453
        example = f"127.0.0.1:{usual} or [::1]:{usual}"
        raise UsageError(f"{flag} must be ADDRESS:PORT, such as {example}, got {text!r}", param=flag)
    return host[1:-1] if is_bracketed else host, int(port)


def _whole_number(flag: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{flag} must be a whole number, got {text!r}", param=flag) from None


def _mmproj(text: str | None) -> str | None:
    if text is not None and not text.strip():
        raise UsageError("--mmproj needs a file, or none", param="--mmproj")
    return text
