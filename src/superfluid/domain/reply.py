"""What a generation yields, piece by piece. Front ends translate these into their dialect's frames."""

import enum

from msgspec import Struct


class Channel(enum.IntEnum):
    """Where a run of the model's output belongs. The numbers are those of the session API."""

    TEXT = 0
    REASONING = 1
    TOOL_CALL = 2


class Finish(enum.IntEnum):
    """Why a generation ended. The numbers are those of the session API; ``NONE`` is not an end."""

    NONE = 0
    END_OF_TURN = 1
    LENGTH = 2
    GRAMMAR = 3
    CANCELLED = 4
    ERROR = 5


class TokenAlternative(Struct, frozen=True):
    """One candidate and its natural log-probability, after bias and penalties, before temperature."""

    token: int
    piece: bytes
    logprob: float


class TokenLogprob(Struct, frozen=True):
    """The chosen token and the best candidates at its position, best first."""

    chosen: TokenAlternative
    top: tuple[TokenAlternative, ...]


class ReplyStarted(Struct, frozen=True):
    """The generation has a lane: ``warm_tokens`` of the ``prompt_tokens`` need no prefill."""

    prompt_tokens: int
    warm_tokens: int


class TextDelta(Struct, frozen=True):
    """A run of text or reasoning. ``tokens_generated`` counts all tokens so far, held-back ones included."""

    channel: Channel
    text: str
    tokens_generated: int
    logprobs: tuple[TokenLogprob, ...] = ()


class ToolCallStarted(Struct, frozen=True):
    """The name of call ``index`` is known; its arguments follow."""

    index: int
    call_id: str
    name: str
    tokens_generated: int


class ToolCallArguments(Struct, frozen=True):
    """The next piece of call ``index``'s arguments, JSON text."""

    index: int
    fragment: str
    tokens_generated: int


class ToolCallFinished(Struct, frozen=True):
    """Call ``index`` is whole. ``is_valid`` is false if ``arguments`` did not parse; they are then the raw text."""

    index: int
    call_id: str
    name: str
    arguments: str
    is_valid: bool
    tokens_generated: int


class ReplyFinished(Struct, frozen=True):
    """The last event of every reply that did not fail.

    ``stopped_by`` is the stop string that ended it, if one did (``finish`` is then ``END_OF_TURN``). Only a reply that
    fills in the middle is ever ``is_cached`` (nothing was computed) or ``is_expired`` (it ran past its deadline).
    ``guessed_tokens`` were guessed ahead for it, and ``right_guesses`` of them drawn.
    """

    finish: Finish
    prompt_tokens: int
    warm_tokens: int
    completion_tokens: int
    stopped_by: str | None = None
    is_cached: bool = False
    is_expired: bool = False
    guessed_tokens: int = 0
    right_guesses: int = 0


ReplyEvent = ReplyStarted | TextDelta | ToolCallStarted | ToolCallArguments | ToolCallFinished | ReplyFinished
