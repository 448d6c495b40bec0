"""Folds a reply's events into what every dialect asks of it: how far it is, how it ended, what it said. Pure."""

from collections.abc import Collection, Sequence
from typing import Literal

from msgspec import Struct

from superfluid.domain.reply import (
    Channel,
    Finish,
    ReplyEvent,
    ReplyFinished,
    ReplyStarted,
    TextDelta,
    TokenLogprob,
    ToolCallFinished,
)
from superfluid.errors import EngineFaultError, ShuttingDownError

Ending = Literal["stop", "length", "tool_calls"]


class Phases(Struct, frozen=True):
    """What a reply spent its time on, in seconds: being accepted (rendered, tokenized, queued), up to its first token
    (the wait for a lane, reading the prompt), and from there on. They add up."""

    accepting: float = 0.0
    prompt: float = 0.0
    decode: float = 0.0


class ReplyProgress:
    """How far one reply is. Fed each batch once, before anybody writes it.

    ``arrived`` and ``accepted`` are when its request was, in seconds of the clock that ``note`` is told.
    """

    def __init__(self, arrived: float = 0.0, accepted: float = 0.0) -> None:
        self.tokens = 0
        self.warm_tokens = 0
        self.finished: ReplyFinished | None = None
        self.phases = Phases()
        """Known when it has finished."""
        self._has_calls = False
        self._has_invalid_call = False
        self._arrived = arrived
        self._accepted = accepted
        self._first_token_at: float | None = None

    def note(self, events: Sequence[ReplyEvent], now: float = 0.0) -> None:
        """``now`` matters to ``phases`` only. Raises EngineFaultError or ShuttingDownError if the reply ended without
        being complete."""
        for event in events:
            if isinstance(event, ReplyFinished):
                _check_complete(event)
                self.finished = event
                self.warm_tokens = event.warm_tokens
                self.phases = self._phases(now)
            elif isinstance(event, ReplyStarted):
                self.warm_tokens = event.warm_tokens
            else:
                self._note_tokens(event.tokens_generated, now)
                if isinstance(event, ToolCallFinished):
                    self._has_calls = True
                    self._has_invalid_call |= not event.is_valid

    def _note_tokens(self, tokens: int, now: float) -> None:
        if tokens and self._first_token_at is None:
            self._first_token_at = now
        self.tokens = tokens

    def _phases(self, now: float) -> Phases:
        first_token_at = now if self._first_token_at is None else self._first_token_at
        return Phases(self._accepted - self._arrived, first_token_at - self._accepted, now - first_token_at)

    @property
    def ending(self) -> Ending:
        """The cap wins over calls; a call that did not parse counts as cut off."""
        if self._has_invalid_call or (self.finished is not None and self.finished.finish is Finish.LENGTH):
            return "length"
        return "tool_calls" if self._has_calls else "stop"


def _check_complete(event: ReplyFinished) -> None:
    if event.finish is Finish.ERROR:
        raise EngineFaultError("the engine could not finish this generation")
    if event.finish is Finish.CANCELLED:
        raise ShuttingDownError("the server ended this generation before it was complete")


class CollectedReply(Struct, frozen=True):
    """A whole reply that did not fail."""

    runs: tuple[TextDelta, ...]
    calls: tuple[ToolCallFinished, ...]
    finished: ReplyFinished
    ending: Ending
    phases: Phases = Phases()

    def text(self, channels: Collection[Channel]) -> str:
        """The runs of these channels, in the order they came."""
        return "".join(run.text for run in self.runs if run.channel in channels)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [entry for run in self.runs for entry in run.logprobs]


class ReplyCollector:
    """Keeps a reply until it is whole."""

    def __init__(self, progress: ReplyProgress) -> None:
        self._progress = progress
        self._runs: list[TextDelta] = []
        self._calls: list[ToolCallFinished] = []

    def feed(self, events: Sequence[ReplyEvent]) -> None:
        for event in events:
            if isinstance(event, TextDelta):
                self._runs.append(event)
            elif isinstance(event, ToolCallFinished):
                self._calls.append(event)

    def finish(self) -> CollectedReply:
        """Raises EngineFaultError if the reply broke off without an end."""
        finished = self._progress.finished
        if finished is None:
            raise EngineFaultError("the reply broke off without an end")
        progress = self._progress
        return CollectedReply(tuple(self._runs), tuple(self._calls), finished, progress.ending, progress.phases)
