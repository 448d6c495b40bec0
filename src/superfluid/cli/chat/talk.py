"""The session that the chat is on: what is asked of the server, and the patience that needs.

A model that is still loading is waited for; a session that answers somebody else is followed to the end of that; a
server that goes away is looked for, and a reply that this cut goes on where it was.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from superfluid.cli.chat.conversation import Conversation
from superfluid.cli.chat.interrupts import Interrupts
from superfluid.cli.chat.link import Link, followed, is_busy, is_loading
from superfluid.cli.chat.views import ReplyView
from superfluid.domain.events import Event, Generated, GenParams, ToolParseFailure, ToolUse
from superfluid.domain.reply import Channel, Finish
from superfluid.errors import ConnectionLostError, RequestRefusedError, ServerUnreachableError
from superfluid.native import requests, responses
from superfluid.native.requests import Request
from superfluid.native.responses import Response

POLL_SECONDS = 0.08
RETRY_SECONDS = 0.25
FOLLOW_SECONDS = 1.0
RETURN_SECONDS = 60.0
"""How long a server that went away is looked for."""

R = TypeVar("R", bound=Response)


class ReplyEnd(Struct, frozen=True):
    """``finish`` is a ``domain.reply.Finish``; ``was_resumed`` says that the server was lost and found again."""

    finish: int
    tokens: int
    was_resumed: bool


class Talk:
    """``new_params`` is how sessions made here draw. ``conversation`` is ``None`` until there is a session. With
    ``is_quiet`` nothing is shown but replies to us."""

    def __init__(
        self,
        link: Link,
        *,
        new_params: Callable[[], GenParams],
        max_tokens: int,
        new_view: Callable[[], ReplyView],
        say: Callable[[str], None],
        is_quiet: bool = False,
    ) -> None:
        self.link = link
        self.conversation: Conversation | None = None
        self.max_tokens = max_tokens
        self._new_params = new_params
        self._new_view = new_view
        self._say = say
        self._is_quiet = is_quiet

    # ---- the session

    def open(self, session: int) -> Conversation:
        """Goes to a session. Raises RequestRefusedError if there is none, and stays."""
        events = self.ask(requests.Read(session, 0), responses.Events).events
        self.conversation = Conversation(session, events)
        return self.conversation

    def begin(self, system: str | None, tools: tuple[str, ...]) -> Conversation:
        """The session in hand, or a new one that opens with these."""
        if self.conversation is None:
            session = self.ask(requests.Create(None, self._new_params()), responses.Created).session
            if system is not None or tools:
                self.ask(requests.AppendSystem(session, system, tools), responses.Committed)
            self.open(session)
        assert self.conversation is not None
        return self.conversation

    def refresh(self) -> list[Event]:
        """Takes in what the log has got since; those events."""
        conversation = self.current
        events = self.ask(requests.Read(conversation.session, conversation.length), responses.Events).events
        conversation.extend(events)
        return list(events)

    @property
    def current(self) -> Conversation:
        assert self.conversation is not None, "there is a session by now"
        return self.conversation

    def ask(self, request: Request, reply_type: type[R]) -> R:
        """As ``Link.ask``, with patience for a model that is loading and for a session that answers somebody else."""
        while True:
            try:
                return self.link.ask(request, reply_type)
            except RequestRefusedError as refused:
                self._wait_out(refused)

    # ---- replies

    def reply(self, *, is_cut_shown: bool = True) -> ReplyEnd:
        """Has the session answered, or its cut reply continued, and shows that. The log is taken in afterwards.
        ``is_cut_shown`` says whether what the cut reply said stands on the screen.

        Ctrl-C cancels the reply. Raises RequestRefusedError if the server will not, ServerUnreachableError if it went
        away and did not come back; what it had written is in the log.
        """
        with Interrupts() as interrupts:
            streamed = _Streamed(self, self._new_view(), interrupts)
            if (run := self.current.cut_run) is not None:
                begin = streamed.view.resume if is_cut_shown else streamed.view.write
                begin(run.channel, run.text)
            try:
                end = streamed.run()
            finally:
                streamed.view.end()
        try:
            self.refresh()
        except (ConnectionLostError, ServerUnreachableError):
            # The reply is there. Whatever comes next looks for the server itself, and refreshes first.
            self.link.close()
        return end

    # ----

    def _wait_out(self, refused: RequestRefusedError) -> None:
        """Returns when it is worth asking again. Raises the refusal if it stays one, KeyboardInterrupt on Ctrl-C."""
        if is_busy(refused) and self._is_quiet:
            self._wait_with_view("the session is answering somebody else")
        elif is_busy(refused) and self.conversation is not None:
            self._say("This session is answering somebody else (Ctrl-C stops waiting):")
            self._show_other_reply()
        elif is_loading(refused):
            self._wait_with_view("the model is loading")
        else:
            raise refused

    def _show_other_reply(self) -> None:
        view, current = self._new_view(), self.current
        if (run := current.cut_run) is not None:
            view.resume(run.channel, run.text)
        try:
            for item in followed(self.link.path, current.session, current.length, poll_seconds=FOLLOW_SECONDS):
                if item is None:
                    view.tick()
                    if not self._is_busy():
                        break
                    continue
                current.extend([item.event])
                show_event(view, item.event)
                if isinstance(item.event.body, Generated) and item.event.body.finish:
                    break
        finally:
            view.end()

    def _is_busy(self) -> bool:
        inspected = self.link.ask(requests.Inspect(self.current.session), responses.Inspected)
        return isinstance(inspected.inspection.tier, responses.Resident)

    def _wait_with_view(self, status: str) -> None:
        view = self._new_view()
        try:
            deadline = time.monotonic() + RETRY_SECONDS
            while time.monotonic() < deadline:
                view.tick(status)
                time.sleep(POLL_SECONDS)
        finally:
            view.end()


class _Streamed:
    """One reply on its way to a view."""

    def __init__(self, talk: Talk, view: ReplyView, interrupts: Interrupts) -> None:
        self.view = view
        self._talk = talk
        self._link = talk.link
        self._session = talk.current.session
        self._cursor = talk.current.length
        self._interrupts = interrupts
        self._is_cancelled = False
        self._was_resumed = False

    def run(self) -> ReplyEnd:
        is_behind = False
        while True:
            try:
                end = self._catch_up() if is_behind else None
                is_behind = False
                return end or self._generate()
            except RequestRefusedError as refused:
                if self._interrupts.count or not (is_loading(refused) or is_busy(refused)):
                    raise
                self._pause("the model is loading" if is_loading(refused) else "the session is answering somebody else")
            except (ConnectionLostError, ServerUnreachableError) as lost:
                if self._is_cancelled:
                    return ReplyEnd(Finish.CANCELLED, 0, self._was_resumed)
                self._find_server(lost)
                is_behind = True

    def _generate(self) -> ReplyEnd:
        self._link.send(requests.Generate(self._session, self._talk.max_tokens))
        while True:
            reply = self._link.receive(POLL_SECONDS)
            match reply:
                case None:
                    self._watch_interrupts()
                    self.view.tick()
                case responses.Delta(event):
                    self._take(event)
                    self._watch_interrupts()
                case responses.Generated(_, tokens, finish):
                    return ReplyEnd(finish, tokens, self._was_resumed)
                case responses.Err(message):
                    raise RequestRefusedError(message)
                case _:
                    self._link.close()
                    raise ConnectionLostError(f"the server sent {type(reply).__name__} inside a reply")

    def _take(self, event: Event) -> None:
        self._cursor = event.event_id + 1
        show_event(self.view, event)

    def _watch_interrupts(self) -> None:
        """The first Ctrl-C cancels; with the second there is no waiting for what that brings."""
        if self._interrupts.count and not self._is_cancelled:
            self._is_cancelled = True
            self.view.tick("stopping")
            self._link.cancel(self._session)
        elif self._interrupts.count > 1:
            self._link.close()
            raise ConnectionLostError("the reply was given up")

    def _find_server(self, lost: ConnectionLostError | ServerUnreachableError) -> None:
        deadline = time.monotonic() + RETURN_SECONDS
        while not self._link.can_connect():
            if self._interrupts.count or time.monotonic() > deadline:
                raise ServerUnreachableError(lost.message) from lost
            self._pause("the server went away; waiting for it (Ctrl-C gives up)")
        self._was_resumed = True

    def _catch_up(self) -> ReplyEnd | None:
        """Shows what was written before the connection was lost. The end, if that was all."""
        events = self._link.ask(requests.Read(self._session, self._cursor), responses.Events).events
        for event in events:
            self._take(event)
            if isinstance(event.body, Generated) and event.body.finish == Finish.END_OF_TURN:
                return ReplyEnd(event.body.finish, 0, True)
        return None

    def _pause(self, status: str) -> None:
        deadline = time.monotonic() + RETRY_SECONDS
        while time.monotonic() < deadline and not self._interrupts.count:
            self.view.tick(status)
            time.sleep(POLL_SECONDS)


def show_event(view: ReplyView, event: Event) -> None:
    """What the model wrote, if the event is that."""
    match event.body:
        case Generated(_, text, channel):
            view.write(Channel(channel), text)
        case ToolUse(name, arguments):
            view.call(event.event_id, name, arguments)
        case ToolParseFailure(raw):
            view.write(Channel.TEXT, raw)
        case _:
            pass
