"""The fields that both generating routes of Ollama's API share, checked and translated. Pure; raises CallerError only,
but for one line in the log about each option that has no effect."""

import logging
import re
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from superfluid.domain.request import SamplingOverrides
from superfluid.errors import InvalidRequestError, InvalidValueError, UnsupportedParameterError
from superfluid.http.json_codec import decode_body, encode
from superfluid.http.ollama_types import GeneratingBody, Options, UnusedOptions
from superfluid.http.openai_fields import MAX_TOP_LOGPROBS
from superfluid.http.request_fields import INT32_MAX, check_range, seed_value, token_limit, top_k_limit

_T = TypeVar("_T")
_members_decoder = msgspec.json.Decoder(dict[str, Any])
_logger = logging.getLogger("superfluid_daemon")

# Until the window is full.
_NO_LIMIT: Final = (-1, -2)
# More makes no difference to a draw, and fits whatever it is stored in.
_LARGEST: Final = 1000.0
_EFFORTS: Final = ("minimal", "low", "medium", "high")
_DURATION: Final = re.compile(r"[+-]?(?:\d+|(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)


class UnusedOptionsLog:
    """Tells the log about an option that has no effect, the first time a client sends it. Thread-safe."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def note(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._told:
                self._told.add(name)
                _logger.warning("a request of Ollama's API sets %s, which has no effect here", name)


def decode_known(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """As ``decode_body``. A field that Ollama does not have is refused, unless it is null."""
    try:
        return decode_body(decoder, body)
    except InvalidRequestError as error:
        if "unknown field" not in error.message:
            raise
    members = _without_nulls(decode_body(_members_decoder, body))
    if isinstance(members.get("options"), dict):
        members["options"] = _without_nulls(members["options"])
    return decode_body(decoder, encode(members))


def _without_nulls(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def unused_options(options: Options) -> list[str]:
    """The names of those that are set and have no effect."""
    return [name for name in UnusedOptions.__struct_fields__ if getattr(options, name) is not None]


def sampling_overrides(options: Options) -> SamplingOverrides:
    """What the request says of sampling. Raises InvalidValueError naming the option that is out of range."""
    for name in ("top_p", "min_p"):
        check_range(name, getattr(options, name), 0.0, 1.0)
    for name in ("presence_penalty", "frequency_penalty"):
        check_range(name, getattr(options, name), -2.0, 2.0)
    if options.repeat_penalty is not None and options.repeat_penalty <= 0:
        raise InvalidValueError("repeat_penalty must be greater than 0; 1 is none", param="options.repeat_penalty")
    if options.temperature is not None and options.temperature < 0:
        raise InvalidValueError("temperature must be at least 0", param="options.temperature")
    return SamplingOverrides(
        temperature=_bounded(options.temperature),
        top_p=options.top_p,
        min_p=options.min_p,
        top_k=top_k_limit(options.top_k),
        repeat_penalty=_bounded(options.repeat_penalty),
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        seed=seed_value(options.seed),
    )


def reply_limit(options: Options) -> int | None:
    """The most tokens of a reply; -1 and -2 let it fill the window, whatever the server's own default."""
    if options.num_predict in _NO_LIMIT:
        return INT32_MAX
    return token_limit("num_predict", options.num_predict)


def logprobs_wanted(body: GeneratingBody) -> int | None:
    """As ``GenerationRequest.logprobs``."""
    check_range("top_logprobs", body.top_logprobs, 0, MAX_TOP_LOGPROBS)
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidValueError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None


def thinking_kwargs(think: bool | str | None) -> dict[str, Any]:
    """What the template is told; nothing leaves it its default. A template that knows no thinking ignores it."""
    if think is None or think == "":
        return {}
    if isinstance(think, bool):
        return {"enable_thinking": think}
    if think not in _EFFORTS:
        raise InvalidValueError(f"think must be true, false or one of {', '.join(_EFFORTS)}", param="think")
    return {"enable_thinking": True, "reasoning_effort": think}


def refuse_format(wanted: str | dict[str, Any] | None) -> None:
    """Raises UnsupportedParameterError for what would need the output to be forced into a form."""
    if wanted is None or wanted == "":
        return
    if isinstance(wanted, str) and wanted != "json":
        raise InvalidValueError("format must be 'json' or a JSON schema", param="format")
    raise UnsupportedParameterError("this server cannot force JSON yet: leave format out", param="format")


def check_keep_alive(keep_alive: float | str | None) -> None:
    """Any duration will do: the model stays loaded as long as the server runs. Raises InvalidValueError for others."""
    if isinstance(keep_alive, str) and keep_alive and not _DURATION.fullmatch(keep_alive):
        raise InvalidValueError("keep_alive must be seconds, or a duration such as '5m' or '-1'", param="keep_alive")


def _bounded(value: float | None) -> float | None:
    return None if value is None else min(value, _LARGEST)
