"""Keeps client text from ever forging a marker: look-alikes are hidden from the template and put back behind it. Pure;
daemon.

A look-alike in a client's string is replaced by one private-use character while the template runs, so the template can
neither see nor complete it; the text between the template's own markers gets it back before it is tokenized as ordinary
text. Hidden is what could become part of a marker: a whole marker's text, an unfinished one at a string's end, the rest
of one at its beginning, and a short string that a template might put between brackets of its own (``<`` + name +
``>``).
"""

import bisect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from superfluid.chat.markers import marker_pattern
from superfluid.errors import UnsupportedInputError

_PRIVATE_PLANES: Final = ((0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))
_PRIVATE: Final = re.compile("[\U000f0000-\U0010ffff]")
_CORE: Final = re.compile(r"(?P<left>[^\w\s]+)(?P<core>.*?)(?P<right>[^\w\s]+)", re.DOTALL)


class LookAlikes:
    """What can become a marker of one vocabulary. Immutable."""

    def __init__(self, markers: Iterable[str]) -> None:
        self._sorted = sorted(set(markers))
        self._reversed = sorted(text[::-1] for text in self._sorted)
        self.pattern = marker_pattern(self._sorted)
        self.first_characters = frozenset(text[0] for text in self._sorted)
        self.last_characters = frozenset(text[-1] for text in self._sorted)
        self.longest = max((len(text) for text in self._sorted), default=0)
        self.cores = frozenset(core for text in self._sorted for core in _cores(text))

    def begins_marker(self, text: str) -> bool:
        """Whether ``text`` is the beginning of a marker, or all of one."""
        return _has_prefix(self._sorted, text)

    def ends_marker(self, text: str) -> bool:
        """Whether ``text`` is the end of a marker, or all of one."""
        return _has_prefix(self._reversed, text[::-1])


def _has_prefix(texts: list[str], prefix: str) -> bool:
    index = bisect.bisect_left(texts, prefix)
    return index < len(texts) and texts[index].startswith(prefix)


def _cores(marker: str) -> Iterator[str]:
    """What is left of a marker when some or all of the signs on both its sides are taken off."""
    match = _CORE.fullmatch(marker)
    if match is None or not match["core"]:
        return
    for left in range(len(match["left"])):
        for right in range(len(match["right"])):
            yield match["left"][left + 1 :] + match["core"] + match["right"][: len(match["right"]) - right - 1]


class TextGuard:
    """Guards the strings of one conversation. ``taken`` are private-use characters that must not be used: those that
    the client or the template wrote."""

    def __init__(self, look_alikes: LookAlikes, taken: frozenset[str]) -> None:
        self._look_alikes = look_alikes
        self._free = (
            chr(code) for low, high in _PRIVATE_PLANES for code in range(low, high + 1) if chr(code) not in taken
        )
        self._placeholders: dict[str, str] = {}
        self._hidden: dict[int, str] = {}
        self.sign = self._take()
        """A character that occurs nowhere, for the caller's use."""

    def guard(self, text: str) -> str:
        """``text`` with its look-alikes hidden."""
        known = self._look_alikes
        if known.pattern is None or not text:
            return text
        if any(character in text for character in known.first_characters):
            text = known.pattern.sub(lambda match: self._placeholder(match.group()), text)
            text = self._guard_end(text)
        return self._guard_start(text)

    def guard_json(self, value: Any) -> Any:
        """A copy of a JSON value with every string in it guarded, keys included."""
        if isinstance(value, str):
            return self.guard(value)
        if isinstance(value, Mapping):
            return {self.guard(str(key)): self.guard_json(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.guard_json(item) for item in value]
        return value

    def restore(self, text: str) -> str:
        """Puts back what was hidden."""
        if not self._hidden or text.isascii():
            return text
        return text.translate(self._hidden)

    def _guard_end(self, text: str) -> str:
        known = self._look_alikes
        body = len(text.rstrip())
        for position in range(max(0, body - known.longest + 1), body):
            if text[position] in known.first_characters and (
                known.begins_marker(text[position:body]) or known.begins_marker(text[position:])
            ):
                return text[:position] + self._placeholder(text[position]) + text[position + 1 :]
        return text

    def _guard_start(self, text: str) -> str:
        known = self._look_alikes
        head = text[: known.longest + 16].lstrip()[: known.longest]
        is_rest = any(
            character in known.last_characters and known.ends_marker(head[: index + 1])
            for index, character in enumerate(head)
        )
        if not is_rest and (len(text) > known.longest + 16 or text.strip() not in known.cores):
            return text
        start = len(text) - len(text.lstrip())
        return text[:start] + self._placeholder(text[start]) + text[start + 1 :]

    def _placeholder(self, hidden: str) -> str:
        placeholder = self._placeholders.get(hidden)
        if placeholder is None:
            placeholder = self._placeholders[hidden] = self._take()
            self._hidden[ord(placeholder)] = hidden
        return placeholder

    def _take(self) -> str:
        character = next(self._free, None)
        if character is None:
            raise UnsupportedInputError("the conversation uses every private-use character there is")
        return character


def private_characters(value: Any) -> frozenset[str]:
    """The private-use characters in a JSON value's strings, keys included."""
    if isinstance(value, str):
        return frozenset() if value.isascii() else frozenset(_PRIVATE.findall(value))
    if isinstance(value, Mapping):
        return private_characters(list(value.keys())) | private_characters(list(value.values()))
    if isinstance(value, list | tuple):
        return frozenset().union(*(private_characters(item) for item in value if not isinstance(item, int | float)))
    return frozenset()
