"""A vocabulary's markers as text: finding them in template text, breaking up their look-alikes. Pure; runs in the
daemon."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_SPACES = " \t\r\n▁"
_C_SPACES = " \t\n\v\f\r"


def is_marker_text(text: str) -> bool:
    """Whether a user-defined token stands for a marker. Runs of blanks and single characters are ordinary text that the
    vocabulary merely wants whole."""
    return len(text) > 1 and bool(text.strip(_SPACES))


def marker_pattern(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Matches any of ``texts``, the longest that fits. ``None`` if there are none.

    The alternatives are folded into a prefix tree: some vocabularies have thousands that begin alike, and a plain
    alternation would try each of them at every ``<`` of a page of HTML.
    """
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return re.compile(_branches(tree)) if tree else None


def _branches(node: dict[str, Any]) -> str:
    """The node's subtree as a regular expression; ``""`` marks where a text may end."""
    branches = []
    for character, child in node.items():
        tail = ""
        while character and len(child) == 1 and "" not in child:
            # A run without forks becomes one literal, which keeps the nesting shallow.
            (following, grandchild), *_ = child.items()
            tail += re.escape(following)
            child = grandchild
        if character:
            branches.append(re.escape(character) + tail + _branches(child))
    if not branches:
        return ""
    joined = branches[0] if len(branches) == 1 and "" not in node else f"(?:{'|'.join(branches)})"
    return f"{joined}?" if "" in node else joined


class Marker(NamedTuple):
    """A marker in a text, as its token."""

    token: int


class MarkerSplitter:
    """Cuts trusted text into markers and the text between them. Some markers swallow the whitespace before or behind
    them."""

    def __init__(
        self,
        special_tokens: Mapping[str, int],
        *,
        strips_text_before: frozenset[int] = frozenset(),
        strips_text_after: frozenset[int] = frozenset(),
    ) -> None:
        self._tokens = dict(special_tokens)
        self._pattern = marker_pattern(self._tokens)
        self._strips_before = strips_text_before
        self._strips_after = strips_text_after

    def split(self, text: str) -> Iterator[str | Marker]:
        """Non-empty texts and markers, in order; joined, they are ``text`` less what markers swallowed."""
        start = 0
        is_stripped = False
        for match in self._pattern.finditer(text) if self._pattern is not None else ():
            token = self._tokens[match.group()]
            between = text[start : match.start()]
            if is_stripped:
                between = between.lstrip(_C_SPACES)
            if token in self._strips_before:
                between = between.rstrip(_C_SPACES)
            if between:
                yield between
            yield Marker(token)
            start = match.end()
            is_stripped = token in self._strips_after
        rest = text[start:].lstrip(_C_SPACES) if is_stripped else text[start:]
        if rest:
            yield rest


def break_look_alikes(pattern: re.Pattern[str] | None, text: str) -> Iterator[str]:
    """Cuts ``text`` behind the first character of each match, so that no piece holds a match. Joined, the pieces are
    ``text``."""
    start = 0
    match = pattern.search(text) if pattern is not None else None
    while pattern is not None and match is not None:
        cut = match.start() + 1
        yield text[start:cut]
        start = cut
        match = pattern.search(text, start)
    if start < len(text):
        yield text[start:]


def encode_with_markers(
    text: str,
    splitter: MarkerSplitter,
    encode_fragment: Callable[[str, bool], list[int]],
    *,
    follows_marker: bool,
) -> list[int]:
    """Tokens of trusted text. ``encode_fragment`` is given a text and whether it follows a marker."""
    tokens: list[int] = []
    for part in splitter.split(text):
        if isinstance(part, Marker):
            tokens.append(part.token)
            follows_marker = True
        else:
            tokens += encode_fragment(part, follows_marker)
            follows_marker = False
    return tokens
