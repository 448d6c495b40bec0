"""One running generation on the daemon's side: it takes a job's tokens and hands out the reply's events."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from superfluid.chat.interface import ChatCodec, Tokenizer
from superfluid.chat.reply import ReplyAssembler
from superfluid.domain.events import Event
from superfluid.domain.job import Job
from superfluid.domain.reply import (
    Channel,
    Finish,
    ReplyEvent,
    ReplyFinished,
    ReplyStarted,
    TextDelta,
    ToolCallFinished,
)
from superfluid.domain.request import Message, ToolCall
from superfluid.errors import EngineFaultError, SuperfluidError
from superfluid.sessions.backend import PositionScores
from superfluid.sessions.chats import StoredPrompt
from superfluid.sessions.mailbox import Mailbox
from superfluid.sessions.recorder import TurnRecorder


class RunningReply:
    """``sessions.interface.Reply`` towards the front end, ``sessions.backend.JobSink`` towards the worker.

    Both sides run on the event loop. A slow reader costs memory for its own reply, which ``max_tokens`` bounds, and
    delays nobody. With a session behind it (``attach``), text goes out as it comes, and the end when all is durable.
    """

    def __init__(
        self,
        job: Job,
        *,
        tokenizer: Tokenizer,
        codec: ChatCodec,
        stop: tuple[str, ...],
        parse_tools: bool,
        opening: Sequence[int],
        prefill: str = "",
        on_cancel: Callable[[int], None],
        on_end: Callable[[int], None],
    ) -> None:
        self.reply_id = job.job_id
        self.prompt_tokens = job.prompt_tokens
        self.pins = tuple(job.prefix_pins)
        self._assembler = ReplyAssembler(
            tokenizer,
            codec.reply_parser(parse_tools=parse_tools, opening=opening),
            stop=stop,
            # Replies are counted from 1 after each start, but a conversation goes on: its calls must not share names.
            call_id_prefix=f"call_{secrets.token_hex(8)}",
        )
        self._on_cancel = on_cancel
        self._on_end = on_end
        self._mailbox: Mailbox[ReplyEvent] = Mailbox()
        self._warm_tokens = 0
        self._guessed_tokens = 0
        self._right_guesses = 0
        self._is_ending = False
        self._stored: StoredPrompt | None = None
        self._recorder: TurnRecorder | None = None
        # A client sends a reply that it has begun back as one text.
        self._texts = [prefill]
        self._calls: list[ToolCall] = []

    def attach(self, stored: StoredPrompt, recorder: TurnRecorder) -> None:
        """Records the reply in its request's session. As soon as the job is taken, before it gives anything."""
        self._stored, self._recorder = stored, recorder
        stored.session.is_busy = True
        stored.session.cancel_generation = self.cancel
        stored.durable.add_done_callback(self._prompt_stored)

    def raise_if_failed(self) -> None:
        """Raises the refusal that the backend gave at once, if it did."""
        if self._mailbox.error is not None:
            raise self._mailbox.error

    # ---- towards the front end

    def __aiter__(self) -> AsyncIterator[list[ReplyEvent]]:
        return self._mailbox.batches()

    def cancel(self) -> None:
        if not self._is_ending:
            # Before the backend is told: with no worker there it ends the job at once.
            self._is_ending = True
            self._on_cancel(self.reply_id)
            self._end(Finish.CANCELLED, recorded_as=Finish.CANCELLED)

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
        self._hand_out(self._assembler.feed(tokens, scores))
        ignored = self._assembler.ignored_tokens
        if self._recorder is not None:
            self._recorder.feed(tokens[: len(tokens) - ignored])
        if self._assembler.stopped_by is not None:
            self._right_guesses = max(0, self._right_guesses - ignored)
            self._is_ending = True
            self._on_cancel(self.reply_id)
            # The client's stop string is no end of turn to the model: for the log the turn was cut.
            self._end(Finish.END_OF_TURN, recorded_as=Finish.CANCELLED)

    def finished(self, finish: Finish) -> None:
        if not self._is_ending:
            self._end(finish, recorded_as=finish)

    def failed(self, error: SuperfluidError) -> None:
        if self._is_ending:
            return
        self._is_ending = True
        if self._recorder is None:
            self._fail(error)
            return
        is_fault = isinstance(error, EngineFaultError)
        recording = self._recorder.close(Finish.ERROR) if is_fault else self._recorder.abandon()
        _after(recording, lambda: self._fail(error))

    def store_failed(self, error: SuperfluidError) -> None:
        """A record was refused by the store: the reply ends here."""
        was_ending, self._is_ending = self._is_ending, True
        if not was_ending:
            self._on_cancel(self.reply_id)
        self._fail(error)

    # ----

    def _hand_out(self, events: list[ReplyEvent]) -> None:
        if self._stored is not None:
            self._note(events)
        self._mailbox.put(events)

    def _note(self, events: Iterable[ReplyEvent]) -> None:
        """Keeps what a client will send back as this reply."""
        for event in events:
            if isinstance(event, TextDelta):
                if event.channel is Channel.TEXT:
                    self._texts.append(event.text)
            elif isinstance(event, ToolCallFinished):
                self._calls.append(ToolCall(id=event.call_id, name=event.name, arguments=event.arguments))

    def _end(self, finish: Finish, *, recorded_as: Finish) -> None:
        self._is_ending = True
        self._hand_out(self._assembler.finish())
        last = ReplyFinished(
            finish=finish,
            prompt_tokens=self.prompt_tokens,
            warm_tokens=self._warm_tokens,
            completion_tokens=self._assembler.tokens_generated,
            stopped_by=self._assembler.stopped_by,
            guessed_tokens=self._guessed_tokens,
            right_guesses=self._right_guesses,
        )
        if self._recorder is None or self._stored is None:
            self._close(last)
            return
        extra = None
        if recorded_as is Finish.END_OF_TURN:
            message = Message(role="assistant", content="".join(self._texts), tool_calls=tuple(self._calls))
            extra = self._stored.reply_prefix(message)
        _after(self._recorder.close(recorded_as, extra), lambda: self._close(last))

    def _prompt_stored(self, future: "asyncio.Future[list[Event]]") -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, SuperfluidError):
            self.store_failed(error)

    def _close(self, last: ReplyFinished) -> None:
        self._mailbox.put([last])
        self._mailbox.close()
        self._release()

    def _fail(self, error: SuperfluidError) -> None:
        self._mailbox.fail(error)
        self._release()

    def _release(self) -> None:
        stored, self._stored = self._stored, None
        if stored is not None:
            stored.session.end_generation()
        self._on_end(self.reply_id)


def _after(recording: "asyncio.Future[list[Event]]", then: Callable[[], None]) -> None:
    """``then``, once it is durable; a refusal is reported by ``store_failed``."""

    def recorded(future: "asyncio.Future[list[Event]]") -> None:
        if not future.cancelled() and future.exception() is None:
            then()

    recording.add_done_callback(recorded)
