"""From ``serve``'s scheduling flags to the rules. Pure."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from superfluid.config import HttpQosConfig, require_at_least, require_range
from superfluid.domain.request import QosClass
from superfluid.domain.scheduling import CLASS_NAMES, SchedulingRules, parse_class
from superfluid.errors import UsageError

MIN_PREFILL_BUDGET_TOKENS: Final = 64
MAX_PREFILL_BUDGET_TOKENS: Final = 4096
MAX_TICK_TARGET_MS: Final = 60_000


class SchedulingFlags(Protocol):
    """The flags as click hands them over."""

    @property
    def starvation_ticks(self) -> int: ...
    @property
    def class_lanes(self) -> str | None: ...
    @property
    def prefill_budget(self) -> int: ...
    @property
    def tick_target_ms(self) -> float: ...
    @property
    def tick_decode_budget(self) -> int: ...
    @property
    def http_default_qos(self) -> str: ...
    @property
    def has_no_qos_header(self) -> bool: ...
    @property
    def allows_batch_invariant(self) -> bool: ...


def scheduling_rules(flags: SchedulingFlags, lanes: int, note: Callable[[str], None]) -> SchedulingRules:
    """Raises UsageError naming the flag. ``note`` is told of a budget that was clamped."""
    require_at_least("--starvation-ticks", flags.starvation_ticks, 1)
    require_at_least("--tick-decode-budget", flags.tick_decode_budget, 0)
    require_range("--tick-target-ms", flags.tick_target_ms, 1, MAX_TICK_TARGET_MS)
    return SchedulingRules(
        tick_target_seconds=flags.tick_target_ms / 1000,
        starvation_ticks=flags.starvation_ticks,
        class_lanes=_class_lanes(flags.class_lanes, lanes),
        prefill_budget_tokens=_prefill_budget(flags.prefill_budget, note),
        decode_budget_tokens=flags.tick_decode_budget,
    )


def http_qos(flags: SchedulingFlags) -> HttpQosConfig:
    """Raises UsageError naming the flag."""
    if flags.has_no_qos_header and flags.allows_batch_invariant:
        raise UsageError(
            "--no-http-qos-header contradicts --http-allow-batch-invariant: it takes away the header that asks for it",
            param="--no-http-qos-header",
        )
    return HttpQosConfig(
        default=_class("--http-default-qos", flags.http_default_qos),
        has_headers=not flags.has_no_qos_header,
        allows_batch_invariant=flags.allows_batch_invariant,
    )


def _class_lanes(text: str | None, lanes: int) -> tuple[int | None, int | None, int | None, int | None]:
    """``CLASS=N`` pairs with commas between."""
    caps: dict[QosClass, int] = {}
    for part in text.split(",") if text is not None else ():
        name, sign, number = part.partition("=")
        if not sign or not number.strip().isdecimal():
            raise UsageError(
                f"--class-lanes must be CLASS=N pairs such as agent=4, got {part!r}", param="--class-lanes"
            )
        qos = _class("--class-lanes", name)
        if qos in caps:
            raise UsageError(f"--class-lanes names {CLASS_NAMES[qos]} twice", param="--class-lanes")
        cap = int(number)
        if not 1 <= cap <= lanes:
            raise UsageError(
                f"--class-lanes {part.strip()} must be between 1 and the {lanes} lanes of --max-batch",
                param="--class-lanes",
            )
        caps[qos] = cap
    first, second, third, fourth = (caps.get(qos) for qos in QosClass)
    return first, second, third, fourth


def _prefill_budget(tokens: int, note: Callable[[str], None]) -> int:
    require_at_least("--prefill-budget", tokens, 0)
    clamped = min(max(tokens, MIN_PREFILL_BUDGET_TOKENS), MAX_PREFILL_BUDGET_TOKENS) if tokens else 0
    if clamped != tokens:
        note(f"--prefill-budget {tokens} becomes {clamped}, which is as far as it goes")
    return clamped


def _class(flag: str, text: str) -> QosClass:
    qos = parse_class(text)
    if qos is None:
        raise UsageError(f"{flag} knows the classes {_listed(CLASS_NAMES)}, not {text.strip()!r}", param=flag)
    return qos


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
