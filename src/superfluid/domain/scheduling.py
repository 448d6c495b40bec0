"""The scheduling classes by name, and the rules an operator can set. Shared by all processes; pure."""

from typing import Final

from msgspec import Struct

from superfluid.domain.request import QosClass

_NAMES: Final = {
    QosClass.INTERACTIVE: ("interactive", "interactive-chat"),
    QosClass.COMPLETION: ("completion", "inline-completion"),
    QosClass.AGENT: ("agent", "foreground", "foreground-agent"),
    QosClass.BACKGROUND: ("background", "background-agent"),
}
CLASS_NAMES: Final = tuple(names[0] for names in _NAMES.values())
"""Best first."""
_CLASSES: Final = {name: qos for qos, names in _NAMES.items() for name in (*names, str(int(qos)))}


def parse_class(text: str) -> QosClass | None:
    """A class by its name, an alias or its number; case, blanks around it and ``_`` for ``-`` do not matter."""
    return _CLASSES.get(text.strip().lower().replace("_", "-"))


class SchedulingRules(Struct, frozen=True, kw_only=True):
    """What an operator may say about who runs when.

    ``tick_target_seconds`` is how long a prompt chunk and a decode step may take together while somebody decodes; it is
    also the unit in which waiting is counted. A job's class improves by one for every ``starvation_ticks`` of them that
    it has waited. ``class_lanes`` bounds the lanes of each class; ``None`` is all lanes. ``prefill_budget_tokens``
    bounds a chunk and ``decode_budget_tokens`` the lanes of a decode step; 0 does not.
    """

    tick_target_seconds: float = 0.4
    starvation_ticks: int = 8
    class_lanes: tuple[int | None, int | None, int | None, int | None] = (None, None, None, None)
    prefill_budget_tokens: int = 0
    decode_budget_tokens: int = 0


DEFAULT_RULES: Final = SchedulingRules()
