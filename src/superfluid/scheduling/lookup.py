"""Guesses what comes next from what was there before: a stream's end, found again further back. Pure; in the worker."""

from typing import Final, NamedTuple

import numpy as np

from superfluid.scheduling.token_tree import Tokens

MIN_MATCH_TOKENS: Final = 2
MAX_MATCH_TOKENS: Final = 16
"""Longer agreement says nothing more."""


class Match(NamedTuple):
    """The last ``length`` tokens of a stream stand in it before, too, up to (not including) ``end``."""

    end: int
    length: int


def find_match(stream: Tokens) -> Match | None:
    """Where the end of ``stream`` was before: its last 3 tokens, or 2 if those 3 were not. Of several places the one
    that agrees longest with the stream's end, of these the last."""
    count = len(stream)
    places = np.flatnonzero(stream[: count - 1] == stream[-1]) + 1 if count > MIN_MATCH_TOKENS else _NOWHERE
    length = 1
    while len(places) and length < MAX_MATCH_TOKENS:
        longer = places[places > length]
        longer = longer[stream[longer - length - 1] == stream[count - length - 1]]
        if not len(longer):
            break
        places, length = longer, length + 1
    return Match(int(places[-1]), length) if length >= MIN_MATCH_TOKENS else None


def continuation(stream: Tokens, match: Match, count: int) -> tuple[int, ...]:
    """``count`` tokens that followed the match. Where the match reaches into them it goes on with them: what repeats is
    guessed to repeat. An image ends them, for its ids are no tokens."""
    period = len(stream) - match.end
    tokens = stream[match.end + np.arange(count) % period].tolist()
    return tuple(tokens[: next((place for place, token in enumerate(tokens) if token < 0), count)])


_NOWHERE: Final = np.empty(0, np.intp)
