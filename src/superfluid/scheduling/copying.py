"""How well one stream can be guessed from itself, and how far a guess is worth its cost. Pure; in the worker.

What a look-up says is compared with what comes whether it was used as a draft or not. So a stream that copies nothing
shows that for nothing.
"""

from typing import Final, NamedTuple

from superfluid.scheduling.lookup import MAX_MATCH_TOKENS, Match, StreamIndex, continuation
from superfluid.scheduling.step_costs import StepCosts
from superfluid.scheduling.token_tree import Tokens

PRIOR: Final = (0.2, 0.4, 0.7, 0.9)
"""How often the token behind a match is the next one, for matches of 2 or 3, 4 to 7, 8 to 15 and 16 tokens, until the
stream says otherwise: prose has a bit less, source code more."""
PRIOR_CONTINUED: Final = (0.5, 0.7, 0.85, 0.95)
"""For matches that go on where the one before was."""
PRIOR_WEIGHT: Final = 8.0
KEEP_OF_OLD: Final = 0.97
WORTHWHILE: Final = 1.05
"""How many times as many tokens a draft must promise for its time."""
DEPTHS: Final = (3, 7, 11)
"""With the newest token, multiples of 4: llama.cpp's kernels for processors take rows by fours. Besides these, all."""


class Guess(NamedTuple):
    """Tokens that may follow a stream of ``at`` tokens."""

    at: int
    match: Match
    tokens: tuple[int, ...]


class Copying:
    """One stream's."""

    def __init__(self) -> None:
        self._index = StreamIndex()
        self._right = [PRIOR_WEIGHT * rate for rate in (*PRIOR, *PRIOR_CONTINUED)]
        self._seen = [PRIOR_WEIGHT] * len(self._right)
        self._last: Guess | None = None

    def look_up(self, stream: Tokens, depth: int) -> Guess | None:
        """What may come next, at most ``depth`` tokens. Learns from what has come since the call before."""
        if self._last is not None:
            self._learn(self._last, stream[self._last.at :].tolist())
            self._last = None
        match = self._index.match(stream)
        if match is not None:
            self._last = Guess(len(stream), match, continuation(stream, match, depth))
        return self._last

    def worthwhile_depth(self, guess: Guess, costs: StepCosts, wanted: float = WORTHWHILE) -> int:
        """How many tokens of the guess make a step best, in tokens for its time; 0 if none make it ``wanted`` times as
        good as a plain one."""
        most = len(guess.tokens)
        if not most:
            return 0
        right = self._expected(guess)
        depths = [*[depth for depth in DEPTHS if depth < most], most]
        gain, depth = max([((1 + right[depth - 1] / costs.lanes) / costs.expected(depth), depth) for depth in depths])
        return depth if gain >= wanted else 0

    def _expected(self, guess: Guess) -> list[float]:
        """How many of the first 1, 2, ... tokens will be right."""
        sums: list[float] = []
        chance, total = 1.0, 0.0
        for offset in range(len(guess.tokens)):
            place = _place(guess.match, offset)
            chance *= self._right[place] / self._seen[place]
            total += chance
            sums.append(total)
        return sums

    def _learn(self, guess: Guess, said: list[int]) -> None:
        """Up to the first token that was another; what stands behind that says nothing."""
        for offset, (guessed, token) in enumerate(zip(guess.tokens, said, strict=False)):
            place = _place(guess.match, offset)
            self._right[place] = KEEP_OF_OLD * self._right[place] + (guessed == token)
            self._seen[place] = KEEP_OF_OLD * self._seen[place] + 1
            if guessed != token:
                return


def _place(match: Match, offset: int) -> int:
    """Where a guess's token is counted: each one that is right makes the match longer."""
    length = min(match.length + offset, MAX_MATCH_TOKENS)
    return length.bit_length() - 2 + (len(PRIOR) if match.is_continued or offset else 0)
