"""The fold of a session's log: what each record does to the state, and that a fork's fold is the fork of a fold."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.domain.events import (
    Appended,
    Block,
    Body,
    Created,
    EpochBump,
    Event,
    Forked,
    Generated,
    GenerationFingerprint,
    GenerationPrompt,
    GenParams,
    Message,
    MetaUpdated,
    PermissionRequest,
    PermissionResponse,
    Pinned,
    Purged,
    PurgeMode,
    QosSet,
    Rebased,
    Rerooted,
    ToolCancelRequested,
    ToolExpired,
    ToolLease,
    ToolOutcome,
    ToolParseFailure,
    ToolReconciliation,
    ToolResult,
    ToolUse,
)
from superfluid.domain.reply import Channel, Finish
from superfluid.domain.state import CallState, SessionState, TurnKind

PARAMS = GenParams(0.5, 1.0, 0.0, 0, 1)
OTHER = GenParams(0.0, 1.0, 0.0, 0, 2)
CREATED = Created(None, PARAMS)
USER = Message(1, "hi", (10, 11))
HEADER = GenerationPrompt((20, 21))


def drawn(*span: int, finish: Finish = Finish.NONE, channel: Channel = Channel.TEXT) -> Generated:
    return Generated(span, "x" * len(span), channel, finish)


def events_of(bodies: Sequence[Body], epoch: int = 1, first: int = 0) -> list[Event]:
    return [Event(first + index, epoch, 1000 + first + index, body) for index, body in enumerate(bodies)]


def fold(*bodies: Body, **fields: int) -> SessionState:
    state = SessionState(1, **fields)  # type: ignore[arg-type]
    state.apply_all(events_of(bodies))
    return state


def test_tokens_are_the_spans_of_the_six_span_records_in_id_order() -> None:
    state = fold(
        CREATED,
        Appended(None, (1,)),
        Message(1, "", (2,)),
        GenerationPrompt((3,)),
        drawn(4),
        ToolUse("f", "{}"),
        ToolResult(5, "", (5,)),
        Block(1, 1, "{}", (6,), 2),
        GenerationFingerprint(7),
        ToolParseFailure("?"),
        QosSet(1, True),
        Pinned(5),
        EpochBump(),
    )
    assert state.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert state.events == 13


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (Appended(None, (1,)), TurnKind.RAW),
        (USER, TurnKind.MESSAGE),
        (HEADER, TurnKind.HEADER),
        (drawn(1), TurnKind.GENERATED),
        (ToolResult(9, "", (1,)), TurnKind.TOOL_RESULT),
        (Block(1, 2, "{}", (1,), 2), TurnKind.BLOCK),
    ],
)
@pytest.mark.parametrize(
    "without_tokens",
    [
        EpochBump(),
        ToolUse("f", "{}"),
        Block(1, 4, "{}", (), 2),
        Message(1, "", ()),
        Generated((), "", 0, Finish.CANCELLED),
        MetaUpdated(1, "t", None),
    ],
)
def test_last_turn_is_decided_by_the_last_record_with_tokens(last: Body, kind: TurnKind, without_tokens: Body) -> None:
    assert fold(CREATED, last).last_turn is kind
    assert fold(CREATED, last, without_tokens).last_turn is kind


@pytest.mark.parametrize(
    ("finish", "is_open"),
    [
        (Finish.NONE, True),
        (Finish.END_OF_TURN, False),
        (Finish.LENGTH, True),
        (Finish.GRAMMAR, True),
        (Finish.CANCELLED, True),
        (Finish.ERROR, True),
    ],
)
def test_only_an_end_of_turn_closes_a_reply(finish: Finish, is_open: bool) -> None:
    assert fold(CREATED, USER, HEADER, drawn(1, finish=finish)).is_reply_open is is_open


def test_last_finish_is_that_of_the_last_generated_record_with_or_without_tokens() -> None:
    assert fold(CREATED, USER).last_finish == 0
    cut = fold(CREATED, USER, HEADER, drawn(1), drawn(finish=Finish.CANCELLED))
    assert (cut.last_finish, cut.is_reply_open, cut.last_turn_finish) == (Finish.CANCELLED, True, Finish.NONE)


def test_reply_begins_behind_its_header_and_goes_on_through_appended_tokens() -> None:
    state = fold(CREATED, USER, HEADER, drawn(1), drawn(2), Appended(None, (3, 4)), drawn(5), drawn(6))
    assert (state.header_start, state.reply_start, state.drawn_start) == (2, 4, 8)
    assert (state.drawn_tokens, state.is_reply_open) == (2, True)


def test_raw_input_opens_a_reply_behind_all_of_it() -> None:
    state = fold(CREATED, Appended(None, (1, 2)), Appended(None, (3,)), Block(1, 2, "{}", (4,), 2))
    assert (state.header_start, state.reply_start, state.is_reply_open, state.drawn_tokens) == (0, 4, True, 0)
    state.apply_all(events_of([drawn(5)], first=state.events))
    assert (state.reply_start, state.drawn_start, state.drawn_tokens) == (4, 4, 1)


def test_next_reply_without_a_header_of_its_own_begins_anew() -> None:
    """Templates exist whose header and separator are empty."""
    state = fold(CREATED, USER, drawn(1, finish=Finish.END_OF_TURN), drawn(2))
    assert (state.header_start, state.reply_start, state.drawn_start, state.drawn_tokens) == (3, 3, 3, 1)


def test_appended_turn_closes_an_open_reply() -> None:
    state = fold(CREATED, USER, HEADER, drawn(1), USER)
    assert (state.is_reply_open, state.drawn_tokens) == (False, 0)


CALL = ToolUse("f", '{"a":1}')


@pytest.mark.parametrize(
    ("records", "state", "is_open"),
    [
        ([], CallState.OPEN, True),
        ([ToolCancelRequested(1)], CallState.CANCEL_REQUESTED, True),
        ([ToolResult(1, "r", (1,))], CallState.SUCCEEDED, False),
        ([ToolCancelRequested(1), ToolResult(1, "r", (1,))], CallState.SUCCEEDED, False),
        ([ToolOutcome(1, 1, "")], CallState.FAILED, False),
        ([ToolOutcome(1, 2, "")], CallState.CANCELLED, False),
        ([ToolExpired(1, "purged")], CallState.EXPIRED, False),
        ([ToolOutcome(1, 2, ""), ToolReconciliation(1, "")], CallState.CANCELLED_WITH_LATE_EFFECT, False),
        ([ToolOutcome(1, 2, "")] + [ToolReconciliation(1, "")] * 2, CallState.CANCELLED_WITH_LATE_EFFECT, False),
        ([ToolOutcome(1, 1, ""), ToolReconciliation(1, "")], CallState.FAILED, False),
        ([ToolExpired(1, "lease expired"), ToolReconciliation(1, "")], CallState.EXPIRED, False),
    ],
)
def test_ledger_follows_the_records_of_a_call(records: list[Body], state: CallState, is_open: bool) -> None:
    entry = fold(CREATED, CALL, *records).calls[1]
    assert (entry.state, entry.is_open, entry.name, entry.arguments) == (state, is_open, "f", '{"a":1}')
    assert entry.late_effects == sum(isinstance(record, ToolReconciliation) for record in records)
    assert entry.is_cancel_requested is any(isinstance(record, ToolCancelRequested) for record in records)


def test_lease_and_permissions_are_kept_until_answered() -> None:
    state = fold(CREATED, CALL, ToolLease(1, 99), PermissionRequest(1, "?"), PermissionRequest(0, "?"))
    assert state.calls[1].lease_deadline_unix_ms == 99
    assert state.open_permissions == {3, 4}
    state.apply_all(events_of([PermissionResponse(3, False)], first=5))
    assert state.open_permissions == {4}


def test_standing_settings_are_the_last_ones_set() -> None:
    state = fold(
        CREATED,
        MetaUpdated(1, "title", None),
        MetaUpdated(2, None, True),
        MetaUpdated(3, "", None),
        QosSet(3, True),
        Pinned(50),
        Pinned(0),
        GenerationFingerprint(1),
        GenerationFingerprint(2),
    )
    assert (state.title, state.is_archived, state.meta_version) == ("", True, 3)
    assert (state.qos_class, state.is_batch_invariant, state.pin_deadline_unix_ms) == (3, True, 0)
    assert state.fingerprint == 2


def test_purge_ends_a_session_and_reroot_takes_its_parent() -> None:
    assert fold(CREATED, Purged(1, PurgeMode.CASCADE)).is_purged
    state = SessionState(2, fork_at=1)
    state.apply_all(events_of([CREATED, Forked(1, 1, OTHER), Rerooted(1, ((0, CREATED),))]))
    assert (state.parent, state.fork_at) == (None, 1)


def test_epoch_is_that_of_the_last_own_bump() -> None:
    state = SessionState(2, fork_at=2)
    state.apply(Event(0, 1, 0, CREATED))
    state.apply(Event(1, 7, 0, EpochBump()))
    state.apply(Event(2, 1, 0, Forked(1, 2, OTHER)))
    assert (state.epoch, state.parent, state.params) == (1, 1, OTHER)
    state.apply(Event(3, 2, 0, EpochBump()))
    assert state.epoch == 2


def test_inherited_records_leave_ledger_permissions_title_and_pin_alone() -> None:
    inherited: list[Body] = [
        CREATED,
        CALL,
        ToolLease(1, 5),
        PermissionRequest(1, "?"),
        MetaUpdated(1, "t", True),
        Pinned(9),
        QosSet(0, True),
    ]
    state = SessionState(2, fork_at=len(inherited))
    state.apply_all(events_of([*inherited, Forked(1, len(inherited), OTHER), ToolResult(1, "late", (3,))]))
    assert (state.calls, state.open_permissions, state.title, state.is_archived) == ({}, set(), None, False)
    assert (state.meta_version, state.pin_deadline_unix_ms, state.qos_class) == (0, 0, 2)


def test_snapshot_does_not_change_when_the_state_goes_on() -> None:
    state = fold(CREATED, CALL, PermissionRequest(1, "?"))
    before = state.snapshot()
    state.apply_all(events_of([USER, ToolCancelRequested(1), PermissionResponse(2, True)], first=3))
    assert (len(before.tokens), before.calls[1].state, before.open_permissions) == (0, CallState.OPEN, {2})


span = st.lists(st.integers(0, 300), max_size=3).map(tuple)
call_ids = st.integers(0, 12)
bodies: st.SearchStrategy[Body] = st.one_of(
    st.builds(Appended, st.none(), span),
    st.builds(Message, st.integers(0, 3), st.just("t"), span),
    st.builds(GenerationPrompt, span),
    st.builds(Generated, span, st.just("t"), st.sampled_from([0, 1, 2]), st.sampled_from(list(range(6)))),
    st.builds(ToolUse, st.just("f"), st.just("{}")),
    st.builds(ToolResult, call_ids, st.just("r"), span),
    st.just(EpochBump()),
    st.builds(GenerationFingerprint, st.integers(0, 3)),
    st.just(ToolParseFailure("?")),
    st.builds(MetaUpdated, st.integers(1, 5), st.sampled_from([None, "t"]), st.sampled_from([None, True])),
    st.builds(ToolExpired, call_ids, st.just("purged")),
    st.builds(QosSet, st.integers(0, 3), st.booleans()),
    st.builds(Block, st.integers(0, 3), st.integers(1, 7), st.just("{}"), span, st.just(2)),
    st.builds(PermissionRequest, call_ids, st.just("?")),
    st.builds(PermissionResponse, call_ids, st.booleans()),
    st.builds(ToolCancelRequested, call_ids),
    st.builds(ToolOutcome, call_ids, st.sampled_from([1, 2]), st.just("")),
    st.builds(ToolReconciliation, call_ids, st.just("")),
    st.builds(ToolLease, call_ids, st.integers(0, 9)),
    st.builds(Pinned, st.integers(0, 9)),
)
logs = st.lists(bodies, max_size=14)


@given(logs, st.lists(logs, max_size=2), st.booleans())
def test_fold_of_a_forked_log_is_the_fork_of_the_folded_log(
    own: list[Body], branches: list[list[Body]], is_rebase: bool
) -> None:
    """Over several generations: what ``forked`` hands on is what reading the whole log anew would give."""
    log: list[Event] = events_of([CREATED, *own])
    state = SessionState(1)
    state.apply_all(log)
    for index, branch in enumerate(branches):
        at = len(log)
        opening: Body = Rebased(index + 1, at, OTHER, ()) if is_rebase else Forked(index + 1, at, OTHER)
        child = state.forked(index + 2)
        log += events_of([opening, *branch], first=at)
        child.apply_all(log[at:])
        read = SessionState(
            index + 2,
            fork_at=at,
            qos_class=state.qos_class,
            is_batch_invariant=state.is_batch_invariant,
        )
        read.apply_all(log)
        assert read == child
        state = child


@given(logs)
def test_positions_in_the_tokens_are_in_order(own: list[Body]) -> None:
    state = fold(CREATED, *own)
    assert 0 <= state.header_start <= state.reply_start <= len(state.tokens)
    assert 0 <= state.drawn_tokens <= len(state.tokens)
    assert state.drawn_tokens <= len(state.tokens) - state.reply_start or not state.is_reply_open
