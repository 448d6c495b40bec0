"""How a session asks the daemon: what passes by itself is waited for, and what an answer tells is remembered."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from superfluid_client.errors import RequestRefused
from superfluid_client.patience import SessionPatience
from superfluid_client.reading import reading
from superfluid_client.records import Event, Message, Reply, ToolCall
from superfluid_client.transport import Exchange

if TYPE_CHECKING:
    from superfluid_client.async_client import AsyncClient

_SETTLING_SECONDS = 5.0


class SessionRequests:
    """The part of a session that everything it can do is built on."""

    def __init__(self, client: "AsyncClient", session_id: int) -> None:
        self.client = client
        self.id = session_id
        self.last_reply: Reply | None = None
        self._known_events = 0
        self._settling_until = 0.0

    def patience(self) -> SessionPatience:
        """For one request and its repetitions."""
        return SessionPatience(
            self.client.network, self.client.timeout_seconds, lambda: time.monotonic() < self._settling_until
        )

    def note_reply(self, reply: Reply | None, *, is_settled: bool) -> None:
        """A stream's end: the reply, if there is any, and whether the session is done with it."""
        if reply is not None:
            self.last_reply = reply
            self._note_events(reply.events)
        self._settling_until = 0.0 if is_settled else time.monotonic() + _SETTLING_SECONDS

    async def open_generation(self, max_tokens: int, *, provisional: bool) -> Exchange:
        """Sends a request for a generation; for streams."""
        body = {"session": self.id, "max_tokens": max_tokens, "provisional": provisional}
        return await self.client.open_stream(body)

    # ---- for what is built on this

    async def _ask(self, verb: str, fields: Mapping[str, Any], answer: str) -> Any:
        patience = self.patience()
        while True:
            try:
                return await self.client.ask(verb, {"session": self.id, **fields}, answer)
            except RequestRefused as refused:
                await patience.wait_out(refused)

    async def _commit(self, verb: str, fields: Mapping[str, Any]) -> Event:
        payload = await self._ask(verb, fields, "Committed")
        with reading("Committed"):
            event = Event.from_json(payload["event"])
        self._note_events([event])
        return event

    def _note_events(self, events: Sequence[Event]) -> None:
        if events:
            self._known_events = max(self._known_events, events[-1].id + 1)


def event_id(event: int | Event | Message | ToolCall) -> int:
    """The id of an event that may be given as such."""
    if isinstance(event, int):
        return event
    return event.id if isinstance(event, ToolCall) else event.event_id
