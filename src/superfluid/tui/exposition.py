"""Reads a metrics page: the numbers by their series, as the text format writes them. Pure."""

import re
from collections.abc import Mapping

_HOST = re.compile(r'superfluid_node_info\{host="((?:[^"\\]|\\.)*)"\}')
_ESCAPED = re.compile(r"\\(.)")


def parse_exposition(text: str) -> dict[str, float]:
    """Every series of the page, labels included in its key. Raises ValueError for what is no such page."""
    series: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.isspace() and not line.startswith("#"):
            key, _, value = line.rpartition(" ")
            series[key] = float(value)
    return series


def host_of(series: Mapping[str, float]) -> str | None:
    """What the node calls itself, if it says so. Without what could move a terminal's cursor."""
    for key in series:
        match = _HOST.fullmatch(key)
        if match is not None:
            name = _ESCAPED.sub(lambda found: {"n": "\n"}.get(found[1], found[1]), match[1])
            return "".join(character for character in name if character.isprintable()) or None
    return None
