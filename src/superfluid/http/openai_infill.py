"""What ``POST /v1/completions`` does differently when a suffix makes it fill in the middle. Pure."""

from typing import Any

from superfluid.domain.reply import ReplyFinished
from superfluid.domain.request import InfillPrompt
from superfluid.errors import InvalidRequestError, InvalidValueError, UnsupportedParameterError
from superfluid.http.dialect import Opening
from superfluid.http.openai_types import CompletionBody

_MODES = {"psm": False, "spm": True}


def infill_prompt(fields: CompletionBody, suffix: str) -> InfillPrompt:
    """The prompt is the prefix, and may be empty: the gap can be at the very beginning."""
    mode = (fields.fim_mode or "psm").lower()
    if mode not in _MODES:
        raise InvalidValueError(f"fim_mode must be psm or spm, got {fields.fim_mode!r}", param="fim_mode")
    if fields.echo:
        raise UnsupportedParameterError("echo does not go with a suffix", param="echo")
    if fields.logprobs is not None:
        raise UnsupportedParameterError("logprobs does not go with a suffix", param="logprobs")
    prompt = fields.prompt
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise InvalidRequestError("prompt must be one string where a suffix is given", param="prompt")
    return InfillPrompt(prefix=prompt, suffix=suffix, is_suffix_first=_MODES[mode])


def infill_extras(opening: Opening, finished: ReplyFinished) -> dict[str, Any]:
    """The members of our own that tell how it was answered."""
    return {
        "cached": finished.is_cached,
        "expired": finished.is_expired,
        "served_by": opening.served_by or opening.model_id,
    }
