"""The configuration: one frozen tree, read once (defaults < environment < flags) and handed down. No module reads the
environment at import. Checks that need no I/O live here and raise UsageError naming the flag."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from superfluid.domain.memory import DEFAULT_MEMORY_RULES, MemoryRules
from superfluid.domain.request import QosClass, SamplingOverrides
from superfluid.domain.scheduling import DEFAULT_RULES, SchedulingRules
from superfluid.domain.speculation import NO_SPECULATION, SpeculationRules
from superfluid.errors import UsageError

FlashAttention = Literal["auto", "on", "off"]
Runtime = Literal["auto", "llamacpp", "fake"]

DEFAULT_HTTP_HOST = "127.0.0.1"
DEFAULT_HTTP_PORT = 8453
DEFAULT_HUB_ENDPOINT = "https://huggingface.co"
MAX_BODY_BYTES = 104_857_600
DEFAULT_PARK_BUDGET_BYTES = 20 << 30
DEFAULT_PREFIX_BUDGET_BYTES = 10 << 30


class Secret:
    """A string that does not show itself."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


class ModelConfig(Struct, frozen=True, kw_only=True):
    """The model to serve and how. ``model`` None is the embedded default; ``window_tokens`` None is automatic.

    ``mmproj`` is the path of the projector that lets it see images, ``none``, or None to look for one; a model from
    the hub comes with its projector unless ``pulls_mmproj`` is false. ``is_window_fitted``: nothing but a window that
    is fitted to the memory will do. ``kv_bits`` 0 is 16. ``loras`` are names and
    files of adapters.
    """

    model: str | None = None
    runtime: Runtime = "auto"
    window_tokens: int | None = None
    lanes: int = 8
    max_queue: int = 512
    threads: int | None = None
    adapts_threads: bool = True
    gpu_layers: int = -1
    flash_attention: FlashAttention = "auto"
    host_cache_bytes: int | None = None
    is_offline: bool = False
    llama_library_path: Path | None = None
    is_engine_log_kept: bool = False
    worker_timeout_seconds: float = 10.0
    stream_interval_seconds: float = 0.016
    scheduling: SchedulingRules = DEFAULT_RULES
    speculation: SpeculationRules = NO_SPECULATION
    mmproj: str | None = None
    pulls_mmproj: bool = True
    is_window_fitted: bool = False
    kv_bits: int = 0
    memory: MemoryRules = DEFAULT_MEMORY_RULES
    loras: tuple[tuple[str, Path], ...] = ()


class HubConfig(Struct, frozen=True, kw_only=True):
    """Where pulled models come from, and the cache that all clients of the hub share."""

    endpoint: str = DEFAULT_HUB_ENDPOINT
    cache_directory: Path = Path("~/.cache/huggingface/hub")
    token: Secret | None = None


class GenerationConfig(Struct, frozen=True, kw_only=True):
    """What a request that does not say gets."""

    max_tokens: int | None = None
    sampling: SamplingOverrides = SamplingOverrides()


class CompletionConfig(Struct, frozen=True, kw_only=True):
    """Requests to fill in the middle: ``rate`` a second and ``burst`` at once for each client (``rate`` 0 is without
    limit), and how long one may take (``None`` is as long as it does).

    ``model`` is another model than the served one that does them, with so many lanes and a window of its own (``None``
    is what it was trained for, up to 8192)."""

    rate: float = 10.0
    burst: int = 20
    deadline_seconds: float | None = None
    model: str | None = None
    window_tokens: int | None = None
    lanes: int = 2


class HttpQosConfig(Struct, frozen=True, kw_only=True):
    """The scheduling class of requests that name none, and whether a header may name one, ``best`` or worse."""

    default: QosClass = QosClass.AGENT
    has_headers: bool = True
    allows_batch_invariant: bool = False
    best: QosClass = QosClass.INTERACTIVE


class PolicyKey(Struct, frozen=True, kw_only=True):
    """A key of the key policy and what its holder may do.

    ``name`` is of letters, digits, ``.``, ``_`` and ``-``, and shown in metrics and the log. ``qos`` is the class of
    requests that name none, ``max_qos`` the best that may be named. ``rate_limit_rpm`` (requests a minute) and
    ``max_concurrent`` (requests in flight): 0 is without limit. ``variable`` is where the secret came from.
    """

    name: str
    secret: Secret
    qos: QosClass = QosClass.AGENT
    max_qos: QosClass = QosClass.AGENT
    allows_batch_invariant: bool = False
    is_admin: bool = False
    rate_limit_rpm: int = 0
    max_concurrent: int = 0
    variable: str | None = None


class HttpConfig(Struct, frozen=True, kw_only=True):
    """``key_policy`` holds no key twice. ``rate_limit_rpm`` is for each address, in requests a minute; 0 is without
    limit."""

    host: str = DEFAULT_HTTP_HOST
    port: int = DEFAULT_HTTP_PORT
    api_key: Secret | None = None
    max_body_bytes: int = MAX_BODY_BYTES
    keepalive_seconds: float = 15.0
    qos: HttpQosConfig = HttpQosConfig()
    key_policy: tuple[PolicyKey, ...] = ()
    rate_limit_rpm: int = 0

    @property
    def has_key(self) -> bool:
        """Whether clients must send one."""
        return self.api_key is not None or bool(self.key_policy)


class SessionsConfig(Struct, frozen=True, kw_only=True):
    """Where sessions are kept, and who may reach them.

    ``directory`` None keeps none: every request is forgotten, and there is no session API. ``web`` is the browser
    transport's address. Replies to requests that named no session are written every ``http_commit_seconds``, since
    their clients see them ahead of that anyway; ``http_ttl_seconds`` and ``budget_bytes`` bound what is kept of them.
    ``tool_lease_ms`` is the time that each tool call has for its result; 0 is for ever.
    ``is_parked``: the state behind a finished turn is kept on the disk too, up to ``park_budget_bytes`` (``None``: no
    bound). ``prefix_budget_bytes`` bounds the states of requests that named no session; 0 keeps none.
    """

    directory: Path | None = None
    socket: Path | None = None
    web: tuple[str, int] | None = None
    web_origins: tuple[str, ...] = ()
    http_commit_seconds: float = 0.1
    http_ttl_seconds: float | None = None
    budget_bytes: int | None = None
    tool_lease_ms: int = 0
    is_parked: bool = True
    park_budget_bytes: int | None = DEFAULT_PARK_BUDGET_BYTES
    prefix_budget_bytes: int = DEFAULT_PREFIX_BUDGET_BYTES


class LogConfig(Struct, frozen=True, kw_only=True):
    """``directory`` ``None`` logs to stderr. ``filter`` is an EnvFilter directive."""

    filter: str = "info"
    directory: Path | None = None
    file: Path | None = None


class OtlpConfig(Struct, frozen=True, kw_only=True):
    """Where spans and metrics are pushed; ``None`` pushes none. Both are whole URLs.

    ``span_filter`` is an EnvFilter directive. ``queue_spans`` bounds what may wait for the collector.
    """

    traces_url: str | None = None
    metrics_url: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    service_name: str = "superfluid"
    span_filter: str = "info,superfluid_daemon::scheduler=debug"
    queue_spans: int = 8192
    batch_seconds: float = 1.0
    timeout_seconds: float = 5.0
    interval_seconds: float = 15.0


class ServeConfig(Struct, frozen=True, kw_only=True):
    """Everything ``superfluid serve`` needs."""

    home: Path
    model: ModelConfig = ModelConfig()
    generation: GenerationConfig = GenerationConfig()
    http: HttpConfig = HttpConfig()
    log: LogConfig = LogConfig()
    drain_timeout_seconds: float = 60.0
    hub: HubConfig = HubConfig()
    node_name: str | None = None
    sessions: SessionsConfig = SessionsConfig()
    otlp: OtlpConfig = OtlpConfig()
    completion: CompletionConfig = CompletionConfig()
    has_monitor: bool = False


MAX_NUMBER: Final = 2**31 - 1


def environment_value(environment: Mapping[str, str], name: str) -> str | None:
    """The variable's value; empty or blank means not set."""
    return environment.get(name, "").strip() or None


def home_directory(environment: Mapping[str, str]) -> Path:
    """``$SUPERFLUID_HOME``, else ``~/.superfluid``; empty means not set."""
    value = environment_value(environment, "SUPERFLUID_HOME")
    return Path(value).expanduser() if value else _user_home(environment) / ".superfluid"


def default_socket_path(home: Path, environment: Mapping[str, str]) -> Path:
    """Where the session API's socket is unless somebody says otherwise: in ``home``, or, if its path would be too long
    for a socket, in the directory for temporary files under a name of the user's own."""
    default = home / "superfluid.sock"
    if is_socket_path_short_enough(default):
        return default
    temporary = environment_value(environment, "TMPDIR") or "/tmp"
    name = f"superfluid-{os.getuid()}.sock"
    moved = Path(temporary) / name
    return moved if is_socket_path_short_enough(moved) else Path("/tmp") / name


def is_socket_path_short_enough(path: Path) -> bool:
    """Whether a unix socket can have this path: the kernel keeps it in a field of fixed size, end included."""
    return len(os.fsencode(path)) < (104 if sys.platform == "darwin" else 108)


def hub_settings(environment: Mapping[str, str]) -> HubConfig:
    """What all clients of the hub read: HF_ENDPOINT, HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, HF_TOKEN.

    Raises UsageError if HF_ENDPOINT is no http address.
    """
    token = environment_value(environment, "HF_TOKEN")
    endpoint = environment_value(environment, "HF_ENDPOINT") or DEFAULT_HUB_ENDPOINT
    if not endpoint.startswith(("http://", "https://")):
        raise UsageError(f"HF_ENDPOINT must be an http:// or https:// address, got {endpoint!r}", param="HF_ENDPOINT")
    return HubConfig(
        endpoint=endpoint.rstrip("/"),
        cache_directory=_hub_cache(environment),
        token=Secret(token) if token else None,
    )


def _hub_cache(environment: Mapping[str, str]) -> Path:
    cache = environment_value(environment, "HF_HUB_CACHE")
    if cache:
        return Path(cache).expanduser()
    home = environment_value(environment, "HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    caches = environment_value(environment, "XDG_CACHE_HOME")
    parent = Path(caches).expanduser() if caches else _user_home(environment) / ".cache"
    return parent / "huggingface" / "hub"


def _user_home(environment: Mapping[str, str]) -> Path:
    return Path(environment_value(environment, "HOME") or os.path.expanduser("~"))


def require_range(flag: str, value: float, low: float, high: float) -> None:
    """Raises UsageError naming ``flag`` unless ``low`` <= ``value`` <= ``high`` (NaN fails)."""
    if not low <= value <= high:
        raise UsageError(f"{flag} must be between {low:.12g} and {high:.12g}, got {value:.12g}", param=flag)


def require_at_least(flag: str, value: float, low: float) -> None:
    """Raises UsageError naming ``flag`` unless ``value`` is a number of at least ``low`` (NaN fails). More than the
    largest of 32 bits is refused too: timers and llama.cpp take no more."""
    if not low <= value:
        raise UsageError(f"{flag} must be at least {low:.12g}, got {value:.12g}", param=flag)
    require_range(flag, value, low, MAX_NUMBER)
