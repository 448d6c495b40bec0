"""Which sampling parameters a generation gets: the request, over the operator's flags, over the model's own. Pure."""

from typing import TypeVar

from superfluid.domain.request import SamplingOverrides, SamplingParams

_T = TypeVar("_T")
_DEFAULT_TEMPERATURE = 1.0
_DEFAULT_TOP_K = 40


def merge_overrides(*places: SamplingOverrides) -> SamplingOverrides:
    """One place that says what the first of ``places`` to speak says, by the same rules as ``resolve_sampling``."""
    cuts = _first_cuts(places)
    return SamplingOverrides(
        temperature=_first([place.temperature for place in places]),
        top_p=cuts.top_p,
        min_p=cuts.min_p,
        top_k=cuts.top_k,
        repeat_penalty=_first([place.repeat_penalty for place in places]),
        presence_penalty=_first([place.presence_penalty for place in places]),
        frequency_penalty=_first([place.frequency_penalty for place in places]),
        seed=_first([place.seed for place in places]),
        logit_bias=next((place.logit_bias for place in places if place.logit_bias), {}),
    )


def resolve_sampling(*places: SamplingOverrides, fresh_seed: int) -> SamplingParams:
    """The parameters that the first of ``places`` to speak asks for.

    The three cuts (top_p, min_p, top_k) come from one place together, since they were chosen together; with none named,
    a sampled generation gets top_k 40 and a greedy one no cut. ``fresh_seed`` is used if no place names a seed.
    """
    merged = merge_overrides(*places)
    temperature = _or(merged.temperature, _DEFAULT_TEMPERATURE)
    has_cuts = (merged.top_p, merged.min_p, merged.top_k) != (None, None, None)
    default_top_k = 0 if has_cuts or temperature <= 0 else _DEFAULT_TOP_K
    return SamplingParams(
        temperature=temperature,
        top_p=_or(merged.top_p, 1.0),
        min_p=_or(merged.min_p, 0.0),
        top_k=default_top_k if merged.top_k is None else merged.top_k,
        repeat_penalty=_or(merged.repeat_penalty, 1.0) or 1.0,
        presence_penalty=_or(merged.presence_penalty, 0.0),
        frequency_penalty=_or(merged.frequency_penalty, 0.0),
        seed=fresh_seed if merged.seed is None else merged.seed,
        logit_bias=merged.logit_bias,
    )


def _first_cuts(places: tuple[SamplingOverrides, ...]) -> SamplingOverrides:
    for place in places:
        if (place.top_p, place.min_p, place.top_k) != (None, None, None):
            return place
    return SamplingOverrides()


def _first(values: list[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
