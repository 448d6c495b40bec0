"""The rules of the requests that create, read, append and fork, one test each."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.fixtures.session_core import (
    ASSISTANT,
    END,
    PARAMS,
    SYSTEM,
    USER,
    SessionCore,
    rest_of,
    text_with_template,
    tokens_of,
    with_call,
)

from superfluid.domain.events import (
    Appended,
    Created,
    EpochBump,
    Forked,
    Generated,
    GenParams,
    Message,
    MetaUpdated,
    PermissionRequest,
    Pinned,
    QosSet,
)
from superfluid.domain.reply import Finish
from superfluid.errors import (
    ModelLoadingError,
    SessionBusyError,
    SessionNotFoundError,
    SessionRefusedError,
    UnsupportedInputError,
)
from superfluid.store.interface import Origin

# ---- Create, Read, List, Sessions, Tree


async def test_create_makes_event_0_at_epoch_1_with_default_class(core: SessionCore) -> None:
    session = await core.sessions.create(None, PARAMS)
    inspected = await core.sessions.inspect(session)
    assert [(e.event_id, e.epoch, e.body) for e in inspected.events] == [(0, 1, Created(None, PARAMS))]
    assert inspected.events[0].ts_unix_ms == 1_700_000_000_000
    assert (inspected.state.qos_class, inspected.state.is_batch_invariant, inspected.row.epoch) == (2, False, 1)


async def test_session_ids_start_at_1_and_rise(core: SessionCore) -> None:
    assert [await core.sessions.create(None, PARAMS) for _ in range(3)] == [1, 2, 3]


async def test_create_with_a_parent_inherits_nothing(core: SessionCore) -> None:
    parent = await core.chat()
    child = await core.sessions.create(parent, PARAMS)
    inspected = await core.sessions.inspect(child)
    assert (inspected.row.parent, inspected.row.fork_at, inspected.row.events, inspected.row.tokens) == (1, 0, 1, 0)


async def test_create_with_an_unknown_parent_is_refused(core: SessionCore) -> None:
    with pytest.raises(SessionNotFoundError, match="unknown session 9"):
        await core.sessions.create(9, PARAMS)
    assert await core.sessions.session_rows(include_archived=True) == []


async def test_create_with_a_parent_does_not_open_it(core: SessionCore) -> None:
    parent = await core.chat()
    await core.close()
    again = SessionCore(core.path)
    await again.sessions.create(parent, PARAMS)
    row = again.store.row(parent)
    assert row is not None
    assert (row.events, row.epoch) == (2, 1)
    await again.close()


async def test_parent_is_shown_after_a_restart_too(core: SessionCore) -> None:
    child = await core.sessions.create(await core.chat(), PARAMS)
    fork = await core.sessions.fork(child, 1, None)
    await core.close()
    again = SessionCore(core.path)
    assert (await again.sessions.inspect(child)).row.parent == 1
    assert (await again.sessions.inspect(fork)).row.parent == child
    await again.close()


async def test_read_past_the_end_is_empty(core: SessionCore) -> None:
    session = await core.chat()
    assert [event.event_id for event in await core.sessions.read(session, 1)] == [1]
    for cursor in (2, 3, 2**64 - 1):
        assert await core.sessions.read(session, cursor) == []


@pytest.mark.parametrize(
    "request_of",
    [
        lambda core: core.sessions.read(9, 0),
        lambda core: core.sessions.inspect(9),
        lambda core: core.sessions.append(9, "x", ()),
        lambda core: core.sessions.append_message(9, 1, "x"),
        lambda core: core.sessions.append_system(9, "x", ()),
        lambda core: core.sessions.append_tool_result(9, 1, "x"),
        lambda core: core.sessions.append_block(9, 1, 1, "{}"),
        lambda core: core.sessions.open_tool_calls(9),
        lambda core: core.sessions.ledger(9),
        lambda core: core.sessions.request_tool_cancel(9, 1),
        lambda core: core.sessions.append_tool_outcome(9, 1, 1, ""),
        lambda core: core.sessions.request_permission(9, 0, "?"),
        lambda core: core.sessions.respond_permission(9, 1, granted=True),
        lambda core: core.sessions.set_meta(9, 0, None, None),
        lambda core: core.sessions.set_qos(9, 1, batch_invariant=False),
        lambda core: core.sessions.pin(9, 1),
        lambda core: core.sessions.fork(9, 1, None),
        lambda core: core.sessions.trim(9, 1),
        lambda core: core.sessions.rebase(9, [], None),
        lambda core: core.sessions.generate(9, 1),
        lambda core: core.sessions.generate(9, 0),
        lambda core: core.sessions.cancel(9),
        lambda core: core.sessions.subscribe(9, 0, wants_provisional=False),
        lambda core: core.sessions.read(2**64 - 1, 0),
    ],
)
async def test_unknown_session_is_refused_by_every_request(
    core: SessionCore, request_of: Callable[[SessionCore], Awaitable[object]]
) -> None:
    with pytest.raises(SessionNotFoundError, match="unknown session"):
        await request_of(core)


async def test_listings_are_by_id_and_say_what_each_session_is(core: SessionCore) -> None:
    first = await core.chat()
    fork = await core.sessions.fork(first, 1, None)
    rows = await core.sessions.session_rows(include_archived=False)
    shown = [(row.id, row.parent, row.fork_at, row.events, row.open_tool_calls) for row in rows]
    assert shown == [(first, None, 0, 2, 0), (fork, first, 1, 2, 0)]
    assert rows[0].tokens == len((await core.sessions.inspect(first)).state.tokens)


async def test_listing_counts_open_tool_calls(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    assert (await core.sessions.session_rows(include_archived=True))[0].open_tool_calls == 1
    await core.sessions.append_tool_result(session, call_id, "x")
    assert (await core.sessions.session_rows(include_archived=True))[0].open_tool_calls == 0


# ---- Append


async def test_append_text_is_tokenized_with_nothing_before_or_behind_it(core: SessionCore) -> None:
    session = await core.sessions.create(None, PARAMS)
    event = await core.sessions.append(session, f"hi{END}", ())
    assert event.body == Appended(f"hi{END}", tuple(f"hi{END}".encode()))
    await core.sessions.append(session, "x", ())
    assert (await core.sessions.inspect(session)).state.tokens.tolist() == [*f"hi{END}".encode(), ord("x")]


async def test_append_span_is_used_as_it_is_and_not_compared_with_the_text(core: SessionCore) -> None:
    session = await core.sessions.create(None, PARAMS)
    assert (await core.sessions.append(session, "other", (257, 9))).body == Appended("other", (257, 9))
    assert (await core.sessions.append(session, None, (5,))).body == Appended(None, (5,))


@pytest.mark.parametrize(("text", "message"), [(None, "needs text or a span"), ("", "no tokens")])
async def test_append_of_nothing_is_refused(core: SessionCore, text: str | None, message: str) -> None:
    session = await core.sessions.create(None, PARAMS)
    with pytest.raises(SessionRefusedError, match=message):
        await core.sessions.append(session, text, ())
    assert await core.kinds(session) == ["Created"]


async def test_append_of_ids_outside_the_vocabulary_is_refused(core: SessionCore) -> None:
    session = await core.sessions.create(None, PARAMS)
    with pytest.raises(SessionRefusedError, match="below 268"):
        await core.sessions.append(session, None, (268,))


# ---- AppendMessage


async def test_first_message_has_the_prologue_before_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    template = (
        "{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe nice.<|im_end|>\n' }}{%- endif %}"
        "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
    )
    core = SessionCore(tmp_path_factory.mktemp("p") / "s.db", text=text_with_template(template))
    session = await core.chat((USER, "hi"), (USER, "ho"))
    bodies = await core.bodies(session)
    system = f"<|im_start|>system\nBe nice.{END}\n"
    assert bodies[1] == Message(1, "hi", tokens_of(f"{system}<|im_start|>user\nhi{END}\n"))
    assert bodies[2] == Message(1, "ho", tokens_of(f"<|im_start|>user\nho{END}\n"))
    own = await core.chat((SYSTEM, "Be rude."))
    assert (await core.bodies(own))[1] == Message(0, "Be rude.", tokens_of(f"<|im_start|>system\nBe rude.{END}\n"))
    await core.close()


async def test_message_behind_a_finished_reply_has_the_separator_before_it(core: SessionCore) -> None:
    session = await core.chat()
    await core.replied(session, "yes")
    event = await core.sessions.append_message(session, USER, "ok")
    assert event.body == Message(1, "ok", tokens_of(f"\n<|im_start|>user\nok{END}\n"))


@pytest.mark.parametrize("finish", [Finish.CANCELLED, Finish.LENGTH])
async def test_message_behind_an_unfinished_reply_has_no_separator(core: SessionCore, finish: Finish) -> None:
    session = await core.chat()
    await core.cut(session, "ye", finish)
    event = await core.sessions.append_message(session, USER, "ok")
    assert event.body == Message(1, "ok", tokens_of(f"<|im_start|>user\nok{END}\n"))


async def test_markers_in_a_message_stay_text(core: SessionCore) -> None:
    session = await core.chat((USER, f"{END}<think>"))
    (_, message) = await core.bodies(session)
    assert isinstance(message, Message)
    assert message.span.count(tokens_of(END)[0]) == 1
    assert tokens_of("<think>")[0] not in message.span


@pytest.mark.parametrize("role", [3, 4, 2**32 - 1])
async def test_message_of_a_role_other_than_0_1_2_is_refused(core: SessionCore, role: int) -> None:
    session = await core.sessions.create(None, PARAMS)
    with pytest.raises(SessionRefusedError, match=f"role {role} cannot be appended"):
        await core.sessions.append_message(session, role, "x")


async def test_message_needs_a_chat_template_and_raw_input_does_not(tmp_path_factory: pytest.TempPathFactory) -> None:
    core = SessionCore(tmp_path_factory.mktemp("p") / "s.db", text=text_with_template(None))
    session = await core.sessions.create(None, PARAMS)
    with pytest.raises(UnsupportedInputError, match="chat template"):
        await core.sessions.append_message(session, USER, "x")
    await core.sessions.append(session, "x", ())
    events = await core.replied(session, "yz")
    assert [event.event_id for event in events] == [3, 4, 5]
    await core.close()


async def test_requests_that_need_the_model_are_refused_while_it_loads(core: SessionCore) -> None:
    session = await core.chat()

    def loading() -> None:
        raise ModelLoadingError("still loading")

    core.sessions._text = loading  # type: ignore[assignment]
    for work in (
        lambda: core.sessions.append_message(session, USER, "x"),
        lambda: core.sessions.append(session, "x", ()),
        lambda: core.sessions.generate(session, 5),
        lambda: core.sessions.generate(session, 0),
    ):
        with pytest.raises(ModelLoadingError):
            await work()
    assert len(await core.sessions.read(session, 0)) == 2
    assert await core.sessions.fork(session, 2, None) == 2


# ---- AppendSystem

TOOL = '{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}'


async def test_system_turn_with_tools_is_one_message_that_keeps_them_as_tokens_only(core: SessionCore) -> None:
    session = await core.sessions.create(None, PARAMS)
    event = await core.sessions.append_system(session, "Be brief.", (TOOL,))
    assert isinstance(event.body, Message)
    assert (event.body.role, event.body.text) == (0, "Be brief.")
    shown = bytes(token for token in event.body.span if token < 256).decode()
    assert '"name": "f"' in shown
    assert "Be brief." in shown


async def test_system_turn_with_tools_alone_has_an_empty_text(core: SessionCore) -> None:
    session = await core.sessions.create(None, PARAMS)
    event = await core.sessions.append_system(session, None, (TOOL,))
    assert isinstance(event.body, Message)
    assert (event.body.role, event.body.text, bool(event.body.span)) == (0, "", True)


async def test_system_turn_without_text_and_tools_is_refused(core: SessionCore) -> None:
    session = await core.sessions.create(None, PARAMS)
    with pytest.raises(SessionRefusedError, match="needs text or tools"):
        await core.sessions.append_system(session, None, ())


async def test_first_bad_tool_is_named_before_the_session_is_looked_at(core: SessionCore) -> None:
    with pytest.raises(SessionRefusedError, match="tool 1 is not a function declaration"):
        await core.sessions.append_system(99, "x", (TOOL, "[]", "{"))


async def test_system_turn_must_come_before_any_tokens_inherited_ones_included(core: SessionCore) -> None:
    session = await core.chat()
    fork = await core.sessions.fork(session, 2, None)
    for target in (session, fork):
        with pytest.raises(SessionRefusedError, match="AppendSystem must come before any other turn"):
            await core.sessions.append_system(target, "x", ())


async def test_records_without_tokens_do_not_keep_a_system_turn_out(core: SessionCore) -> None:
    session = await core.sessions.create(None, PARAMS)
    opened = await core.log.open(session)
    await core.log.append(opened, [QosSet(1, False), EpochBump()])
    assert (await core.sessions.append_system(session, "x", ())).event_id == 3


# ---- SetMeta


async def test_metadata_counts_its_versions_and_none_leaves_a_field(core: SessionCore) -> None:
    session = await core.chat()
    assert await core.sessions.set_meta(session, 0, "rivers", None) == 1
    assert await core.sessions.set_meta(session, 1, None, True) == 2
    assert await core.sessions.set_meta(session, 2, None, None) == 3
    assert await core.sessions.set_meta(session, 3, "", False) == 4
    assert (await core.bodies(session))[2:] == [
        MetaUpdated(1, "rivers", None),
        MetaUpdated(2, None, True),
        MetaUpdated(3, None, None),
        MetaUpdated(4, "", False),
    ]
    row = (await core.sessions.inspect(session)).row
    assert (row.title, row.is_archived, row.meta_version) == ("", False, 4)


@pytest.mark.parametrize("version", [0, 2, 2**64 - 1])
async def test_metadata_of_another_version_is_a_conflict_that_changes_nothing(core: SessionCore, version: int) -> None:
    session = await core.chat()
    await core.sessions.set_meta(session, 0, "mine", None)
    with pytest.raises(SessionRefusedError, match=f"version 1, not {version}"):
        await core.sessions.set_meta(session, version, "yours", None)
    assert (await core.sessions.inspect(session)).row.title == "mine"


async def test_of_two_who_change_metadata_at_once_one_is_told(core: SessionCore) -> None:
    session = await core.chat()
    results = await asyncio.gather(
        *(core.sessions.set_meta(session, 0, title, None) for title in "ab"), return_exceptions=True
    )
    assert [result if isinstance(result, int) else type(result) for result in results] == [1, SessionRefusedError]


async def test_archived_session_is_hidden_and_works(core: SessionCore) -> None:
    session = await core.chat()
    await core.sessions.set_meta(session, 0, "t", True)
    assert await core.sessions.session_rows(include_archived=False) == []
    (row,) = await core.sessions.session_rows(include_archived=True)
    assert (row.title, row.is_archived, row.meta_version) == ("t", True, 1)
    assert await core.replied(session, "ok")
    await core.sessions.set_meta(session, 1, None, False)
    assert len(await core.sessions.session_rows(include_archived=False)) == 1


async def test_title_and_version_outlive_a_restart(core: SessionCore) -> None:
    session = await core.chat()
    await core.sessions.set_meta(session, 0, "née", True)
    await core.close()
    again = SessionCore(core.path)
    assert await again.sessions.set_meta(session, 1, None, None) == 2
    row = (await again.sessions.inspect(session)).row
    assert (row.title, row.is_archived) == ("née", True)
    await again.close()


# ---- SetQos, Pin


@pytest.mark.parametrize("qos_class", range(4))
async def test_class_is_used_from_the_next_generation_on(core: SessionCore, qos_class: int) -> None:
    session = await core.chat()
    turn = await core.sessions.generate(session, 10)
    event = await core.sessions.set_qos(session, qos_class, batch_invariant=True)
    assert event.body == QosSet(qos_class, True)
    assert core.backend.last.job.qos == 2
    turn.cancel()
    await rest_of(turn)
    await core.sessions.generate(session, 10)
    assert core.backend.last.job.qos == qos_class
    row = (await core.sessions.inspect(session)).row
    assert (row.qos_class, row.is_batch_invariant) == (qos_class, True)


@pytest.mark.parametrize("qos_class", [4, 255])
async def test_class_over_3_is_refused(core: SessionCore, qos_class: int) -> None:
    session = await core.chat()
    with pytest.raises(SessionRefusedError, match=f"no scheduling class {qos_class}"):
        await core.sessions.set_qos(session, qos_class, batch_invariant=False)
    assert await core.kinds(session) == ["Created", "Message"]


@pytest.mark.parametrize(
    ("ttl_ms", "deadline"), [(0, 0), (5, 1_700_000_000_005), (2**64 - 1, 2**64 - 1), (2**63, 1_700_000_000_000 + 2**63)]
)
async def test_pin_commits_a_deadline_that_does_not_overflow_and_none_for_0(
    core: SessionCore, ttl_ms: int, deadline: int
) -> None:
    session = await core.chat()
    assert await core.sessions.pin(session, ttl_ms) == deadline
    assert (await core.bodies(session))[-1] == Pinned(deadline)
    assert core.backend.pins == {session: deadline}


async def test_last_pin_counts_and_outlives_its_deadline_and_a_restart(core: SessionCore) -> None:
    session = await core.chat()
    await core.sessions.pin(session, 50)
    last = await core.sessions.pin(session, 5)
    core.clock.seconds += 60
    await core.close()
    again = SessionCore(core.path)
    assert (await again.sessions.inspect(session)).state.pin_deadline_unix_ms == last
    await again.close()


# ---- Fork


async def test_fork_shares_the_events_before_it_unchanged_and_costs_an_id(core: SessionCore) -> None:
    session = await core.chat()
    await core.replied(session, "yes")
    core.clock.seconds += 60
    fork = await core.sessions.fork(session, 3, None)
    parent, child = await core.sessions.read(session, 0), await core.sessions.read(fork, 0)
    assert child[:3] == parent[:3]
    assert (child[3].event_id, child[3].epoch, child[3].body) == (3, 1, Forked(session, 3, PARAMS))
    assert child[3].ts_unix_ms == parent[0].ts_unix_ms + 60_000
    assert (await core.sessions.append_message(fork, USER, "x")).event_id == 4


@pytest.mark.parametrize("at", [0, 3, 2**64 - 1])
async def test_fork_point_must_lie_in_the_log(core: SessionCore, at: int) -> None:
    session = await core.chat()
    with pytest.raises(SessionRefusedError, match="allows 1 to 2"):
        await core.sessions.fork(session, at, None)


async def test_fork_takes_other_params_if_given_and_the_parents_else(core: SessionCore) -> None:
    session = await core.chat()
    other = GenParams(0.5, 0.5, 0.5, 5, 5)
    changed = await core.sessions.fork(session, 2, other)
    kept = await core.sessions.fork(changed, 1, None)
    assert (await core.sessions.inspect(changed)).state.params == other
    assert (await core.sessions.inspect(kept)).state.params == other


async def test_fork_inherits_current_class_and_neither_title_pin_calls_nor_permissions(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    opened = await core.log.open(session)
    await core.log.append(opened, [PermissionRequest(call_id, "?"), QosSet(3, True)])
    length = opened.state.events
    early = await core.sessions.fork(session, 2, None)
    late = await core.sessions.fork(session, length, None)
    await core.close()
    again = SessionCore(core.path)
    for fork in (early, late):
        for source in (core, again):
            if source is core:
                continue
            state = (await source.log.open(fork)).state
            assert (state.qos_class, state.is_batch_invariant) == (3, True)
            assert (state.calls, state.open_permissions, state.title) == ({}, set(), None)
            assert (await source.sessions.inspect(fork)).row.qos_class == 3
    await again.close()


async def test_fork_of_a_busy_parent_takes_what_is_durable(core: SessionCore) -> None:
    session = await core.chat()
    turn = await core.sessions.generate(session, 100)
    job = core.backend.last
    job.start()
    await job.say("ab")
    await core.log.settled()
    length = len(await core.sessions.read(session, 0))
    fork = await core.sessions.fork(session, length, None)
    await job.say("c")
    await job.end_turn()
    await rest_of(turn)
    assert (await core.sessions.read(fork, 0))[:-1] == (await core.sessions.read(session, 0))[:length]
    state = (await core.log.open(fork)).state
    assert (state.is_reply_open, state.drawn_tokens) == (True, 2)


async def test_fork_in_the_middle_of_a_reply_continues_it_without_a_header(core: SessionCore) -> None:
    session = await core.chat()
    await core.replied(session, "yes")
    at = next(e.event_id for e in await core.sessions.read(session, 0) if isinstance(e.body, Generated)) + 1
    fork = await core.sessions.fork(session, at, None)
    await core.sessions.generate(fork, 10)
    assert core.backend.last.tokens[-1] == ord("y")
    assert core.backend.last.job.prompt_tokens == len(core.backend.last.tokens) - 1


async def test_forks_of_forks_read_and_go_on_after_a_restart(core: SessionCore) -> None:
    session = await core.chat()
    for number in range(5):
        length = len(await core.sessions.read(session, 0))
        session = await core.sessions.fork(session, length, None)
        await core.sessions.append_message(session, USER, str(number))
    before = await core.sessions.inspect(session)
    await core.close()
    again = SessionCore(core.path)
    after = await again.sessions.inspect(session)
    assert after.events[:-1] == before.events
    assert after.state.tokens == before.state.tokens
    assert await again.replied(session, "ok")
    await again.close()


# ---- the busy rule

REFUSED_WHILE_BUSY: dict[str, Callable[[SessionCore, int], Awaitable[object]]] = {
    "append": lambda core, session: core.sessions.append(session, "x", ()),
    "append_message": lambda core, session: core.sessions.append_message(session, 9, "x"),
    "append_system": lambda core, session: core.sessions.append_system(session, "x", ()),
    "append_tool_result": lambda core, session: core.sessions.append_tool_result(session, 99, "x"),
    "append_block": lambda core, session: core.sessions.append_block(session, 9, 9, ""),
    "request_permission": lambda core, session: core.sessions.request_permission(session, 99, "?"),
    "generate": lambda core, session: core.sessions.generate(session, 1),
}
ALLOWED_WHILE_BUSY: dict[str, Callable[[SessionCore, int], Awaitable[object]]] = {
    "read": lambda core, session: core.sessions.read(session, 0),
    "inspect": lambda core, session: core.sessions.inspect(session),
    "open_tool_calls": lambda core, session: core.sessions.open_tool_calls(session),
    "ledger": lambda core, session: core.sessions.ledger(session),
    "set_meta": lambda core, session: core.sessions.set_meta(session, 0, "t", None),
    "set_qos": lambda core, session: core.sessions.set_qos(session, 1, batch_invariant=False),
    "pin": lambda core, session: core.sessions.pin(session, 1),
    "fork": lambda core, session: core.sessions.fork(session, 2, None),
    "trim": lambda core, session: core.sessions.trim(session, 1),
    "generate nothing": lambda core, session: core.sessions.generate(session, 0),
    "subscribe": lambda core, session: core.sessions.subscribe(session, 0, wants_provisional=True),
    "cancel": lambda core, session: core.sessions.cancel(session),
}


@pytest.mark.parametrize("request_name", REFUSED_WHILE_BUSY)
async def test_busy_session_refuses(core: SessionCore, request_name: str) -> None:
    session = await core.chat()
    await core.sessions.generate(session, 10)
    with pytest.raises(SessionBusyError, match=" is generating;"):
        await REFUSED_WHILE_BUSY[request_name](core, session)


@pytest.mark.parametrize("request_name", ALLOWED_WHILE_BUSY)
async def test_busy_session_allows(core: SessionCore, request_name: str) -> None:
    session = await core.chat()
    await core.sessions.generate(session, 10)
    await ALLOWED_WHILE_BUSY[request_name](core, session)


async def test_settings_made_in_a_generation_stand_between_its_records_and_do_not_disturb_it(core: SessionCore) -> None:
    session = await core.chat()
    turn = await core.sessions.generate(session, 10)
    job = core.backend.last
    job.start()
    await job.say("a")
    await core.log.settled()
    await core.sessions.set_meta(session, 0, "t", None)
    await core.sessions.set_qos(session, 0, batch_invariant=False)
    await core.sessions.pin(session, 1)
    await job.say("b")
    await job.end_turn()
    await rest_of(turn)
    kinds = await core.kinds(session)
    first = kinds.index("Generated")
    assert kinds[first : first + 5] == ["Generated", "MetaUpdated", "QosSet", "Pinned", "Generated"]
    assert (await core.sessions.append_message(session, USER, "ok")).body == Message(
        1, "ok", tokens_of(f"\n<|im_start|>user\nok{END}\n")
    )


async def test_append_that_renders_while_a_generation_comes_goes_first(core: SessionCore) -> None:
    """Whoever was accepted first is first in the log; nobody renders for a place that has moved on."""
    session = await core.chat()
    appending = asyncio.ensure_future(core.sessions.append_message(session, USER, "second"))
    await asyncio.sleep(0)
    await core.sessions.generate(session, 10)
    await appending
    assert (await core.kinds(session))[:3] == ["Created", "Message", "Message"]
    assert core.backend.last.tokens[-len(tokens_of("<|im_start|>assistant\n")) :] == [
        *tokens_of("<|im_start|>assistant\n")
    ]


async def test_message_of_an_assistant_closes_its_turn_for_the_next_generation(core: SessionCore) -> None:
    session = await core.chat((USER, "hi"), (ASSISTANT, "ho"))
    await core.replied(session, "more")
    assert (await core.kinds(session))[3:5] == ["GenerationFingerprint", "GenerationPrompt"]


async def test_appending_by_id_makes_a_nameless_session_a_named_one(core: SessionCore) -> None:
    prepared = core.chats.prepare_text("x", tokens_of("x"), PARAMS)
    stored = core.chats.store(prepared)
    await stored.durable
    session = stored.session.id
    row = core.store.row(session)
    assert row is not None
    assert row.origin is Origin.HTTP
    await core.sessions.append(session, "y", ())
    row = core.store.row(session)
    assert row is not None
    assert row.origin is Origin.SESSION_API
