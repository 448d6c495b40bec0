"""Checks that several session requests share, each with the one message it refuses with. Pure."""

from collections.abc import Sequence

from superfluid.domain.events import BlockKind, RebaseEdit, Replace, ToolOutcomeCode, TurnRole
from superfluid.domain.request import QosClass
from superfluid.errors import SessionBusyError, SessionNotFoundError, SessionRefusedError
from superfluid.sessions.open_session import OpenSession


def require_idle(session: OpenSession) -> None:
    """Refuses while a generation is in flight, and while a purge waits for one to end."""
    require_not_purging(session)
    if session.is_busy:
        raise SessionBusyError(f"session {session.id} is generating; wait for the end or cancel it")


def require_not_purging(session: OpenSession) -> None:
    if session.is_gone:
        raise purged_error(session.id)


def purged_error(session: int) -> SessionNotFoundError:
    """It was there."""
    return SessionNotFoundError(f"session {session} was purged")


def unknown_error(session: int) -> SessionNotFoundError:
    """It never was there."""
    return SessionNotFoundError(f"unknown session {session}")


def require_message_role(role: int) -> None:
    """Roles a plain message may have; tool results have a request of their own."""
    if role not in (TurnRole.SYSTEM, TurnRole.USER, TurnRole.ASSISTANT):
        raise SessionRefusedError(f"role {role} cannot be appended: use 0 (system), 1 (user) or 2 (assistant)")


def require_block(role: int, kind: int) -> None:
    """Blocks may have any role; what a payload holds is not looked at here."""
    if role not in list(TurnRole):
        raise SessionRefusedError(f"a block cannot have role {role}: use 0 to {max(TurnRole)}")
    if kind not in list(BlockKind):
        raise SessionRefusedError(f"there is no block kind {kind}: use {min(BlockKind)} to {max(BlockKind)}")


def require_qos_class(qos_class: int) -> None:
    if qos_class not in list(QosClass):
        raise SessionRefusedError(f"there is no scheduling class {qos_class}: use 0 to {max(QosClass)}")


def require_outcome(outcome: int) -> None:
    if outcome not in list(ToolOutcomeCode):
        raise SessionRefusedError(f"a call cannot end with outcome {outcome}: use 1 (failed) or 2 (cancelled)")


def require_fork_point(event: int, length: int) -> None:
    if not 1 <= event <= length:
        raise SessionRefusedError(f"event {event} is no fork point: this session allows 1 to {length}")


def require_edits(edits: Sequence[RebaseEdit], length: int) -> None:
    """Edits are at least one, in order, do not overlap, and spare event 0."""
    if not edits:
        raise SessionRefusedError("a rebase needs at least one edit")
    previous_end = 1
    for number, edit in enumerate(edits):
        if edit.start < 1:
            raise SessionRefusedError(f"edit {number} touches event 0, which every session keeps")
        if edit.start >= edit.end:
            raise SessionRefusedError(f"edit {number} covers nothing: {edit.start} to {edit.end}")
        if edit.end > length:
            raise SessionRefusedError(f"edit {number} ends at {edit.end}, behind the session's {length} events")
        if edit.start < previous_end:
            raise SessionRefusedError(f"edit {number} overlaps or precedes the one before it")
        if isinstance(edit, Replace):
            require_message_role(edit.role)
        previous_end = edit.end
