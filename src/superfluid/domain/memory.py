"""What an operator may say about memory. Shared by all processes; pure."""

from typing import Final

from msgspec import Struct


class MemoryRules(Struct, frozen=True, kw_only=True):
    """The memory meant is what lanes and the host cache may hold together.

    When ``pressure_high_percent`` of it is used, prefixes are given up until ``pressure_low_percent`` is. Pins may hold
    ``pin_budget_percent`` of the host cache; with 0 they are recorded and hold nothing. ``watches_system``: the
    operating system's own signs of pressure count too.
    """

    pressure_high_percent: int = 85
    pressure_low_percent: int = 70
    pin_budget_percent: int = 50
    watches_system: bool = True


DEFAULT_MEMORY_RULES: Final = MemoryRules()
