"""From a reply's tokens to the events that front ends translate. One per running generation, on the daemon's event
loop.

Whitespace by convention of the templates, as clients of other servers know it: line breaks behind ``<think>`` and
before ``</think>``, behind ``</think>`` and ``</tool_call>``, and before ``<tool_call>`` belong to the markers and are
dropped. Sent back as history, a reply then renders to the tokens it was made of.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from superfluid.chat.interface import ReplyParser, Run, Tokenizer
from superfluid.chat.stops import StopMatcher
from superfluid.chat.toolcalls import CallName, ParsedCall, ToolCallStream
from superfluid.domain.reply import (
    Channel,
    ReplyEvent,
    TextDelta,
    TokenAlternative,
    TokenLogprob,
    ToolCallArguments,
    ToolCallFinished,
    ToolCallStarted,
)


class PositionScores(Protocol):
    """Log-probabilities at one position, as the worker sends them."""

    @property
    def chosen(self) -> float: ...

    @property
    def top_tokens(self) -> Sequence[int]: ...

    @property
    def top_logprobs(self) -> Sequence[float]: ...


class _Stretch:
    """Text of one channel between two blocks. What goes in comes out in order, less what convention drops; positions
    count characters that went in, so that a token's score leaves with the last of its text."""

    def __init__(self, stops: StopMatcher | None, *, drops_leading: bool, holds_trailing: bool) -> None:
        self._stops = stops
        self._drops_leading = drops_leading
        self._holds_trailing = holds_trailing
        self._held_breaks = ""
        self._fed = 0
        self._released = 0
        self._scores: deque[tuple[int, TokenLogprob]] = deque()

    def feed(self, text: str) -> str:
        self._fed += len(text)
        if self._drops_leading:
            rest = text.lstrip("\n")
            self._released += len(text) - len(rest)
            self.take_scores()
            self._drops_leading = not rest
            text = rest
        if self._stops is not None:
            text = self._stops.feed(text)
        if self._holds_trailing and text:
            text = self._held_breaks + text
            kept = text.rstrip("\n")
            self._held_breaks = text[len(kept) :]
            text = kept
        self._released += len(text)
        return text

    def finish(self, *, drops_trailing: bool) -> tuple[str, str]:
        """The rest, and the line breaks that were dropped."""
        text = self._held_breaks + (self._stops.finish() if self._stops is not None else "")
        self._held_breaks = ""
        kept = text.rstrip("\n") if drops_trailing else text
        self._released += len(kept)
        return kept, text[len(kept) :]

    def expect(self, characters: int, score: TokenLogprob, *, has_pending: bool) -> None:
        """Announces the score of the token whose ``characters`` are fed next. With ``has_pending`` the token's text
        ends inside the character to come."""
        self._scores.append((self._fed + characters + has_pending, score))

    def take_scores(self) -> tuple[TokenLogprob, ...]:
        """Those of the tokens whose text has gone out or was dropped."""
        if not self._scores:
            return ()
        taken = []
        while self._scores and self._scores[0][0] <= self._released:
            taken.append(self._scores.popleft()[1])
        return tuple(taken)


class ReplyAssembler:
    """Tokens in, events out. The ids of a reply's calls are ``call_id_prefix``, then that with ``_1``, ``_2``, ..."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        parser: ReplyParser,
        *,
        stop: Sequence[str] = (),
        call_id_prefix: str = "call",
    ) -> None:
        self._tokenizer = tokenizer
        self._parser = parser
        self._stop = tuple(stop)
        self._stops = StopMatcher(self._stop)
        self._call_id_prefix = call_id_prefix
        self._calls = 0
        self._call: ToolCallStream | None = None
        self._call_id = ""
        self._breaks_before_call = ""
        self._channel = Channel.TEXT
        self._stretch = self._new_stretch(Channel.TEXT, is_first=True)
        self._events: list[ReplyEvent] = []
        self.tokens_generated = 0
        """All tokens fed, up to the one that completed a stop string."""
        self.ignored_tokens = 0
        """Of the tokens fed last, those behind a stop string."""

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the reply. What is fed after that is ignored."""
        return self._stops.matched

    def feed(self, tokens: Sequence[int], scores: Sequence[PositionScores] = ()) -> list[ReplyEvent]:
        """``scores`` is empty or has one entry a token."""
        if self._stops.matched is not None:
            self.ignored_tokens = len(tokens)
            return []
        if scores:
            for token, score in zip(tokens, scores, strict=True):
                self._take_scored(token, score)
        elif self._stop:
            self._take_until_stop(tokens)
        else:
            for run in self._parser.feed(tokens):
                self._take(run)
        events, self._events = self._events, []
        return events

    def finish(self) -> list[ReplyEvent]:
        """The events of what was held back. Call once, when no more tokens come."""
        if self._stops.matched is None:
            for run in self._parser.finish():
                self._take(run)
        if self._call is not None:
            self._end_call(is_closed=False, raw="")
        self._end_stretch(drops_trailing=False)
        events, self._events = self._events, []
        return events

    def _take_until_stop(self, tokens: Sequence[int]) -> None:
        """One by one: several of them can come at once, and those behind a stop string were never said."""
        for index, token in enumerate(tokens, 1):
            for run in self._parser.feed((token,)):
                self._take(run)
            if self._stops.matched is not None:
                self.ignored_tokens = len(tokens) - index
                return

    # ---- text and reasoning

    def _take(self, run: Run) -> None:
        if self._stops.matched is not None:
            return
        self.tokens_generated += run.tokens
        if run.channel == Channel.TOOL_CALL:
            self._take_call(run)
            return
        if run.channel != self._channel:
            self._end_stretch(drops_trailing=run.channel == Channel.TOOL_CALL)
            self._begin(Channel(run.channel))
            if self._stops.matched is not None:
                return
        if run.text and (text := self._stretch.feed(run.text)):
            self._emit(text)
        if run.is_closed:
            self._end_stretch(drops_trailing=True)
            self._begin(Channel.TEXT)

    def _take_scored(self, token: int, score: PositionScores) -> None:
        for run in self._parser.feed((token,)):
            is_text = run.channel != Channel.TOOL_CALL and not run.is_closed
            if is_text and run.tokens and (run.text or self._parser.has_pending):
                self._take_scored_text(run, token, score)
            else:
                self._take(run)

    def _take_scored_text(self, run: Run, token: int, score: PositionScores) -> None:
        if run.channel != self._channel:
            self._take(Run(run.channel, ""))
        has_pending = self._parser.has_pending
        self._stretch.expect(len(run.text), self._logprob(token, score), has_pending=has_pending)
        self._take(run)

    def _begin(self, channel: Channel) -> None:
        self._channel = channel
        self._stretch = self._new_stretch(channel, is_first=False)

    def _new_stretch(self, channel: Channel, *, is_first: bool) -> _Stretch:
        is_text = channel == Channel.TEXT
        return _Stretch(
            self._stops if is_text and self._stop else None,
            drops_leading=not is_first,
            holds_trailing=not is_text or self._parser.tool_call_markers is not None,
        )

    def _end_stretch(self, *, drops_trailing: bool) -> str:
        text, dropped = self._stretch.finish(drops_trailing=drops_trailing)
        if text:
            self._emit(text)
        return dropped

    def _emit(self, text: str) -> None:
        logprobs = self._stretch.take_scores()
        if self._events and isinstance(last := self._events[-1], TextDelta) and last.channel == self._channel:
            self._events.pop()
            text, logprobs = last.text + text, last.logprobs + logprobs
        self._events.append(TextDelta(self._channel, text, self.tokens_generated, logprobs))

    def _logprob(self, token: int, score: PositionScores) -> TokenLogprob:
        piece = self._tokenizer.piece
        top = zip(score.top_tokens, score.top_logprobs, strict=True)
        return TokenLogprob(
            TokenAlternative(token, piece(token), score.chosen),
            tuple(TokenAlternative(candidate, piece(candidate), logprob) for candidate, logprob in top),
        )

    # ---- tool calls

    def _take_call(self, run: Run) -> None:
        if self._call is None:
            self._breaks_before_call = self._end_stretch(drops_trailing=True)
            if self._stops.matched is not None:
                return
            self._channel = Channel.TOOL_CALL
            self._call = ToolCallStream()
            self._call_id = f"{self._call_id_prefix}_{self._calls}" if self._calls else self._call_id_prefix
        for event in self._call.feed(run.text):
            if isinstance(event, CallName):
                self._announce(event.name)
            else:
                self._events.append(ToolCallArguments(self._calls, event.text, self.tokens_generated))
        if run.is_closed or run.raw:
            self._end_call(is_closed=run.is_closed, raw=run.raw)

    def _announce(self, name: str) -> None:
        self._events.append(ToolCallStarted(self._calls, self._call_id, name, self.tokens_generated))

    def _end_call(self, *, is_closed: bool, raw: str) -> None:
        assert self._call is not None
        call = self._call.finish(is_closed=is_closed)
        was_announced = self._call.is_announced
        self._call = None
        self._begin(Channel.TEXT)
        if call is None:
            self._hand_out_as_text(raw, is_closed=is_closed)
            return
        if not was_announced:
            self._announce(call.name)
        self._finish_call(call)

    def _finish_call(self, call: ParsedCall) -> None:
        if call.tail:
            self._events.append(ToolCallArguments(self._calls, call.tail, self.tokens_generated))
        self._events.append(
            ToolCallFinished(
                self._calls, self._call_id, call.name, call.arguments, call.is_valid, self.tokens_generated
            )
        )
        self._calls += 1

    def _hand_out_as_text(self, raw: str, *, is_closed: bool) -> None:
        markers = self._parser.tool_call_markers
        assert markers is not None
        text = self._breaks_before_call + markers[0] + raw + (markers[1] if is_closed else "")
        self._stretch = self._new_stretch(Channel.TEXT, is_first=True)
        if text := self._stretch.feed(text):
            self._emit(text)
