"""What a server keeps, as the listings show it. The summaries come in one reply; tier, age and opening words are asked
for session by session, and therefore only for the few that are shown."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, structs

from superfluid.cli.session.inspection import tier_text
from superfluid.cli.session.warmth import fetch_warmths, warmth_plain
from superfluid.domain.events import EpochBump, Event, Message, TurnRole
from superfluid.native import requests, responses
from superfluid.native.client import SessionClient
from superfluid.native.responses import Parked, SessionSummary, Tier, Warmth

MAX_DETAILED = 500
"""More sessions than these are listed without details: each costs the server the reading of a whole log."""
MAX_INSPECTED_EVENTS = 20_000
_TAIL_EVENTS = 8


class Row(Struct, frozen=True, kw_only=True):
    """A session in a listing. The last four are ``None`` where nobody asked for them, or they cannot be read.

    ``last_unix_ms`` is the time of the last event, restarts of the server left aside; ``opening`` what the session, or
    this branch, began with.
    """

    id: int
    parent: int | None
    fork_at: int
    title: str | None
    is_archived: bool
    events: int
    tokens: int
    open_tool_calls: int
    tier: Tier | None = None
    last_unix_ms: int | None = None
    opening: str | None = None
    warmth: Warmth | None = None

    def to_plain(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "id": self.id,
            "parent": self.parent,
            "fork_at": self.fork_at,
            "title": self.title,
            "archived": self.is_archived,
            "events": self.events,
            "tokens": self.tokens,
            "open_tool_calls": self.open_tool_calls,
            "tier": None if self.tier is None else tier_text(self.tier).partition("(")[0],
            "parked_tokens": self.tier.covered if isinstance(self.tier, Parked) else None,
            "last_unix_ms": self.last_unix_ms,
            "warmth": warmth_plain(self.warmth),
        }


def fetch_rows(client: SessionClient, *, include_archived: bool) -> list[Row]:
    """Every session, by id, without details."""
    return rows_of(client.ask(requests.Sessions(include_archived), responses.SessionList))


def fetch_summary(client: SessionClient, session: int) -> SessionSummary:
    """One session's summary. Raises RequestRefusedError if there is no such session."""
    # An inspection carries the whole log; of a session too long for that, the list of all is the shorter way.
    inspected = client.ask_all([requests.Inspect(session)])[0]
    if isinstance(inspected, responses.Inspected):
        return inspected.inspection.summary
    listed = client.ask(requests.Sessions(True), responses.SessionList)
    found = next((summary for summary in listed.sessions if summary.id == session), None)
    if found is None:
        return client.ask(requests.Inspect(session), responses.Inspected).inspection.summary
    return found


def with_details(client: SessionClient, rows: Sequence[Row]) -> list[Row]:
    """The rows with what is known of each. One that cannot be read stays as it was."""
    questions = [
        requests.Inspect(row.id)
        if row.events <= MAX_INSPECTED_EVENTS
        else requests.Read(row.id, max(row.events - _TAIL_EVENTS, 0))
        for row in rows
    ]
    return [_detailed(row, reply) for row, reply in zip(rows, client.ask_all(questions), strict=True)]


def with_warmth(client: SessionClient, rows: Sequence[Row]) -> list[Row]:
    """The rows with what lies where of each, as far as the server tells. Nothing can be asked after this."""
    warmths = fetch_warmths(client, [row.id for row in rows])
    return [structs.replace(row, warmth=warmth) for row, warmth in zip(rows, warmths, strict=True)]


def rows_of(listed: responses.SessionList) -> list[Row]:
    return list(map(row_of, listed.sessions))


def row_of(summary: SessionSummary) -> Row:
    return Row(
        id=summary.id,
        parent=summary.parent,
        fork_at=summary.fork_at,
        title=summary.title,
        is_archived=summary.archived,
        events=summary.events,
        tokens=summary.tokens,
        open_tool_calls=summary.open_tool_calls,
    )


def _detailed(row: Row, reply: responses.Response) -> Row:
    match reply:
        case responses.Inspected(inspection):
            last = last_used_unix_ms(inspection.events)
            opening = _opening(inspection.events, row.fork_at)
            return structs.replace(row, tier=inspection.tier, last_unix_ms=last, opening=opening)
        case responses.Events(events):
            return structs.replace(row, last_unix_ms=last_used_unix_ms(events))
        case _:
            return row


def last_used_unix_ms(events: Sequence[Event]) -> int | None:
    """When something last happened to a session; that the server was started anew is nothing."""
    times = (event.ts_unix_ms for event in reversed(events) if not isinstance(event.body, EpochBump))
    return next(times, events[0].ts_unix_ms if events else None) or None


def _opening(events: Sequence[Event], fork_at: int) -> str | None:
    """The first user message, of a fork the first of its own; a fork without any has its parent's last one."""
    inherited, own = _user_texts(events[:fork_at]), _user_texts(events[fork_at:])
    return next(own, None) or next(reversed(list(inherited)), None)


def _user_texts(events: Iterable[Event]) -> Iterator[str]:
    said = (event.body for event in events if isinstance(event.body, Message))
    return (body.text for body in said if body.role == TurnRole.USER)
