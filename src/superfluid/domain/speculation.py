"""How tokens are guessed ahead, as an operator can set it. Shared by all processes; pure."""

from typing import Final, Literal

from msgspec import Struct

Strategy = Literal["off", "auto", "prompt-lookup", "draft-model"]

MAX_DRAFT_TOKENS: Final = 15


class SpeculationRules(Struct, frozen=True, kw_only=True):
    """``auto`` is prompt lookup where the model's state can be cut, and nothing elsewhere.

    ``draft_model`` is the path of the model that drafts, for ``draft-model``. A draft begins with ``draft_tokens``
    tokens; with ``is_adaptive`` its depth then follows what is accepted, between 1 and ``MAX_DRAFT_TOKENS``.

    A request gives up after two spans of ``yield_rounds`` drafts, with none between that did better, in which fewer
    than ``min_yield`` tokens a draft were accepted. With ``has_gate``, drafting is judged for each count of lanes after
    every ``gate_probe_tokens`` drafted tokens: where it does not make them ``min_speedup`` times as fast, it rests
    for ``reprobe_steps`` steps, and twice as long each time until ``reprobe_max_steps``.
    ``max_temperature`` bounds the temperature that the model recommends.
    """

    strategy: Strategy = "off"
    draft_model: str | None = None
    draft_tokens: int = 4
    is_adaptive: bool = True
    min_yield: float = 0.75
    yield_rounds: int = 24
    has_gate: bool = True
    gate_probe_tokens: int = 16
    min_speedup: float = 1.08
    reprobe_steps: int = 32
    reprobe_max_steps: int = 1024
    max_temperature: float | None = None

    @property
    def is_on(self) -> bool:
        return self.strategy != "off"


NO_SPECULATION: Final = SpeculationRules()
