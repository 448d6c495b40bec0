"""From ``serve``'s OTLP flags to the configuration. Pure; raises UsageError naming the flag that is wrong."""

import re
from urllib.parse import SplitResult, urlsplit

from superfluid.config import OtlpConfig
from superfluid.errors import InvalidValueError, UsageError
from superfluid.telemetry.filter import parse_filter

# RFC 9110: a field name is a token; a value is visible ASCII and blanks.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")


def otlp_config(
    *,
    endpoint: str | None,
    metrics: str | None,
    headers: tuple[str, ...],
    service_name: str,
    span_filter: str,
    queue: int,
    batch_ms: float,
    timeout_ms: float,
    interval_ms: float,
) -> OtlpConfig:
    """Checked, with the paths that collectors expect put behind the addresses."""
    bounded = (
        ("--otlp-queue", queue),
        ("--otlp-batch-ms", batch_ms),
        ("--otlp-timeout-ms", timeout_ms),
        ("--otlp-interval-ms", interval_ms),
    )
    for flag, value in bounded:
        if not 0 < value < 1e12:
            raise UsageError(f"{flag} must be above 0, got {value:g}", param=flag)
    if not service_name.strip():
        raise UsageError("--otlp-service-name must not be empty", param="--otlp-service-name")
    try:
        parse_filter(span_filter)
    except InvalidValueError as error:
        raise UsageError(f"--otlp-filter: {error.message}", param="--otlp-filter") from error
    return OtlpConfig(
        traces_url=None if endpoint is None else _url("--otlp-endpoint", endpoint, "/v1/traces"),
        metrics_url=None if metrics is None else _url("--otlp-metrics", metrics, "/v1/metrics"),
        headers=tuple(_header(text) for text in headers),
        service_name=service_name.strip(),
        span_filter=span_filter,
        queue_spans=queue,
        batch_seconds=batch_ms / 1000,
        timeout_seconds=timeout_ms / 1000,
        interval_seconds=interval_ms / 1000,
    )


def _url(flag: str, text: str, path: str) -> str:
    """The address with ``path`` at its end. Messages never repeat what stands before an ``@``: it may be a password."""
    scheme = text.partition("://")[0].lower()
    if scheme == "https":
        raise UsageError(
            f"{flag} takes plain http:// only: run a collector on this machine and let it forward with TLS", param=flag
        )
    parts = _split(flag, text)
    if parts.query or parts.fragment:
        raise UsageError(f"{flag} must not have a query or a fragment", param=flag)
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"{flag} must not hold a user name or password; use --otlp-header", param=flag)
    base = text.rstrip("/")
    return base if base.endswith(path) else base + path


def _split(flag: str, text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        is_complete = parts.scheme == "http" and bool(parts.hostname) and (parts.port is None or parts.port >= 0)
    except ValueError:  # a port that is no number or out of range, a bracket that is not closed
        is_complete = False
    if not is_complete or any(character.isspace() or not character.isprintable() for character in text):
        raise UsageError(f"{flag} must be an address such as http://127.0.0.1:4318", param=flag)
    return parts


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    name, value = name.strip(), value.strip()
    if not equals or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
        # The value may be a secret: it is not repeated.
        shown = name if _HEADER_NAME.fullmatch(name) else "the name given"
        raise UsageError(f"--otlp-header must be NAME=VALUE in plain ASCII; {shown} is not", param="--otlp-header")
    return name, value
