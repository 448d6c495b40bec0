"""Guesses what comes next from what was there before: a stream's end, found again further back. Pure; in the worker."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from superfluid.scheduling.token_tree import Tokens

MIN_MATCH_TOKENS: Final = 2
MAX_MATCH_TOKENS: Final = 16
"""Longer agreement says nothing more."""
COMPARED_PLACES: Final = 64
"""Of the places where a stream's last two tokens were before, so many of the latest are compared."""
INDEXED_TOKENS: Final = 8192
"""At most so many tokens are taken into the index at a time; what a long prompt then lacks follows with later steps."""
NEAR_TOKENS: Final = 64
LEAD_TOKENS: Final = 8
"""So much longer must another match be than the one that goes on where the last one was."""

_REACH: Final = np.arange(1, MAX_MATCH_TOKENS + 1)


class Match(NamedTuple):
    """The last ``length`` tokens of a stream stand in it before, too, up to (not including) ``end``. ``is_continued``:
    that is where the match before goes on."""

    end: int
    length: int
    is_continued: bool = False


class StreamIndex:
    """Where each pair of tokens of one growing stream was. New tokens take time, old ones none; a look-up takes a
    bounded time. Ids below 0 are of images and no tokens: they are part of no match."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], list[int]] = {}
        self._indexed = 1
        """Pairs that end before this position are in the index."""
        self._source = 0
        """Where the last match would go on, if all that has come since was copied; 0 if there was none."""
        self._length = 0

    def match(self, stream: Tokens) -> Match | None:
        """Where the end of ``stream`` was before: its last 2 tokens at least. Preferred is where the match before goes
        on, then what agrees longest with the stream's end; of several the nearest to that place, or else the latest."""
        count = len(stream)
        if self._source:
            self._source += count - self._length
        self._length = count
        self._extend(stream)
        if count <= MIN_MATCH_TOKENS:
            return None
        ends = self._ends.get((int(stream[-2]), int(stream[-1])), [])
        if ends and ends[-1] == count:
            ends = ends[:-1]
        found = self._best(stream, np.array(ends[-COMPARED_PLACES:], np.intp)) if ends else None
        if found is not None:
            self._source = found.end
        return found

    def _best(self, stream: Tokens, ends: NDArray[np.intp]) -> Match:
        lengths = _agreements(stream, ends)
        longest = int(lengths.max())
        if not self._source:
            return Match(int(ends[lengths == longest][-1]), longest)
        continued = np.flatnonzero(ends == self._source)
        if len(continued) and lengths[continued[0]] + LEAD_TOKENS > longest:
            return Match(self._source, int(lengths[continued[0]]), True)
        alike = ends[lengths == longest]
        distances = np.abs(alike - self._source)
        nearest = int(distances.argmin())
        return Match(int(alike[nearest if distances[nearest] <= NEAR_TOKENS else -1]), longest)

    def _extend(self, stream: Tokens) -> None:
        begin, end = self._indexed, min(len(stream), self._indexed + INDEXED_TOKENS)
        if begin >= end:
            return
        before, *fresh = stream[begin - 1 : end].tolist()
        for position, token in enumerate(fresh, begin + 1):
            if before >= 0 and token >= 0:
                self._ends.setdefault((before, token), []).append(position)
            before = token
        self._indexed = end


def continuation(stream: Tokens, match: Match, count: int) -> tuple[int, ...]:
    """``count`` tokens that followed the match. Where the match reaches into them it goes on with them: what repeats is
    guessed to repeat. An image ends them, for its ids are no tokens."""
    period = len(stream) - match.end
    tokens = stream[match.end + np.arange(count) % period].tolist()
    return tuple(tokens[: next((place for place, token in enumerate(tokens) if token < 0), count)])


def _agreements(stream: Tokens, ends: NDArray[np.intp]) -> NDArray[np.intp]:
    """How many tokens before each of ``ends`` are those before the stream's end."""
    reach = _REACH[: len(stream) - 1]
    places = ends[:, None] - reach
    tail = stream[len(stream) - reach]
    is_alike = (stream[places] == tail) & (places >= 0) & (tail >= 0)
    return np.where(is_alike.all(axis=1), len(reach), is_alike.argmin(axis=1))
