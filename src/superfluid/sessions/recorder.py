"""Writes one generation into its session's log, one record per tick and run of a channel. Runs on the event loop.

The records of a tick are appended at the end of the loop's turn, so that the finish lands on the last of them and all
lanes' records reach the store together.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from superfluid.chat.interface import ReplyParser, Run
from superfluid.chat.toolcalls import ToolCallStream
from superfluid.domain.events import Body, Event, Generated, ToolLease, ToolParseFailure, ToolUse
from superfluid.domain.reply import Channel, Finish
from superfluid.errors import SuperfluidError
from superfluid.sessions.log import OpenSession
from superfluid.store.interface import Write

# A lease follows its call, whose id is known when the records are appended.
_CALL_BEFORE = 0

CommitFailed = Callable[[SuperfluidError], None]
ExtraWrites = Callable[[int], Sequence[Write]]


class Appender(Protocol):
    """The part of ``sessions.log.SessionLog`` that a recorder uses."""

    def append(
        self, opened: OpenSession, bodies: Sequence[Body], *, extra: Sequence[Write] = ()
    ) -> "asyncio.Future[list[Event]]": ...


class TurnRecorder:
    """``parser`` must be at the point where the turn begins or was cut. ``on_failed`` is called, at most once, if the
    store refuses a record; nothing is recorded after that.

    ``lease_deadline_unix_ms`` gives each new call its lease, if leases are on.
    """

    def __init__(
        self,
        log: Appender,
        session: OpenSession,
        parser: ReplyParser,
        *,
        on_failed: CommitFailed,
        lease_deadline_unix_ms: Callable[[], int] | None = None,
    ) -> None:
        self._log = log
        self._session = session
        self._parser = parser
        self._on_failed = on_failed
        self._lease = lease_deadline_unix_ms
        self._loop = asyncio.get_running_loop()
        self._channel = session.state.last_channel if session.state.is_turn_open else Channel.TEXT
        self._unread: list[int] = []  # fed, and not yet in a record
        self._early = 0  # already in a record, and not yet in a run
        self._bodies: list[Body] = []
        self._is_flush_scheduled = False
        self._is_closed = False

    def feed(self, tokens: Sequence[int]) -> list[Run]:
        """Records a tick's tokens. Returns the runs they make, for who shows them before they are durable."""
        self._unread.extend(tokens)
        runs = self._parser.feed(tokens)
        for run in runs:
            self._take(run)
        if self._unread:
            # Part of a character: the tokens are committed now, their text with the record that completes it.
            self._early += len(self._unread)
            self._add_generated(self._take_tokens(len(self._unread)), "", self._channel)
        self._schedule_flush()
        return runs

    def close(self, finish: Finish, extra: ExtraWrites | None = None) -> "asyncio.Future[list[Event]]":
        """Records the end; the future is done when the whole turn is durable, with the last of its events.

        A cancelled or failed generation gets a record of its own without tokens: its last one is out already. What the
        parser holds back is dropped then, as the turn goes on from its last token if it is ever continued.
        ``extra`` gives writes that become durable with the end; it is told at which event the log ends then.
        """
        self._is_closed = True
        if finish in (Finish.CANCELLED, Finish.ERROR):
            self._bodies.append(Generated((), "", self._channel, finish))
        else:
            self._close_turn(finish)
        length = self._session.state.events + len(self._bodies)
        return self._flush(() if extra is None else extra(length))

    # ----

    def _close_turn(self, finish: Finish) -> None:
        if finish is Finish.END_OF_TURN:
            for run in self._parser.finish():
                self._take(run)
        index = next((i for i in reversed(range(len(self._bodies))) if isinstance(self._bodies[i], Generated)), None)
        if index is None:
            self._bodies.append(Generated((), "", self._channel, finish))
        else:
            last = self._bodies[index]
            assert isinstance(last, Generated)
            self._bodies[index] = Generated(last.span, last.text, last.channel, finish)

    def _take(self, run: Run) -> None:
        channel = Channel(run.channel)
        self._channel = channel
        fresh = max(0, run.tokens - self._early)
        self._early -= run.tokens - fresh
        if fresh or run.text:
            self._add_generated(self._take_tokens(fresh), run.text, channel)
        if channel == Channel.TOOL_CALL and (run.is_closed or run.raw):
            self._add_call(run)
        if run.is_closed:
            self._channel = Channel.TEXT

    def _take_tokens(self, count: int) -> tuple[int, ...]:
        taken = tuple(self._unread[:count])
        del self._unread[:count]
        return taken

    def _add_generated(self, span: tuple[int, ...], text: str, channel: Channel) -> None:
        last = self._bodies[-1] if self._bodies else None
        if isinstance(last, Generated) and last.channel == channel:
            self._bodies[-1] = Generated(last.span + span, last.text + text, channel, 0)
        else:
            self._bodies.append(Generated(span, text, channel, 0))

    def _add_call(self, run: Run) -> None:
        reader = ToolCallStream()
        reader.feed(run.raw)
        call = reader.finish(is_closed=run.is_closed)
        if call is None or not call.is_valid:
            self._bodies.append(ToolParseFailure(run.raw))
            return
        self._bodies.append(ToolUse(call.name, call.arguments))
        if self._lease is not None:
            self._bodies.append(ToolLease(_CALL_BEFORE, self._lease()))

    def _schedule_flush(self) -> None:
        if self._bodies and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush_tick)

    def _flush_tick(self) -> None:
        self._is_flush_scheduled = False
        if self._bodies and not self._is_closed:
            self._flush()

    def _flush(self, extra: Sequence[Write] = ()) -> "asyncio.Future[list[Event]]":
        bodies, self._bodies = self._bodies, []
        first = self._session.state.events
        for index, body in enumerate(bodies):
            if isinstance(body, ToolLease):
                bodies[index] = ToolLease(first + index - 1, body.deadline_unix_ms)
        future = self._log.append(self._session, bodies, extra=extra)
        future.add_done_callback(self._appended)
        return future

    def _appended(self, future: "asyncio.Future[list[Event]]") -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, SuperfluidError):
            self._is_closed = True
            self._on_failed(error)
