"""From ``serve``'s flags for guessing ahead, and their variables, to the rules. Pure."""

from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

from superfluid.config import environment_value, require_at_least, require_range
from superfluid.domain.speculation import MAX_DRAFT_TOKENS, NO_SPECULATION, SpeculationRules, Strategy
from superfluid.errors import UsageError

_Number = TypeVar("_Number", int, float)

DRAFT_MODEL: Final = "draft-model:"
_PLAIN: Final[Mapping[str, Strategy]] = {"off": "off", "auto": "auto", "prompt-lookup": "prompt-lookup"}
_SWITCHES: Final = {
    "1": True,
    "true": True,
    "on": True,
    "yes": True,
    "0": False,
    "false": False,
    "off": False,
    "no": False,
}


class SpeculationFlags(Protocol):
    """The flags as click hands them over; ``None`` is not given."""

    @property
    def speculate(self) -> str: ...
    @property
    def spec_draft_tokens(self) -> int | None: ...
    @property
    def is_spec_adaptive(self) -> bool | None: ...
    @property
    def spec_max_temperature(self) -> float | None: ...
    @property
    def spec_min_yield(self) -> float | None: ...
    @property
    def spec_yield_rounds(self) -> int | None: ...
    @property
    def has_spec_gate(self) -> bool | None: ...
    @property
    def spec_gate_probe_tokens(self) -> int | None: ...
    @property
    def spec_min_speedup(self) -> float | None: ...
    @property
    def spec_gate_reprobe(self) -> int | None: ...
    @property
    def spec_gate_reprobe_max(self) -> int | None: ...


def speculation_rules(flags: SpeculationFlags, environment: Mapping[str, str]) -> SpeculationRules:
    """Raises UsageError naming the flag or the variable."""
    strategy, draft_model = _strategy(flags.speculate)
    default = NO_SPECULATION
    draft_tokens = default.draft_tokens if flags.spec_draft_tokens is None else flags.spec_draft_tokens
    require_range("--spec-draft-tokens", draft_tokens, 1, MAX_DRAFT_TOKENS)
    if flags.spec_max_temperature is not None:
        require_range("--spec-max-temperature", flags.spec_max_temperature, 0, 2)
    read = _Reader(environment)
    rules = SpeculationRules(
        strategy=strategy,
        draft_model=draft_model,
        draft_tokens=draft_tokens,
        is_adaptive=read.switch("SUPERFLUID_SPEC_ADAPTIVE", flags.is_spec_adaptive, default.is_adaptive),
        min_yield=read.number(
            "--spec-min-yield", "SUPERFLUID_SPEC_MIN_YIELD", flags.spec_min_yield, default.min_yield, 0.0
        ),
        yield_rounds=read.number(
            "--spec-yield-rounds", "SUPERFLUID_SPEC_LANE_YIELD_ROUNDS", flags.spec_yield_rounds, default.yield_rounds, 1
        ),
        has_gate=read.switch("SUPERFLUID_SPEC_GATE", flags.has_spec_gate, default.has_gate),
        gate_probe_tokens=read.number(
            "--spec-gate-probe-tokens",
            "SUPERFLUID_SPEC_GATE_PROBE",
            flags.spec_gate_probe_tokens,
            default.gate_probe_tokens,
            1,
        ),
        min_speedup=read.number(
            "--spec-min-speedup", "SUPERFLUID_SPEC_MIN_SPEEDUP", flags.spec_min_speedup, default.min_speedup, 1.0
        ),
        reprobe_steps=read.number(
            "--spec-gate-reprobe", "SUPERFLUID_SPEC_GATE_REPROBE", flags.spec_gate_reprobe, default.reprobe_steps, 1
        ),
        reprobe_max_steps=read.number(
            "--spec-gate-reprobe-max",
            "SUPERFLUID_SPEC_GATE_REPROBE_MAX",
            flags.spec_gate_reprobe_max,
            default.reprobe_max_steps,
            1,
        ),
        max_temperature=flags.spec_max_temperature,
    )
    if rules.reprobe_max_steps < rules.reprobe_steps:
        raise UsageError(
            f"--spec-gate-reprobe-max {rules.reprobe_max_steps} is below --spec-gate-reprobe {rules.reprobe_steps}",
            param="--spec-gate-reprobe-max",
        )
    return rules


def _strategy(text: str) -> tuple[Strategy, str | None]:
    if text.startswith(DRAFT_MODEL):
        path = text.removeprefix(DRAFT_MODEL)
        if not path.strip():
            raise UsageError("--speculate draft-model: needs the file of a model behind it", param="--speculate")
        return "draft-model", path
    if text not in _PLAIN:
        raise UsageError(
            f"--speculate must be one of {', '.join(_PLAIN)} or {DRAFT_MODEL}FILE.gguf, got {text!r}",
            param="--speculate",
        )
    return _PLAIN[text], None


class _Reader:
    """A flag's value, else its variable's, else the default."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def switch(self, variable: str, given: bool | None, default: bool) -> bool:
        text = environment_value(self._environment, variable)
        if given is not None or text is None:
            return default if given is None else given
        if text.lower() not in _SWITCHES:
            raise UsageError(f"{variable} must be 1 or 0, got {text!r}", param=variable)
        return _SWITCHES[text.lower()]

    def number(self, flag: str, variable: str, given: _Number | None, default: _Number, low: _Number) -> _Number:
        text = environment_value(self._environment, variable)
        if given is not None or text is None:
            value = default if given is None else given
            require_at_least(flag, value, low)
            return value
        try:
            value = type(default)(text)
        except ValueError:
            raise UsageError(f"{variable} must be a number, got {text!r}", param=variable) from None
        require_at_least(variable, value, low)
        return value
