"""One running completion that fills in the middle, on the daemon's side: its job's tokens in, reply events out."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from msgspec import Struct

from superfluid.chat.interface import ChatCodec, Tokenizer
from superfluid.chat.reply import ReplyAssembler
from superfluid.domain.reply import Channel, Finish, ReplyEvent, ReplyFinished, ReplyStarted, TextDelta
from superfluid.domain.statistics import InfillCounters
from superfluid.errors import SuperfluidError
from superfluid.sessions.backend import PositionScores
from superfluid.sessions.mailbox import Mailbox


class FinishedInfill(Struct, frozen=True):
    """A whole completion. ``tokens`` are those of ``text``; ``drawn_tokens`` counts the one that ended it too."""

    text: str
    tokens: tuple[int, ...]
    drawn_tokens: int
    finish: Finish
    stopped_by: str | None


OnEnd = Callable[[int, FinishedInfill | None], None]


class InfillReply:
    """``sessions.interface.Reply`` towards the front end, ``sessions.backend.JobSink`` towards the worker.

    ``on_end`` is called once, with what was completed, if it was.
    """

    def __init__(
        self,
        reply_id: int,
        prompt_tokens: int,
        *,
        tokenizer: Tokenizer,
        codec: ChatCodec,
        stop: tuple[str, ...],
        counters: InfillCounters,
        on_cancel: Callable[[int], None],
        on_end: OnEnd,
    ) -> None:
        self.reply_id = reply_id
        self.prompt_tokens = prompt_tokens
        self.pins = ()
        self._end_tokens = tokenizer.end_of_generation
        self._assembler = ReplyAssembler(tokenizer, codec.reply_parser(parse_tools=False), stop=stop)
        self._counters = counters
        self._on_cancel = on_cancel
        self._on_end = on_end
        self._mailbox: Mailbox[ReplyEvent] = Mailbox()
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._warm_tokens = 0
        self._guessed_tokens = 0
        self._right_guesses = 0
        self._is_ending = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def shown_tokens(self) -> tuple[int, ...]:
        """What was drawn, without the token that ended it."""
        has_end = bool(self._tokens) and self._tokens[-1] in self._end_tokens
        return tuple(self._tokens[:-1] if has_end else self._tokens)

    # ---- towards the front end

    def __aiter__(self) -> AsyncIterator[list[ReplyEvent]]:
        return self._mailbox.batches()

    def cancel(self) -> None:
        if not self._is_ending:
            self._cancel_job()
            self._finish(Finish.CANCELLED)

    def expire_at(self, deadline: float) -> None:
        """Ends it as expired when the event loop's time is ``deadline``, unless it has ended by then."""
        self._timer = asyncio.get_running_loop().call_at(deadline, self.expire)

    def expire(self) -> None:
        """Ends it now: whoever asked does not wait any longer."""
        if not self._is_ending:
            self._counters.expired += 1
            self._cancel_job()
            self._finish(Finish.LENGTH, is_expired=True)

    def repeat(self, finished: FinishedInfill) -> None:
        """Gives the same completion as the one that ``finished`` was, at once and without a job."""
        self._counters.cached += 1
        self._tokens.extend(finished.tokens)
        self._warm_tokens = self.prompt_tokens
        self._mailbox.put([ReplyStarted(self.prompt_tokens, self.prompt_tokens)])
        if finished.text:
            self._mailbox.put([TextDelta(Channel.TEXT, finished.text, finished.drawn_tokens)])
        self._close(self._last(finished.finish, finished.drawn_tokens, finished.stopped_by, is_cached=True))

    def raise_if_failed(self) -> None:
        """Raises the refusal that the backend gave at once, if it did."""
        if self._mailbox.error is not None:
            raise self._mailbox.error

    # ---- towards the worker

    def started(self, warm_tokens: int) -> None:
        self._warm_tokens = warm_tokens
        self._mailbox.put([ReplyStarted(self.prompt_tokens, warm_tokens)])

    def guessed(self, tokens: int, right: int) -> None:
        self._guessed_tokens += tokens
        self._right_guesses += right

    def tokens(self, tokens: Sequence[int], scores: Sequence[PositionScores]) -> None:
        if self._is_ending:
            return
        events = self._assembler.feed(tokens, scores)
        ignored = self._assembler.ignored_tokens
        self._tokens.extend(tokens[: len(tokens) - ignored])
        self._hand_out(events)
        if self._assembler.stopped_by is not None:
            self._right_guesses = max(0, self._right_guesses - ignored)
            self._cancel_job()
            self._complete(Finish.END_OF_TURN)

    def finished(self, finish: Finish) -> None:
        if not self._is_ending:
            self._complete(finish)

    def failed(self, error: SuperfluidError) -> None:
        if not self._is_ending:
            self._mailbox.fail(error)
            self._release(None)

    # ----

    def _cancel_job(self) -> None:
        # In this order: with no worker there the backend ends the job at once, which is not the end that counts.
        self._is_ending = True
        self._on_cancel(self.reply_id)

    def _complete(self, finish: Finish) -> None:
        self._hand_out(self._assembler.finish())
        drawn = self._assembler.tokens_generated
        stopped_by = self._assembler.stopped_by
        completed = None
        if finish in (Finish.END_OF_TURN, Finish.LENGTH):
            self._counters.generated += 1
            completed = FinishedInfill("".join(self._texts), self.shown_tokens, drawn, finish, stopped_by)
        self._close(self._last(finish, drawn, stopped_by), completed)

    def _finish(self, finish: Finish, *, is_expired: bool = False) -> None:
        self._close(self._last(finish, self._assembler.tokens_generated, None, is_expired=is_expired))

    def _last(
        self,
        finish: Finish,
        drawn_tokens: int,
        stopped_by: str | None,
        *,
        is_cached: bool = False,
        is_expired: bool = False,
    ) -> ReplyFinished:
        return ReplyFinished(
            finish=finish,
            prompt_tokens=self.prompt_tokens,
            warm_tokens=self._warm_tokens,
            completion_tokens=drawn_tokens,
            stopped_by=stopped_by,
            is_cached=is_cached,
            is_expired=is_expired,
            guessed_tokens=self._guessed_tokens,
            right_guesses=self._right_guesses,
        )

    def _hand_out(self, events: list[ReplyEvent]) -> None:
        self._texts += [event.text for event in events if isinstance(event, TextDelta)]
        self._mailbox.put(events)

    def _close(self, last: ReplyFinished, completed: FinishedInfill | None = None) -> None:
        self._mailbox.put([last])
        self._mailbox.close()
        self._release(completed)

    def _release(self, completed: FinishedInfill | None) -> None:
        self._is_ending = True
        if self._timer is not None:
            self._timer.cancel()
        self._on_end(self.reply_id, completed)
