"""How a chat's sessions draw their tokens, and what the server says of itself on its metrics page. Pure."""

import re
import secrets

from msgspec import Struct, structs

from superfluid.domain.events import GenParams

_SERIES = re.compile(r"^superfluid_(\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class ServerFacts(Struct, frozen=True):
    """``None`` and empty: the server does not say. ``sampling`` is what it recommends, by parameter."""

    model: str | None = None
    window_tokens: int | None = None
    sampling: dict[str, float] = {}


class SamplingFlags(Struct, frozen=True, kw_only=True):
    """What was asked for on the command line; ``None`` leaves it to the model."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None

    @property
    def is_given(self) -> bool:
        return any(value is not None for value in structs.astuple(self))


def read_facts(page: str) -> ServerFacts:
    """From the text of a metrics page."""
    model: str | None = None
    window: int | None = None
    sampling: dict[str, float] = {}
    for name, labels, value in _SERIES.findall(page):
        known = {key: re.sub(r"\\(.)", r"\1", text) for key, text in _LABEL.findall(labels)}
        if name == "model_info":
            model = known.get("model")
        elif name == "context_tokens":
            window = int(float(value))
        elif name == "default_sampling":
            sampling[known.get("parameter", "")] = float(value)
    return ServerFacts(model, window, sampling)


def chat_params(flags: SamplingFlags, recommended: dict[str, float]) -> GenParams:
    """The flags, over what the server recommends, over values that suit a conversation.

    The three cuts are taken from one place together, since they were chosen together. A seed not given is drawn.
    """
    temperature = _first(flags.temperature, recommended.get("temperature"), 0.7)
    if any(cut is not None for cut in (flags.top_p, flags.top_k, flags.min_p)):
        cuts = _first(flags.top_p, 1.0), _first(flags.min_p, 0.0), int(_first(flags.top_k, 0))
    elif {"top_p", "min_p", "top_k"} & recommended.keys():
        cuts = recommended.get("top_p", 1.0), recommended.get("min_p", 0.0), int(recommended.get("top_k", 0))
    else:
        cuts = 0.95, 0.05, 40
    top_p, min_p, top_k = cuts
    return GenParams(temperature, top_p, min_p, top_k, fresh_seed() if flags.seed is None else flags.seed)


def fresh_seed() -> int:
    """Never 0, and small enough for every JSON reader."""
    return 1 + secrets.randbelow(2**53 - 1)


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
