"""A generation on a session: a job whose tokens go into the log, watched by the client that asked for it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from superfluid.domain.events import Event, Generated, ToolParseFailure, ToolUse
from superfluid.domain.reply import Channel, Finish
from superfluid.errors import EngineFaultError, SuperfluidError
from superfluid.sessions.backend import PositionScores
from superfluid.sessions.mailbox import Mailbox
from superfluid.sessions.open_session import EndReason, OpenSession
from superfluid.sessions.recorder import TurnRecorder
from superfluid.sessions.session_api import ProvisionalText, TurnEnded, TurnItem
from superfluid.sessions.turn_log import TurnLog


class EmptyTurn:
    """The turn of a client that asks for no tokens: it only hears that there are none."""

    async def _items(self) -> AsyncIterator[list[TurnItem]]:
        yield [TurnEnded(tokens_generated=0, finish=Finish.NONE, warm_prefix=0)]

    def __aiter__(self) -> AsyncIterator[list[TurnItem]]:
        return self._items()

    def cancel(self) -> None: ...


class SessionTurn:
    """``session_api.Turn`` towards the client, ``backend.JobSink`` towards the worker, a watcher of its session.

    ``on_cancel`` ends the job; ``on_end`` is called once, when the session is free again, just before the last item.
    """

    def __init__(
        self,
        session: OpenSession,
        job_id: int,
        *,
        wants_provisional: bool,
        on_cancel: Callable[[int], None],
        on_end: Callable[[], None],
        log: TurnLog,
    ) -> None:
        self._session = session
        self._job_id = job_id
        self._wants_provisional = wants_provisional
        self._on_cancel = on_cancel
        self._on_end = on_end
        self._log = log
        self._recorder: TurnRecorder | None = None
        self._mailbox: Mailbox[TurnItem] = Mailbox()
        self._warm_tokens = 0
        self._generated = 0
        self._is_ending = False
        session.watchers.append(self)

    def attach(self, recorder: TurnRecorder) -> None:
        """Must be called as soon as the backend has taken the job, before it gives anything."""
        self._recorder = recorder

    # ---- towards the client

    def __aiter__(self) -> AsyncIterator[list[TurnItem]]:
        return self._mailbox.batches()

    def cancel(self) -> None:
        if not self._is_ending:
            self._on_cancel(self._job_id)

    def raise_if_refused(self) -> None:
        """Raises the refusal that the backend gave at once, if it did: nothing is recorded then."""
        if self._mailbox.error is not None:
            raise self._mailbox.error

    # ---- towards the worker

    def started(self, warm_tokens: int) -> None:
        self._warm_tokens = warm_tokens

    def guessed(self, tokens: int, right: int) -> None:
        """The session API tells of no guesses."""

    def tokens(self, tokens: Sequence[int], scores: Sequence[PositionScores]) -> None:
        if self._is_ending:
            return
        assert self._recorder is not None
        self._generated += len(tokens)
        self._log.tokens_came()
        self._recorder.feed(tokens)

    def finished(self, finish: Finish) -> None:
        if self._is_ending:
            return
        ended = TurnEnded(tokens_generated=self._generated, finish=finish, warm_prefix=self._warm_tokens)
        self._record_end(finish, lambda: self._end(ended))

    def failed(self, error: SuperfluidError) -> None:
        if self._is_ending:
            return
        if self._recorder is None:
            self._fail(error)
        elif isinstance(error, EngineFaultError):
            self._record_end(Finish.ERROR, lambda: self._fail(error))
        else:
            # A worker that could not be kept up leaves no record: the reply stays open where the log ends.
            self._is_ending = True
            self._after(self._recorder.abandon(), lambda: self._fail(error))

    def store_failed(self, error: SuperfluidError) -> None:
        """The log refused a record: the generation ends here, and what was not stored never happened."""
        was_ending, self._is_ending = self._is_ending, True
        if not was_ending:
            self._on_cancel(self._job_id)
        self._fail(error)

    # ---- watching the session

    def committed(self, events: Sequence[Event]) -> None:
        self._mailbox.put([event for event in events if isinstance(event.body, Generated | ToolUse | ToolParseFailure)])

    def provisional(self, channel: Channel, text: str) -> None:
        if self._wants_provisional:
            self._mailbox.put([ProvisionalText(channel, text)])

    def ended(self, reason: EndReason) -> None:
        """A refused record is reported by ``store_failed``; a purge cancels the job first."""

    # ----

    def _record_end(self, finish: Finish, then: Callable[[], None]) -> None:
        assert self._recorder is not None
        self._is_ending = True
        self._after(self._recorder.close(finish), then)

    def _after(self, recording: "asyncio.Future[list[Event]]", then: Callable[[], None]) -> None:
        """``then``, once it is durable; a refusal is reported by ``store_failed``."""

        def recorded(future: "asyncio.Future[list[Event]]") -> None:
            if not future.cancelled() and future.exception() is None:
                then()

        recording.add_done_callback(recorded)

    def _end(self, ended: TurnEnded) -> None:
        self._release(ended.finish)
        self._mailbox.put([ended])
        self._mailbox.close()

    def _fail(self, error: SuperfluidError) -> None:
        self._is_ending = True
        self._release(Finish.ERROR, error)
        self._mailbox.fail(error)

    def _release(self, finish: Finish, error: SuperfluidError | None = None) -> None:
        if self in self._session.watchers:
            self._session.watchers.remove(self)
            self._log.ended(finish, warm_tokens=self._warm_tokens, generated=self._generated, error=error)
            self._on_end()
