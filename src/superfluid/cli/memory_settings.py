"""From ``serve``'s memory flags to the configuration. Pure."""

from collections.abc import Callable
from typing import Final, Protocol

from superfluid.config import FlashAttention, require_at_least, require_range
from superfluid.domain.memory import MemoryRules
from superfluid.errors import UsageError

MIN_WINDOW_TOKENS: Final = 512
KV_BITS: Final = (0, 4, 8)


class MemoryFlags(Protocol):
    """The flags as click hands them over."""

    @property
    def kv_bits(self) -> int: ...
    @property
    def flash_attention(self) -> FlashAttention: ...
    @property
    def pressure_high(self) -> int: ...
    @property
    def pressure_low(self) -> int: ...
    @property
    def pin_budget_pct(self) -> int: ...
    @property
    def watches_os_pressure(self) -> bool: ...


def memory_rules(flags: MemoryFlags, note: Callable[[str], None]) -> MemoryRules:
    """Raises UsageError naming the flag. ``note`` is told of a budget that was brought down."""
    high, low, pins = flags.pressure_high, flags.pressure_low, flags.pin_budget_pct
    require_range("--pressure-high", high, 1, 100)
    require_at_least("--pressure-low", low, 0)
    if low >= high:
        raise UsageError(f"--pressure-low {low} must be below --pressure-high {high}", param="--pressure-low")
    require_range("--pin-budget-pct", pins, 0, 100)
    if pins > low:
        note(f"--pin-budget-pct {pins} becomes {low}, which is what --pressure-low leaves")
    return MemoryRules(
        pressure_high_percent=high,
        pressure_low_percent=low,
        pin_budget_percent=min(pins, low),
        watches_system=flags.watches_os_pressure,
    )


def kv_bits(flags: MemoryFlags) -> int:
    """Raises UsageError naming the flag."""
    if flags.kv_bits not in KV_BITS:
        raise UsageError(f"--kv-bits must be 0, 4 or 8, got {flags.kv_bits}", param="--kv-bits")
    if flags.kv_bits and flags.flash_attention == "off":
        raise UsageError(
            f"--kv-bits {flags.kv_bits} needs flash attention, and --flash-attn off turns it off", param="--kv-bits"
        )
    return flags.kv_bits


def context_window(text: str | None, note: Callable[[str], None]) -> int | None:
    """Tokens; ``None`` for as many as fit. Raises UsageError. ``note`` is told of a number that was raised."""
    if text is None or text == "auto":
        return None
    try:
        tokens = int(text)
    except ValueError:
        raise UsageError(
            f"--max-context must be a number of tokens or auto, got {text!r}", param="--max-context"
        ) from None
    require_at_least("--max-context", tokens, 1)
    if tokens < MIN_WINDOW_TOKENS:
        note(f"--max-context {tokens} is raised to {MIN_WINDOW_TOKENS}, the smallest window there is")
        return MIN_WINDOW_TOKENS
    require_range("--max-context", tokens, MIN_WINDOW_TOKENS, 2**31 - 1)
    return tokens
