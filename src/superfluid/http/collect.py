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


class ReplyProgress:
    """How far one reply is. Fed each batch once, before anybody writes it."""

    def __init__(self) -> None:
        self.tokens = 0
        self.warm_tokens = 0
        self.finished: ReplyFinished | None = None
        self._has_calls = False
        self._has_invalid_call = False

    def note(self, events: Sequence[ReplyEvent]) -> None:
        """Raises EngineFaultError or ShuttingDownError if the reply ended without being complete."""
        for event in events:
            if isinstance(event, ReplyFinished):
                _check_complete(event)
                self.finished = event
                self.warm_tokens = event.warm_tokens
            elif isinstance(event, ReplyStarted):
                self.warm_tokens = event.warm_tokens
            else:
                self.tokens = event.tokens_generated
                if isinstance(event, ToolCallFinished):
                    self._has_calls = True
                    self._has_invalid_call |= not event.is_valid

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
        return CollectedReply(tuple(self._runs), tuple(self._calls), finished, self._progress.ending)
