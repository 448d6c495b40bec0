"""One running generation on the daemon's side: it takes a job's tokens and hands out the reply's events."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from superfluid.chat.interface import ChatCodec, Tokenizer
from superfluid.chat.reply import ReplyAssembler
from superfluid.domain.job import Job
from superfluid.domain.reply import Finish, ReplyEvent, ReplyFinished, ReplyStarted
from superfluid.errors import SuperfluidError
from superfluid.sessions.backend import PositionScores


class RunningReply:
    """``sessions.interface.Reply`` towards the front end, ``sessions.backend.JobSink`` towards the worker.

    Both sides run on the event loop. What waits here is bounded by the job's ``max_tokens``: a slow reader costs memory for
    its own reply and delays nobody.
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
        prompt_tail: Sequence[int],
        on_cancel: Callable[[int], None],
        on_end: Callable[[int], None],
    ) -> None:
        self.reply_id = reply_id
        self.prompt_tokens = job.prompt_tokens
        self._job = job
        self._assembler = ReplyAssembler(
            tokenizer,
            codec.reply_parser(parse_tools=parse_tools, opening=prompt_tail),
            stop=stop,
            call_id_prefix=f"call_{reply_id}",
        )
        self._on_cancel = on_cancel
        self._on_end = on_end
        self._pending: list[ReplyEvent] = []
        self._waiter: asyncio.Future[None] | None = None
        self._error: SuperfluidError | None = None
        self._is_over = False
        self._warm_tokens = 0
        self._generated = 0

    def raise_if_failed(self) -> None:
        """Raises the refusal that the backend gave at once, if it did."""
        if self._error is not None:
            raise self._error

    # ---- towards the front end

    def __aiter__(self) -> AsyncIterator[list[ReplyEvent]]:
        return self._batches()

    async def _batches(self) -> AsyncIterator[list[ReplyEvent]]:
        while True:
            if self._pending:
                batch, self._pending = self._pending, []
                yield batch
            elif self._error is not None:
                raise self._error
            elif self._is_over:
                return
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter

    def cancel(self) -> None:
        if not self._is_over:
            self._on_cancel(self._job.job_id)
            self._end(Finish.CANCELLED)

    # ---- towards the worker

    def started(self, warm_tokens: int) -> None:
        self._warm_tokens = warm_tokens
        self._publish([ReplyStarted(self.prompt_tokens, warm_tokens)])

    def tokens(self, tokens: Sequence[int], scores: Sequence[PositionScores]) -> None:
        if self._is_over:
            return
        events = self._assembler.feed(tokens, scores)
        self._generated = self._assembler.tokens_generated
        if self._assembler.stopped_by is not None:
            self._on_cancel(self._job.job_id)
            self._pending.extend(events)
            self._end(Finish.END_OF_TURN)
        else:
            self._publish(events)

    def finished(self, finish: Finish) -> None:
        if not self._is_over:
            self._end(finish)

    def failed(self, error: SuperfluidError) -> None:
        if self._is_over:
            return
        self._error = error
        self._is_over = True
        self._on_end(self.reply_id)
        self._wake()

    # ----

    def _end(self, finish: Finish) -> None:
        self._is_over = True
        self._pending.extend(self._assembler.finish())
        self._pending.append(
            ReplyFinished(
                finish=finish,
                prompt_tokens=self.prompt_tokens,
                warm_tokens=self._warm_tokens,
                completion_tokens=self._generated,
                stopped_by=self._assembler.stopped_by,
            )
        )
        self._on_end(self.reply_id)
        self._wake()

    def _publish(self, events: list[ReplyEvent]) -> None:
        if events:
            self._pending.extend(events)
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
