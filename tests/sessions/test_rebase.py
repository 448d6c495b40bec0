"""Which records a rebase copies, and what becomes of calls and results."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.session_core import PARAMS

from superfluid.domain.events import (
    Appended,
    Block,
    Body,
    Created,
    Drop,
    EpochBump,
    Event,
    Generated,
    GenerationFingerprint,
    GenerationPrompt,
    Message,
    MetaUpdated,
    PermissionRequest,
    PermissionResponse,
    Pinned,
    QosSet,
    Rebased,
    RebaseEdit,
    Replace,
    ToolCancelRequested,
    ToolExpired,
    ToolLease,
    ToolOutcome,
    ToolParseFailure,
    ToolReconciliation,
    ToolResult,
    ToolUse,
)
from superfluid.domain.state import SessionState
from superfluid.sessions.rebase import rebased_bodies

CREATED = Created(None, PARAMS)
CALL = ToolUse("f", "{}")


def rebase(log: list[Body], edits: list[RebaseEdit]) -> list[Body]:
    """The child's records behind ``Rebased``. A rendered message's span says how many tokens were before it."""
    events = [Event(index, 1, 0, body) for index, body in enumerate(log)]
    start = edits[0].start
    inherited = SessionState(2, fork_at=start, parent=1)
    inherited.apply_all(events[:start])
    before = inherited.snapshot()

    def render(state: SessionState, role: int, text: str) -> tuple[int, ...]:
        return (role, len(state.tokens))

    bodies = rebased_bodies(inherited, events[start:], edits, PARAMS, render)
    assert inherited == before, "the inherited state is not touched"
    assert bodies[0] == Rebased(1, start, PARAMS, tuple(edits))
    return bodies[1:]


@pytest.mark.parametrize(
    "body",
    [
        Appended("t", (1,)),
        Message(1, "t", (1,)),
        GenerationPrompt((1,)),
        Generated((1,), "t", 1, 4),
        ToolUse("f", "{}"),
        ToolParseFailure("?"),
        Block(1, 7, "{}", (1,), 2),
    ],
)
def test_conversation_is_copied_unchanged(body: Body) -> None:
    assert rebase([CREATED, Message(1, "x", (9,)), body], [Drop(1, 2)]) == [body]


@pytest.mark.parametrize(
    "body",
    [
        EpochBump(),
        GenerationFingerprint(1),
        MetaUpdated(1, "t", None),
        QosSet(1, False),
        Pinned(1),
        PermissionRequest(0, "?"),
        PermissionResponse(1, True),
        ToolCancelRequested(1),
        ToolExpired(1, "purged"),
        ToolOutcome(1, 1, ""),
        ToolReconciliation(1, ""),
        ToolLease(1, 5),
    ],
)
def test_everything_else_is_left_out(body: Body) -> None:
    assert rebase([CREATED, Message(1, "x", (9,)), body], [Drop(1, 2)]) == []


def test_dropped_range_vanishes_and_replaced_one_becomes_a_message_at_its_start() -> None:
    log: list[Body] = [CREATED, *(Message(1, str(index), (index, index)) for index in range(1, 7))]
    assert rebase(log, [Drop(1, 2), Replace(3, 5, 2, "new"), Drop(5, 6)]) == [log[2], Message(2, "new", (2, 2)), log[6]]


def test_replacing_to_the_end_drops_what_followed() -> None:
    log: list[Body] = [CREATED, Message(1, "a", (1,)), Message(1, "b", (2,)), Message(1, "c", (3,))]
    assert rebase(log, [Replace(2, 4, 1, "B")]) == [Message(1, "B", (1, 1))]


def test_result_follows_its_call_to_the_new_id() -> None:
    log: list[Body] = [CREATED, Message(1, "x", (9,)), CALL, CALL, ToolResult(3, "r", (1,)), ToolResult(2, "r", (2,))]
    assert rebase(log, [Drop(1, 2)]) == [CALL, CALL, ToolResult(3, "r", (1,)), ToolResult(2, "r", (2,))]


@pytest.mark.parametrize("edit", [Drop(2, 3), Drop(3, 4)])
def test_result_whose_call_is_not_copied_becomes_a_message_of_the_tool_role(edit: RebaseEdit) -> None:
    """Dropped or inherited alike: the child's ledger does not know it."""
    log: list[Body] = [CREATED, Message(1, "x", (9,)), CALL, Message(1, "y", (8,)), ToolResult(2, "r", (7,))]
    assert Message(3, "r", (7,)) in rebase(log, [edit])
    assert not any(isinstance(body, ToolResult) for body in rebase(log, [edit]))


def test_block_spans_count_where_a_message_is_rendered() -> None:
    log: list[Body] = [CREATED, Message(1, "x", (9,)), Block(1, 1, "{}", (1, 2, 3), 2), Message(1, "y", (8,))]
    assert rebase(log, [Drop(1, 2), Replace(3, 4, 1, "Y")])[-1] == Message(1, "Y", (1, 3))


@given(st.lists(st.integers(1, 8), min_size=2, max_size=6, unique=True).map(sorted), st.data())
def test_spans_of_the_child_are_those_of_the_kept_records_in_order(bounds: list[int], data: st.DataObject) -> None:
    log: list[Body] = [CREATED, *(Message(1, str(index), (index,)) for index in range(1, 9))]
    edits: list[RebaseEdit] = [Drop(start, end) for start, end in zip(bounds[::2], bounds[1::2], strict=False)]
    dropped = {index for edit in edits for index in range(edit.start, edit.end)}
    kept = [index for index in range(edits[0].start, 9) if index not in dropped]
    assert [body.span for body in rebase(log, edits) if isinstance(body, Message)] == [(index,) for index in kept]
