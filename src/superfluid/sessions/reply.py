"""One running generation on the daemon's side: it takes a job's tokens and hands out the reply's events."""

from collections.abc import AsyncIterator, Callable, Sequence

from superfluid.chat.interface import ChatCodec, Tokenizer
from superfluid.chat.reply import ReplyAssembler
from superfluid.domain.job import Job
from superfluid.domain.reply import Finish, ReplyEvent, ReplyFinished, ReplyStarted
from superfluid.errors import SuperfluidError
from superfluid.sessions.backend import PositionScores
from superfluid.sessions.mailbox import Mailbox


class RunningReply:
    """``sessions.interface.Reply`` towards the front end, ``sessions.backend.JobSink`` towards the worker.

    Both sides run on the event loop. A slow reader costs memory for its own reply, which ``max_tokens`` bounds, and
    delays nobody.
    """

    def __init__(
        self,
        reply_id: int,
        job: Job,
        *,
        tokenizer: Tokenizer,
        codec: ChatCodec,
        stop: tuple[str, ...],
        parse_tools: bool,
        opening: Sequence[int],
        on_cancel: Callable[[int], None],
        on_end: Callable[[int], None],
    ) -> None:
        self.reply_id = reply_id
        self.prompt_tokens = job.prompt_tokens
        self._job_id = job.job_id
        self._assembler = ReplyAssembler(
            tokenizer,
            codec.reply_parser(parse_tools=parse_tools, opening=opening),
            stop=stop,
            call_id_prefix=f"call_{reply_id}",
        )
        self._on_cancel = on_cancel
        self._on_end = on_end
        self._mailbox: Mailbox[ReplyEvent] = Mailbox()
        self._warm_tokens = 0

    def raise_if_failed(self) -> None:
        """Raises the refusal that the backend gave at once, if it did."""
        if self._mailbox.error is not None:
            raise self._mailbox.error

    # ---- towards the front end

    def __aiter__(self) -> AsyncIterator[list[ReplyEvent]]:
        return self._mailbox.batches()

    def cancel(self) -> None:
        if not self._mailbox.is_closed:
            self._on_cancel(self._job_id)
            self._end(Finish.CANCELLED)

    # ---- towards the worker

    def started(self, warm_tokens: int) -> None:
        self._warm_tokens = warm_tokens
        self._mailbox.put([ReplyStarted(self.prompt_tokens, warm_tokens)])

    def tokens(self, tokens: Sequence[int], scores: Sequence[PositionScores]) -> None:
        if self._mailbox.is_closed:
            return
        self._mailbox.put(self._assembler.feed(tokens, scores))
        if self._assembler.stopped_by is not None:
            self._on_cancel(self._job_id)
            self._end(Finish.END_OF_TURN)

    def finished(self, finish: Finish) -> None:
        if not self._mailbox.is_closed:
            self._end(finish)

    def failed(self, error: SuperfluidError) -> None:
        if not self._mailbox.is_closed:
            self._mailbox.fail(error)
            self._on_end(self.reply_id)

    def _end(self, finish: Finish) -> None:
        last = ReplyFinished(
            finish=finish,
            prompt_tokens=self.prompt_tokens,
            warm_tokens=self._warm_tokens,
            completion_tokens=self._assembler.tokens_generated,
            stopped_by=self._assembler.stopped_by,
        )
        self._mailbox.put([*self._assembler.finish(), last])
        self._mailbox.close()
        self._on_end(self.reply_id)
