"""Subscriptions: one session's events to many readers, none of whom can hold up the others. Runs on the event loop."""

from collections.abc import AsyncIterator, Sequence

from superfluid.domain.events import Event
from superfluid.domain.reply import Channel
from superfluid.sessions.mailbox import Mailbox
from superfluid.sessions.open_session import EndReason, OpenSession
from superfluid.sessions.session_api import ProvisionalText

MAX_WAITING = 1024


class SessionSubscription:
    """``session_api.Subscription``, and a watcher of its session from the moment it is made.

    Live items wait until ``start`` has the backlog, so that nothing is missed between reading it and following.
    """

    def __init__(self, sub_id: int, session: OpenSession, cursor: int, *, wants_provisional: bool) -> None:
        self.sub_id = sub_id
        self.end_reason: EndReason | None = None
        self._session = session
        self._expected = cursor
        self._wants_provisional = wants_provisional
        self._mailbox: Mailbox[Event | ProvisionalText] = Mailbox()
        self._early: list[Event | ProvisionalText] | None = []
        self._waiting = 0
        session.watchers.append(self)

    def start(self, backlog: Sequence[Event]) -> None:
        """Delivers the backlog, which counts for no bound: it is the reader's own request."""
        early, self._early = self._early or [], None
        self._put_new(backlog, is_bounded=False)
        for item in early:
            if isinstance(item, Event):
                self._put_new([item])
            else:
                self._put(item)

    def __aiter__(self) -> AsyncIterator[list[Event | ProvisionalText]]:
        return self._batches()

    async def _batches(self) -> AsyncIterator[list[Event | ProvisionalText]]:
        async for batch in self._mailbox.batches():
            self._waiting = max(0, self._waiting - len(batch))
            if self.end_reason == "unsubscribed":
                return
            yield batch

    def close(self) -> None:
        self._end("unsubscribed")

    # ---- watching the session

    def committed(self, events: Sequence[Event]) -> None:
        if self._early is not None:
            self._early.extend(events)
        else:
            self._put_new(events)

    def provisional(self, channel: Channel, text: str) -> None:
        if not self._wants_provisional:
            return
        item = ProvisionalText(channel, text)
        if self._early is not None:
            self._early.append(item)
        else:
            self._put(item)

    def ended(self, reason: EndReason) -> None:
        self._end(reason)

    # ----

    def _put_new(self, events: Sequence[Event], *, is_bounded: bool = True) -> None:
        for event in events:
            if event.event_id >= self._expected:
                self._expected = event.event_id + 1
                self._put(event, is_bounded=is_bounded)

    def _put(self, item: Event | ProvisionalText, *, is_bounded: bool = True) -> None:
        if self.end_reason is not None:
            return
        if is_bounded:
            if self._waiting >= MAX_WAITING:
                self._end("lagged")
                return
            self._waiting += 1
        self._mailbox.put([item])

    def _end(self, reason: EndReason) -> None:
        if self.end_reason is None:
            self.end_reason = reason
            if self in self._session.watchers:
                self._session.watchers.remove(self)
            self._mailbox.close()
