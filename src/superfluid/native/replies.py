"""What the use cases return, as the replies of the session API. Pure; runs in the daemon."""

from superfluid.domain.state import ToolCallEntry
from superfluid.native import responses
from superfluid.native.responses import (
    Cold,
    Inspection,
    LedgerEntry,
    Parked,
    ParkEncoding,
    Resident,
    SessionSummary,
    Tier,
)
from superfluid.sessions.session_api import Inspected
from superfluid.store.interface import SessionRow

# The form of the log that clients tell apart by: since 2, events carry the time of their commit.
LOG_FORMAT = 2


def summary_of(row: SessionRow) -> SessionSummary:
    """A session in a listing."""
    return SessionSummary(
        id=row.id,
        parent=row.parent,
        fork_at=row.fork_at,
        title=row.title,
        archived=row.is_archived,
        meta_version=row.meta_version,
        generation=row.generation,
        events=row.events,
        tokens=row.tokens,
        open_tool_calls=row.open_tool_calls,
    )


def tree_of(rows: list[SessionRow]) -> responses.Tree:
    return responses.Tree(tuple((row.id, row.parent, row.fork_at) for row in rows))


def tool_calls_of(calls: list[tuple[int, ToolCallEntry]]) -> tuple[tuple[int, str, str], ...]:
    """(call id, name, arguments) of each."""
    return tuple((call_id, entry.name, entry.arguments) for call_id, entry in calls)


def ledger_of(calls: list[tuple[int, ToolCallEntry]]) -> tuple[tuple[int, LedgerEntry], ...]:
    """(call id, entry) of each."""
    return tuple(
        (
            call_id,
            LedgerEntry(
                name=entry.name,
                arguments=entry.arguments,
                state=entry.state,
                cancel_requested=entry.is_cancel_requested,
                lease_deadline_unix_ms=entry.lease_deadline_unix_ms,
                late_effects=entry.late_effects,
            ),
        )
        for call_id, entry in calls
    )


def inspection_of(inspected: Inspected) -> responses.Inspected:
    """A whole session. Takes time in proportion to its length."""
    state = inspected.state
    return responses.Inspected(
        Inspection(
            summary=summary_of(inspected.row),
            params=state.params,
            epoch=inspected.row.epoch,
            last_finish=state.last_finish,
            qos_class=inspected.row.qos_class,
            batch_invariant=inspected.row.is_batch_invariant,
            pin_deadline_unix_ms=state.pin_deadline_unix_ms,
            behavior_fingerprint=state.fingerprint,
            open_tool_calls=tool_calls_of(state.open_calls),
            tier=_tier(inspected),
            tokens=tuple(state.tokens),
            events=tuple(inspected.events),
            wal_version=LOG_FORMAT,
            store_id=inspected.store_id,
        )
    )


def _tier(inspected: Inspected) -> Tier:
    if inspected.is_generating:
        return Resident()
    return Parked(inspected.parked_tokens, ParkEncoding.LOSSLESS) if inspected.parked_tokens else Cold()
