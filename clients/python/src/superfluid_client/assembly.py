"""Puts a reply together from the frames of ``/web/stream``. Pure."""

from collections.abc import Mapping
from typing import Any

from superfluid_client.records import SHOWN_CHANNELS, Channel, Chunk, Event, Finish, Reply, ToolCall


class ReplyAssembler:
    """Takes frames in the order they arrive. ``error`` and ``is_done`` say how the generation ended, once it did."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.is_done = False
        self.error: str | None = None
        self._finish = Finish.NONE
        self._tokens = 0
        self._warm_prefix = 0
        # Text comes committed and, if asked for, ahead of that on a way of its own. Both carry the same characters in
        # the same order, so a piece is news as far as it reaches beyond what either has brought.
        self._committed_characters = 0
        self._provisional_characters = 0

    @property
    def has_begun(self) -> bool:
        """Whether the daemon has accepted the generation, as far as its frames tell."""
        return bool(self.events) or self.is_done or self._provisional_characters > 0

    @property
    def has_ended(self) -> bool:
        return self.is_done or self.error is not None

    def take(self, frame: Mapping[str, Any]) -> Chunk | None:
        """What ``frame`` adds to the text or the reasoning. Raises KeyError, TypeError or ValueError for no frame."""
        match frame:
            case {"committed": event}:
                return self._take_event(Event.from_json(event))
            case {"provisional": {"channel": int(channel), "text": str(text)}}:
                before = self._provisional_characters
                self._provisional_characters += len(text)
                return _news(channel, text, before, self._committed_characters)
            case {"done": done}:
                self._finish = Finish(done["finish"])
                self._tokens = done["tokens_generated"]
                self._warm_prefix = done["warm_prefix"]
                self.is_done = True
            case {"error": str(message)}:
                self.error = message
            case _:
                raise ValueError(f"no frame of a generation: {str(frame)[:80]}")
        return None

    def _take_event(self, event: Event) -> Chunk | None:
        if event.kind == "Generated":
            self._tokens += len(event.fields["span"])
            channel, text = event.fields["channel"], event.fields["text"]
            if channel in SHOWN_CHANNELS:
                before = self._committed_characters
                self._committed_characters += len(text)
                self.events.append(event)
                return _news(channel, text, before, self._provisional_characters)
        self.events.append(event)
        return None

    def reply(self) -> Reply:
        """What is committed so far."""
        return Reply(
            text=self._joined(Channel.TEXT),
            reasoning=self._joined(Channel.REASONING),
            tool_calls=tuple(
                ToolCall(event.id, event.fields["name"], event.fields["arguments"])
                for event in self.events
                if event.kind == "ToolUse"
            ),
            finish=self._finish,
            tokens=self._tokens,
            warm_prefix=self._warm_prefix,
            events=tuple(self.events),
        )

    def _joined(self, channel: Channel) -> str:
        return "".join(
            event.fields["text"]
            for event in self.events
            if event.kind == "Generated" and event.fields["channel"] == channel
        )


def _news(channel: int, text: str, before: int, shown: int) -> Chunk | None:
    """The part of ``text``, which begins at character ``before``, that lies behind character ``shown``."""
    fresh = text[max(shown - before, 0) :]
    kind = SHOWN_CHANNELS.get(channel)
    return Chunk(kind, fresh) if kind is not None and fresh else None
