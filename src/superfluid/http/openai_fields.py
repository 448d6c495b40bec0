"""The fields that both OpenAI routes share, checked and translated. Pure; raises CallerError only."""

from collections.abc import Sequence

from superfluid.domain.request import SamplingOverrides
from superfluid.errors import InvalidRequestError, InvalidValueError
from superfluid.http.openai_types import GenerationFields

MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 16
_INT32_MAX = 2**31 - 1
_SEED_MODULUS = 2**63
_RANDOM_SEED = -1
_RANGES = (
    ("temperature", 0.0, 2.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repeat_penalty", 0.0, 2.0),
    ("repetition_penalty", 0.0, 2.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)


def required_model(fields: GenerationFields) -> str:
    if not fields.model:
        raise InvalidRequestError("the request names no model; GET /v1/models says what is served", param="model")
    return fields.model


def sampling_overrides(fields: GenerationFields) -> SamplingOverrides:
    """What the request says of sampling. Raises InvalidValueError naming the field that is out of range."""
    for name, low, high in _RANGES:
        check_range(name, getattr(fields, name), low, high)
    repeat_penalty = fields.repeat_penalty if fields.repeat_penalty is not None else fields.repetition_penalty
    return SamplingOverrides(
        temperature=fields.temperature,
        top_p=fields.top_p,
        min_p=fields.min_p,
        top_k=_top_k(fields.top_k),
        repeat_penalty=repeat_penalty,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        seed=_seed(fields.seed),
        logit_bias=_logit_bias(fields.logit_bias or {}),
    )


def reseed(sampling: SamplingOverrides, offset: int) -> SamplingOverrides:
    """The parameters of reply ``offset`` of a request for several: its own seed if the request has one."""
    if sampling.seed is None or offset == 0:
        return sampling
    return SamplingOverrides(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        top_k=sampling.top_k,
        repeat_penalty=sampling.repeat_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seed=(sampling.seed + offset) % _SEED_MODULUS,
        logit_bias=sampling.logit_bias,
    )


def token_limit(name: str, value: int | None) -> int | None:
    """At least 1; more than any window is as good as the largest."""
    if value is None:
        return None
    if value < 1:
        hint = "; without it a reply may fill the window" if value == -1 else ""
        raise InvalidValueError(f"{name} must be at least 1, got {value}{hint}", param=name)
    return min(value, _INT32_MAX)


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidValueError(f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(strings)}", param="stop")
    if not all(strings):
        raise InvalidValueError("stop must not hold an empty string", param="stop")
    return strings


def check_range(name: str, value: float | None, low: float, high: float) -> None:
    """Raises InvalidValueError."""
    if value is not None and not low <= value <= high:
        raise InvalidValueError(f"{name} must be between {low:g} and {high:g}, got {value:g}", param=name)


def _top_k(value: int | None) -> int | None:
    """0 and -1 (other servers' way of saying it) cut nothing."""
    if value is None:
        return None
    if value < -1:
        raise InvalidValueError(f"top_k must be at least 0, got {value}", param="top_k")
    return min(max(value, 0), _INT32_MAX)


def _seed(value: int | None) -> int | None:
    """-1 is other servers' way of asking for a random one. Any other integer is taken, reduced to 63 bits."""
    return None if value is None or value == _RANDOM_SEED else value % _SEED_MODULUS


def _logit_bias(bias: dict[str, float]) -> dict[int, float]:
    """Keys that are no token id are skipped."""
    result: dict[int, float] = {}
    for key, value in bias.items():
        check_range("logit_bias", value, -100, 100)
        if key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= _INT32_MAX:
            result[int(key)] = value
    return result
