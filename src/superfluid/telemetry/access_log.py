"""The access log: one line for every generation that succeeded on a chat or completion route. Lives in the daemon."""

import logging

from superfluid.sessions.interface import GenerationTiming

_UNKNOWN = "-"

_logger = logging.getLogger("superfluid_daemon::inference")


def log_generation(timing: GenerationTiming) -> None:
    """Writes the line at info. For generations that succeeded only; call it before the last chunk is sent."""
    if _logger.isEnabledFor(logging.INFO):
        _logger.info("%s", format_access_line(timing))


def format_access_line(timing: GenerationTiming) -> str:
    """``<-- 200 ROUTE model=... finish=...``, fields in a fixed order, so that scripts may cut it at spaces."""
    return (
        f"<-- 200 {timing.route} model={timing.model} prompt={timing.prompt_tokens} cached={timing.cached_tokens}"
        f" completion={timing.completion_tokens} ttft={_milliseconds(timing.first_token_seconds or 0.0)}ms"
        f" prefill={_prefill_rate(timing)} tok/s decode={_decode_rate(timing)} tok/s"
        f" total={_milliseconds(timing.total_seconds)}ms finish={timing.finish or _UNKNOWN}"
    )


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _prefill_rate(timing: GenerationTiming) -> str:
    """Tokens that were not cached over the time to the first token, no decimals."""
    seconds = timing.first_token_seconds
    prefilled = timing.prompt_tokens - min(timing.cached_tokens, timing.prompt_tokens)
    if seconds is None or seconds <= 0 or prefilled == 0:
        return _UNKNOWN
    return f"{prefilled / seconds:.0f}"


def _decode_rate(timing: GenerationTiming) -> str:
    """Tokens after the first delivery over the time since, one decimal. Over 1000 a second was not really measured."""
    seconds, tokens = timing.decode_seconds, timing.decode_tokens
    if seconds is None or seconds <= 0 or tokens == 0 or seconds * 1000 < tokens:
        return _UNKNOWN
    return f"{tokens / seconds:.1f}"
