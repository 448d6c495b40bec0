"""Log filter directives in the grammar of Rust's ``EnvFilter``, which operators know. Pure.

``[TARGET][=LEVEL]`` items, separated by commas; a bare level is the default for targets that no item names. Items
with a span part (``[span{field=value}]``) are checked for form and otherwise ignored: logs are not filtered by span.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from superfluid.errors import InvalidValueError

TRACE, DEBUG, INFO, WARN, ERROR, OFF = 5, 10, 20, 30, 40, 100

_LEVELS = {"off": OFF, "error": ERROR, "warn": WARN, "info": INFO, "debug": DEBUG, "trace": TRACE}
_LEVELS |= {str(number): level for number, level in enumerate((OFF, ERROR, WARN, INFO, DEBUG, TRACE))}
_LEVEL = "|".join(_LEVELS)
_ITEM = re.compile(
    rf"(?P<default>(?i:{_LEVEL}))"
    rf"|(?P<target>[\w:.-]+)?(?P<span>\[[^\[\]]*\])?(?:=(?P<level>(?i:{_LEVEL}))?)?",
    re.ASCII,
)
_SPLIT = re.compile(r"(?:\[[^\[\]]*\]|[^,])+")  # a comma between brackets belongs to the span part


class Directive(NamedTuple):
    target: str
    level: int


class LogFilter(NamedTuple):
    """``directives`` are in falling order of target length; ``default`` counts where none of them matches."""

    directives: tuple[Directive, ...]
    default: int

    def level_for(self, target: str) -> int:
        """The lowest level that is let through at ``target``: that of the longest target that it starts with."""
        return next((item.level for item in self.directives if target.startswith(item.target)), self.default)

    def has_directive_for(self, target: str) -> bool:
        return any(target.startswith(item.target) for item in self.directives)

    @property
    def lowest_level(self) -> int:
        """No target lets anything through below this."""
        return min(self.default, *(item.level for item in self.directives), OFF)


@lru_cache(maxsize=16)
def parse_filter(directive: str) -> LogFilter:
    """Of two items for the same target the later counts. With no item that has an effect, errors pass.

    Raises InvalidValueError naming the item that is no directive.
    """
    levels: dict[str, int] = {}
    default: int | None = None
    for item in _items(directive):
        match = _ITEM.fullmatch(item)
        if match is None or item.startswith("="):
            raise InvalidValueError(f"'{item}' is not a log filter directive", param="log_filter")
        if match["default"] is not None:
            default = _LEVELS[match["default"].lower()]
        elif match["span"] is None:
            levels[match["target"]] = _LEVELS[(match["level"] or "trace").lower()]
    if default is None:
        default = OFF if levels else ERROR
    by_length = sorted(levels.items(), key=lambda entry: -len(entry[0]))
    return LogFilter(tuple(Directive(target, level) for target, level in by_length), default)


def _items(directive: str) -> list[str]:
    return [text for item in _SPLIT.findall(directive) if (text := item.strip())]
