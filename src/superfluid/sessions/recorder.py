"""Writes one generation into its session's log, one record per tick and run of a channel. Runs on the event loop.

Text is shown to the session's watchers as it comes; the records of a tick are appended at the end of the loop's turn,
so that the finish lands on the last of them and all lanes' records reach the store together.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from superfluid.chat.interface import ReplyParser, Run
from superfluid.chat.toolcalls import ToolCallStream
from superfluid.domain.events import (
    Body,
    Event,
    Generated,
    GenerationFingerprint,
    GenerationPrompt,
    ToolLease,
    ToolParseFailure,
    ToolUse,
)
from superfluid.domain.reply import Channel, Finish
from superfluid.errors import SuperfluidError
from superfluid.sessions.open_session import OpenSession, TurnPhase
from superfluid.store.interface import Write

# A lease follows its call, whose id is known when the records are appended.
_CALL_BEFORE = 0

CommitFailed = Callable[[SuperfluidError], None]
ExtraWrites = Callable[[int], Sequence[Write]]


class Appender(Protocol):
    """The part of ``sessions.log.SessionLog`` that a recorder uses."""

    def append(
        self,
        opened: OpenSession,
        bodies: Sequence[Body],
        *,
        extra: Sequence[Write] = (),
        phase: TurnPhase | None = None,
    ) -> "asyncio.Future[list[Event]]": ...


class TurnRecorder:
    """``parser`` must be at the point where the turn begins or was cut, and ``channel`` is the one it is in there.

    ``on_failed`` is called, at most once, if the store refuses a record; nothing is recorded after that.
    ``lease_deadline_unix_ms`` gives each new call its lease, if leases are on. With ``interval_seconds`` the records of
    several ticks are appended together, as long as nobody watches the session; all recorders with the same interval
    append at the same moments, so that they share a transaction.
    """

    def __init__(
        self,
        log: Appender,
        session: OpenSession,
        parser: ReplyParser,
        *,
        on_failed: CommitFailed,
        channel: Channel = Channel.TEXT,
        lease_deadline_unix_ms: Callable[[], int] | None = None,
        interval_seconds: float = 0.0,
    ) -> None:
        self._log = log
        self._session = session
        self._parser = parser
        self._on_failed = on_failed
        self._lease = lease_deadline_unix_ms
        self._interval_seconds = interval_seconds
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._unread: list[int] = []  # fed, and not yet given to the parser
        self._unclaimed: list[int] = []  # read, and not yet in a run
        self._bodies: list[Body] = []
        self._is_flush_scheduled = False
        self._phase = TurnPhase.FIRST
        self._is_closed = False
        self._has_failed = False

    def open(self, header: Sequence[int], fingerprint: int | None) -> None:
        """Records what the turn begins with, if anything: a ``fingerprint`` that is new to the session, a header."""
        if fingerprint is not None:
            self._bodies.append(GenerationFingerprint(fingerprint))
        if header:
            self._bodies.append(GenerationPrompt(tuple(header)))
        if self._bodies:
            self._flush()

    def feed(self, tokens: Sequence[int]) -> None:
        """Shows and records a tick's tokens. Part of a character is recorded with the text that completes it to come.

        Ignored once closed.
        """
        if self._is_closed:
            return
        self._unread.extend(tokens)
        may_wait = self._interval_seconds > 0 and not self._session.watchers
        if not may_wait:
            self._read()
        if not self._is_flush_scheduled and (self._bodies or self._unread):
            self._is_flush_scheduled = True
            self._schedule_flush(may_wait=may_wait)

    def close(self, finish: Finish, extra: ExtraWrites | None = None) -> "asyncio.Future[list[Event]]":
        """Records the end; the future is done when the whole turn is durable, with the last of its events.

        A cancelled or failed generation gets a record of its own without tokens: its last one is out already. Only an
        end of turn gives out what the parser holds back: any other leaves the reply open, to go on from its last token.
        ``extra`` gives writes that become durable with the end; it is told at which event the log ends then.
        """
        self._is_closed = True
        self._read()
        self._claim_rest()
        if finish is Finish.END_OF_TURN:
            for run in self._parser.finish():
                self._take(run, is_last=True)
        if finish in (Finish.CANCELLED, Finish.ERROR):
            self._bodies.append(Generated((), "", self._channel, finish))
        else:
            self._finish_last(finish)
        length = self._session.state.events + len(self._bodies)
        return self._flush(() if extra is None else extra(length))

    def abandon(self) -> "asyncio.Future[list[Event]]":
        """Records what was fed, and no end: the reply stays open where the log ends. As ``close`` otherwise."""
        self._is_closed = True
        self._read()
        self._claim_rest()
        return self._flush()

    # ----

    def _read(self) -> None:
        """Makes records of what was fed."""
        if self._unread:
            tokens, self._unread = self._unread, []
            self._unclaimed.extend(tokens)
            for run in self._parser.feed(tokens):
                self._take(run)

    def _finish_last(self, finish: Finish) -> None:
        """On the last record with tokens, behind which there may be a call; or on one of its own."""
        for index in reversed(range(len(self._bodies))):
            last = self._bodies[index]
            if isinstance(last, Generated):
                self._bodies[index] = Generated(last.span, last.text, last.channel, finish)
                return
        self._bodies.append(Generated((), "", self._channel, finish))

    def _take(self, run: Run, *, is_last: bool = False) -> None:
        channel = Channel(run.channel)
        self._channel = channel
        if run.tokens or run.text:
            self._add_generated(self._claim(run.tokens), run.text, channel)
        if run.text and channel is not Channel.TOOL_CALL:
            for watcher in tuple(self._session.watchers):
                watcher.provisional(channel, run.text)
        if channel is Channel.TOOL_CALL and (run.is_closed or is_last):
            self._add_call(run)
        if run.is_closed:
            self._channel = Channel.TEXT

    def _claim(self, count: int) -> tuple[int, ...]:
        claimed = tuple(self._unclaimed[:count])
        del self._unclaimed[:count]
        return claimed

    def _claim_rest(self) -> None:
        if self._unclaimed:
            self._add_generated(self._claim(len(self._unclaimed)), "", self._channel)

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

    def _schedule_flush(self, *, may_wait: bool) -> None:
        interval = self._interval_seconds
        if may_wait:
            self._loop.call_at((self._loop.time() // interval + 1) * interval, self._flush_tick)
        else:
            self._loop.call_soon(self._flush_tick)

    def _flush_tick(self) -> None:
        self._is_flush_scheduled = False
        if self._is_closed:
            return
        self._read()
        if self._bodies:
            self._flush()

    def _flush(self, extra: Sequence[Write] = ()) -> "asyncio.Future[list[Event]]":
        bodies, self._bodies = self._bodies, []
        first = self._session.state.events
        for index, body in enumerate(bodies):
            if isinstance(body, ToolLease):
                bodies[index] = ToolLease(first + index - 1, body.deadline_unix_ms)
        phase = TurnPhase.LAST if self._is_closed else self._phase
        self._phase = TurnPhase.MIDDLE
        future = self._log.append(self._session, bodies, extra=extra, phase=phase)
        future.add_done_callback(self._appended)
        return future

    def _appended(self, future: "asyncio.Future[list[Event]]") -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, SuperfluidError) and not self._has_failed:
            self._is_closed = self._has_failed = True
            self._on_failed(error)
