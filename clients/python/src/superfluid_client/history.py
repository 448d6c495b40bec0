"""Reading a session's log."""

from superfluid_client.folding import fold_messages
from superfluid_client.reading import reading
from superfluid_client.records import Event, Message
from superfluid_client.settings import Settings


class History(Settings):
    """The log, raw or folded."""

    async def events(self, cursor: int = 0) -> list[Event]:
        """The log from event ``cursor`` on."""
        payload = await self._ask("Read", {"cursor": cursor}, "Events")
        with reading("Events"):
            events = list(map(Event.from_json, payload["events"]))
        self._note_events(events)
        return events

    async def event_count(self) -> int:
        """How many events the log has, inherited ones included; the next one gets this number."""
        # Events only ever come to the end, so the tail behind the last one known says it all.
        await self.events(self._known_events)
        return self._known_events

    async def messages(self) -> list[Message]:
        """The log folded into a conversation."""
        events = await self.events()
        with reading("Events"):
            return fold_messages(events)
