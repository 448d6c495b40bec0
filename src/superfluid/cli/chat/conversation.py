"""A session's events as the chat sees them: numbered messages, their replies, what is still open. Pure."""

import json
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from superfluid.cli.printable import one_line
from superfluid.domain.events import (
    Block,
    BlockKind,
    Event,
    Forked,
    Generated,
    Message,
    Rebased,
    ToolExpired,
    ToolOutcome,
    ToolParseFailure,
    ToolResult,
    ToolUse,
    TurnRole,
)
from superfluid.domain.media import parse_image_payload
from superfluid.domain.reply import Channel
from superfluid.domain.state import SessionState, TurnKind

_BLOB_DIGITS: Final = 12


class Said(Struct):
    """A run of the model's words in one channel."""

    channel: Channel
    text: str


class Called(Struct, frozen=True):
    """A tool call the model made."""

    call_id: int
    name: str
    arguments: str


class Answered(Struct, frozen=True):
    """How a tool call ended."""

    call_id: int
    text: str


class Shown(Struct, frozen=True):
    """An image or another block, in a few words; ``blob`` is the image's."""

    text: str
    blob: str = ""


Part = Said | Called | Answered | Shown


class Exchange(Struct):
    """A user's message and what followed it. ``number`` counts from 1; ``event_id`` is the message's."""

    number: int
    event_id: int
    text: str
    parts: list[Part]


class Conversation:
    """The fold of one session's log. ``extend`` takes the log in order, from its beginning."""

    def __init__(self, session: int, events: Sequence[Event] = ()) -> None:
        self.session = session
        self.state = SessionState(session, fork_at=_fork_at(events))
        self.system: str | None = None
        self.exchanges: list[Exchange] = []
        self.preface: list[Part] = []
        """What came before the first message."""
        self.extend(events)

    @property
    def length(self) -> int:
        """How many events are known: the next cursor."""
        return self.state.events

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said yet, so that a system message can still come first."""
        return not self.state.tokens

    @property
    def is_cut(self) -> bool:
        """Whether the last reply can be continued: it stopped before its end, or never began."""
        state = self.state
        is_waiting = state.last_turn in (TurnKind.MESSAGE, TurnKind.TOOL_RESULT, TurnKind.HEADER)
        return bool(self.exchanges) and (is_waiting or state.drawn_tokens > 0)

    @property
    def cut_run(self) -> Said | None:
        """What the reply that can be continued said last."""
        is_drawn = self.is_cut and self.state.drawn_tokens > 0
        last = self.exchanges[-1].parts[-1:] if is_drawn else []
        return last[0] if last and isinstance(last[0], Said) else None

    @property
    def next_number(self) -> int:
        return len(self.exchanges) + 1

    @property
    def open_calls(self) -> list[Called]:
        return [Called(call_id, entry.name, entry.arguments) for call_id, entry in self.state.open_calls]

    def exchange(self, number: int) -> Exchange | None:
        """The one with that number."""
        return self.exchanges[number - 1] if 1 <= number <= len(self.exchanges) else None

    def end_of(self, exchange: Exchange) -> int:
        """The first event that is not of the exchange any more."""
        following = self.exchange(exchange.number + 1)
        return self.length if following is None else following.event_id

    def extend(self, events: Iterable[Event]) -> None:
        """Folds further events in; those that are known already are passed over."""
        for event in events:
            if event.event_id >= self.length:
                self.state.apply(event)
                self._take(event)

    # ----

    @property
    def _parts(self) -> list[Part]:
        """Where what comes next belongs. Before the first message there is only a place for what nobody asked for."""
        return self.exchanges[-1].parts if self.exchanges else self.preface

    def _take(self, event: Event) -> None:
        match event.body:
            case Message(role, text):
                self._take_message(event, role, text)
            case Generated(_, text, channel):
                self._say(Channel(channel), text)
            case ToolUse(name, arguments):
                self._parts.append(Called(event.event_id, name, arguments))
            case ToolResult(call_id, content):
                self._parts.append(Answered(call_id, content))
            case ToolOutcome(call_id, _, note):
                self._parts.append(Answered(call_id, note or "no result"))
            case ToolExpired(call_id, reason):
                self._parts.append(Answered(call_id, reason))
            case ToolParseFailure(raw):
                self._say(Channel.TEXT, raw)
            case Block(_, kind, payload):
                self._parts.append(_shown_image(payload) if kind == BlockKind.IMAGE else _shown_block(kind, payload))
            case _:
                pass

    def _take_message(self, event: Event, role: int, text: str) -> None:
        match role:
            case TurnRole.USER:
                self.exchanges.append(Exchange(self.next_number, event.event_id, text, []))
            case TurnRole.SYSTEM:
                self.system = text
            case _:
                self._say(Channel.TEXT, text)

    def _say(self, channel: Channel, text: str) -> None:
        # A call's text comes again as the call.
        if not text or channel is Channel.TOOL_CALL:
            return
        parts = self._parts
        last = parts[-1] if parts else None
        if isinstance(last, Said) and last.channel is channel:
            last.text += text
        else:
            parts.append(Said(channel, text))


def _fork_at(events: Sequence[Event]) -> int:
    """How many of the events are inherited: the last record of a branching is the session's own."""
    own = [event.body.fork_at for event in events if isinstance(event.body, Forked | Rebased)]
    return own[-1] if own else 0


def _shown_image(payload: str) -> Shown:
    image = parse_image_payload(payload)
    if image is None:
        # Anybody can append one that says anything; the model sees nothing of it.
        return Shown(f"image {_member(payload, 'blob')[:_BLOB_DIGITS]}".strip())
    words = " ".join(text for text in (one_line(image.pre_text), one_line(image.post_text)) if text)
    with_words = f": {words}" if words else ""
    return Shown(f"image {image.blob[:_BLOB_DIGITS]}, {image.n_tokens:,} tokens{with_words}", image.blob)


def _shown_block(kind: int, payload: str) -> Shown:
    names = {each.value: each.name.lower().replace("_", " ") for each in BlockKind}
    label = _member(payload, "title") or _member(payload, "path") or _member(payload, "message")
    return Shown(f"{names.get(kind, 'block')} {label}".strip())


def _member(payload: str, key: str) -> str:
    try:
        value = json.loads(payload).get(key)
    except (ValueError, AttributeError):
        return ""
    return value if isinstance(value, str) else ""
