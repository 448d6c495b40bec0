"""The fields that both OpenAI routes share, checked and translated. Pure; raises CallerError only."""

from superfluid.domain.request import SamplingOverrides
from superfluid.http.openai_types import GenerationFields
from superfluid.http.request_fields import INT32_MAX, SEED_MODULUS, check_range, seed_value, top_k_limit

MAX_TOP_LOGPROBS = 20
_RANGES = (
    ("temperature", 0.0, 2.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repeat_penalty", 0.0, 2.0),
    ("repetition_penalty", 0.0, 2.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)


def sampling_overrides(fields: GenerationFields) -> SamplingOverrides:
    """What the request says of sampling. Raises InvalidValueError naming the field that is out of range."""
    for name, low, high in _RANGES:
        check_range(name, getattr(fields, name), low, high)
    repeat_penalty = fields.repeat_penalty if fields.repeat_penalty is not None else fields.repetition_penalty
    return SamplingOverrides(
        temperature=fields.temperature,
        top_p=fields.top_p,
        min_p=fields.min_p,
        top_k=top_k_limit(fields.top_k),
        repeat_penalty=repeat_penalty,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        seed=seed_value(fields.seed),
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
        seed=(sampling.seed + offset) % SEED_MODULUS,
        logit_bias=sampling.logit_bias,
    )


def _logit_bias(bias: dict[str, float]) -> dict[int, float]:
    """Keys that are no token id are skipped."""
    result: dict[int, float] = {}
    for key, value in bias.items():
        check_range("logit_bias", value, -100, 100)
        if key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= INT32_MAX:
            result[int(key)] = value
    return result
