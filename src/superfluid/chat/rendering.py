"""A rendered conversation to tokens: markers become special tokens, the text between them ordinary ones. Runs in the
daemon.

Tokens end where a message ends and behind each assistant header, so that a longer conversation begins with the tokens
of the shorter one, and a reply sent back with those it was generated as. Between these places and the markers, template
and client text are tokenized together, as the model saw them in training.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from superfluid.chat.guard import TextGuard
from superfluid.chat.instrument import MarkedText
from superfluid.chat.interface import ModelVocabulary, Rendered
from superfluid.chat.markers import MarkerSplitter, encode_with_markers
from superfluid.chat.token_cache import TokenCache, TokenCacheStatistics

GAP: Final = -1
"""In the place of a token: here something else than text will come."""
_CACHE_BYTES: Final = 8 * 1024 * 1024


class RenderingEncoder:
    """Tokenizes renderings of one vocabulary. Thread-safe; remembers texts, so that old turns cost a look-up."""

    def __init__(self, vocabulary: ModelVocabulary) -> None:
        self._vocabulary = vocabulary
        self._splitter = MarkerSplitter(
            vocabulary.special_tokens,
            strips_text_before=vocabulary.strips_text_before,
            strips_text_after=vocabulary.strips_text_after,
        )
        self._markers = frozenset(vocabulary.special_tokens.values())
        self._prologue = vocabulary.encode_text("", is_start=True)
        self._cache = TokenCache(_CACHE_BYTES)

    def statistics(self) -> TokenCacheStatistics:
        return self._cache.statistics()

    def encode(
        self, marked: MarkedText, roles: Sequence[str], header: str, guard: TextGuard, gap: str = ""
    ) -> Rendered:
        """``header`` is the assistant header as far as it is known; a rendering with marks shows its own.

        Puts BOS in front if the vocabulary wants one and the template wrote none. Where the character ``gap`` is, the
        tokens have ``GAP``; what is behind it is tokenized as if it came behind a marker.
        """
        ends = marked.message_ends(len(roles))
        if ends is None:
            has_header = bool(header) and marked.text.endswith(header)
            ends = [len(marked.text) - (len(header) if has_header else 0)] * len(roles)
        tokens: list[int] = []
        tokens_at = {0: 0}
        start = 0
        follows_marker = True
        cuts = {*ends, *_header_ends(marked, roles), *_gap_edges(marked.text, gap), len(marked.text)}
        for cut in sorted(cuts - {0}):
            text = marked.text[start:cut]
            piece = [GAP] if text == gap else self._encode_piece(text, guard, follows_marker=follows_marker)
            follows_marker = piece[-1] == GAP or piece[-1] in self._markers if piece else follows_marker
            tokens += piece
            tokens_at[cut] = len(tokens)
            start = cut
        missing = [] if tokens[: len(self._prologue)] == self._prologue else self._prologue
        shift = len(missing)
        return Rendered(missing + tokens, [tokens_at[end] + shift if end else 0 for end in ends])

    def begin_reply(self, rendered: Rendered, text: str) -> Rendered:
        """``rendered`` with ordinary text behind the assistant header."""
        follows_marker = rendered.tokens[-1] in self._markers
        tokens = self._vocabulary.encode_fragment(text, follows_marker=follows_marker)
        return Rendered(rendered.tokens + tokens, rendered.message_ends)

    def _encode_piece(self, text: str, guard: TextGuard, *, follows_marker: bool) -> list[int]:
        def encode_fragment(fragment: str, follows_marker: bool) -> list[int]:
            return self._encode_text(guard.restore(fragment), follows_marker)

        return encode_with_markers(text, self._splitter, encode_fragment, follows_marker=follows_marker)

    def _encode_text(self, text: str, follows_marker: bool) -> list[int]:
        known = self._cache.get(text, follows_marker)
        if known is not None:
            return known.tolist()
        tokens = self._vocabulary.encode_fragment(text, follows_marker=follows_marker)
        self._cache.put(text, follows_marker, tokens)
        return tokens


def _gap_edges(text: str, gap: str) -> list[int]:
    if not gap:
        return []
    places = [match.start() for match in re.finditer(re.escape(gap), text)]
    return [edge for place in places for edge in (place, place + 1)]


def _header_ends(marked: MarkedText, roles: Sequence[str]) -> Iterator[int]:
    """Where assistant turns that begin with this rendering's own header go on behind it."""
    header = marked.text[marked.end :] if marked.starts else ""
    if not header:
        return
    for index, start in marked.starts.items():
        if roles[index] == "assistant" and marked.text.startswith(header, start):
            yield start + len(header)
