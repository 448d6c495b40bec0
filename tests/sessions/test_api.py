"""The rules of Generate, Cancel, Trim, Rebase, Subscribe and Inspect, one test each."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.fixtures.session_core import (
    END,
    PARAMS,
    SYSTEM,
    USER,
    SessionCore,
    failure_of,
    items_of,
    rest_of,
    session_core,
    spans,
    text_with_template,
    tokens_of,
)

from superfluid.domain.events import (
    Appended,
    Drop,
    EpochBump,
    Event,
    Forked,
    Generated,
    GenerationFingerprint,
    GenerationPrompt,
    GenParams,
    Message,
    PermissionRequest,
    PermissionResponse,
    PurgeMode,
    QosSet,
    Rebased,
    RebaseEdit,
    Replace,
    ToolOutcome,
    ToolResult,
    ToolUse,
)
from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass
from superfluid.domain.statistics import Warmth
from superfluid.errors import (
    ContextLengthExceededError,
    EngineFaultError,
    QueueFullError,
    SessionNotFoundError,
    SessionRefusedError,
    ShuttingDownError,
    WorkerFailedError,
)
from superfluid.sessions.session_api import ProvisionalText, Subscription, TurnEnded

OPENER = tokens_of("<|im_start|>assistant\n")
CALL = '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'


# ---- Generate: what refuses it, in order


async def test_open_permission_blocks_generating_until_it_is_answered(core: SessionCore) -> None:
    session = await core.sessions.create(None, PARAMS)
    opened = await core.log.open(session)
    await core.log.append(opened, [PermissionRequest(0, "?")])
    with pytest.raises(SessionRefusedError, match="permission"):
        await core.sessions.generate(session, 0)
    await core.log.append(opened, [PermissionResponse(1, False)])
    with pytest.raises(SessionRefusedError, match="no input"):
        await core.sessions.generate(session, 0)


async def test_session_without_tokens_cannot_generate(core: SessionCore) -> None:
    session = await core.sessions.create(None, PARAMS)
    with pytest.raises(SessionRefusedError, match="no input"):
        await core.sessions.generate(session, 5)


async def test_input_longer_than_the_window_is_refused_even_for_no_tokens(core: SessionCore) -> None:
    session = await core.sessions.create(None, PARAMS)
    await core.sessions.append(session, None, (1,) * 4097)
    for count in (0, 5):
        with pytest.raises(ContextLengthExceededError, match="4097 tokens"):
            await core.sessions.generate(session, count)


async def test_new_turn_that_has_no_room_in_the_window_is_refused(core: SessionCore) -> None:
    session = await core.chat((USER, "x" * 4080))
    with pytest.raises(ContextLengthExceededError):
        await core.sessions.generate(session, 5)
    assert await core.kinds(session) == ["Created", "Message"]


async def test_no_tokens_is_an_empty_summary_that_commits_nothing_busy_or_not(core: SessionCore) -> None:
    session = await core.chat()
    for _ in range(2):
        turn = await core.sessions.generate(session, 0)
        assert await items_of(turn) == [TurnEnded(0, Finish.NONE, 0)]
        turn.cancel()
        if core.backend.jobs:
            break
        await core.sessions.generate(session, 5)
    await core.log.settled()
    assert (await core.kinds(session)).count("Generated") == 0


async def test_open_tool_calls_do_not_block_generating(core: SessionCore) -> None:
    session = await core.chat()
    await core.replied(session, CALL)
    assert await core.replied(session, "ok")


@pytest.mark.parametrize("error", [QueueFullError("full"), WorkerFailedError("dead"), ShuttingDownError("bye")])
async def test_generation_that_the_backend_refuses_leaves_no_trace(core: SessionCore, error: QueueFullError) -> None:
    session = await core.chat()
    core.backend.refusal = error
    with pytest.raises(type(error)):
        await core.sessions.generate(session, 5)
    core.backend.refusal = None
    assert await core.kinds(session) == ["Created", "Message"]
    assert core.counter.running == 0
    assert (await core.sessions.append_message(session, USER, "x")).event_id == 2


async def test_draining_daemon_takes_no_generation(core: SessionCore) -> None:
    session = await core.chat()
    core.counter.is_draining = True
    with pytest.raises(ShuttingDownError):
        await core.sessions.generate(session, 5)
    assert not (await core.sessions.inspect(session)).is_generating


# ---- Generate: what it commits


async def test_first_generation_commits_fingerprint_header_and_reply_and_streams_the_reply_only(
    core: SessionCore,
) -> None:
    session = await core.chat()
    turn = await core.sessions.generate(session, 100)
    job = core.backend.last
    job.start(warm_tokens=4)
    await job.say("yes")
    await job.end_turn()
    events, ended = await rest_of(turn)
    log = await core.sessions.read(session, 0)
    assert [type(event.body).__name__ for event in log[2:4]] == ["GenerationFingerprint", "GenerationPrompt"]
    assert log[3].body == GenerationPrompt(OPENER)
    assert events == log[4:]
    assert events[0].event_id == 4
    assert [(e.body.text, e.body.finish) for e in events if isinstance(e.body, Generated)] == [
        ("y", 0), ("e", 0), ("s", 0), ("", 1)]  # fmt: skip
    assert ended == TurnEnded(tokens_generated=4, finish=Finish.END_OF_TURN, warm_prefix=4)


async def test_fingerprint_is_committed_only_when_it_differs_from_the_last(core: SessionCore) -> None:
    session = await core.chat()
    await core.replied(session, "yes")
    fork = await core.sessions.fork(session, len(await core.sessions.read(session, 0)), None)
    await core.sessions.append_message(fork, USER, "more")
    await core.replied(fork, "ok")
    assert (await core.kinds(fork)).count("GenerationFingerprint") == 1
    await core.close()
    async with session_core(core.path) as again:
        await again.sessions.append_message(session, USER, "more")
        await again.replied(session, "ok")
        assert (await again.kinds(session)).count("GenerationFingerprint") == 1
    template = "{%- for m in messages %}{{ '<|im_start|>' + m.role + ': ' + m.content + '<|im_end|>' }}{%- endfor %}"
    template += "{%- if add_generation_prompt %}{{ '<|im_start|>assistant: ' }}{%- endif %}"
    async with session_core(core.path, text=text_with_template(template)) as other:
        await other.sessions.append_message(session, USER, "more")
        await other.replied(session, "ok")
        assert (await other.kinds(session)).count("GenerationFingerprint") == 2


async def test_next_turn_opens_with_the_separator_in_its_header(core: SessionCore) -> None:
    session = await core.chat()
    await core.replied(session, "yes")
    await core.replied(session, "more")
    headers = [body for body in await core.bodies(session) if isinstance(body, GenerationPrompt)]
    assert headers == [GenerationPrompt(OPENER), GenerationPrompt((*tokens_of("\n"), *OPENER))]


@pytest.mark.parametrize("finish", [Finish.LENGTH, Finish.CANCELLED])
async def test_cut_turn_is_continued_in_place_and_reads_as_one_reply(core: SessionCore, finish: Finish) -> None:
    session = await core.chat()
    first = await core.cut(session, "<think>h", finish)
    before = len((await core.log.open(session)).state.tokens)
    rest = await core.replied(session, "m</think>ok")
    job = core.backend.last
    assert (len(job.tokens), job.job.prompt_tokens) == (before, before - len(tokens_of("<think>h")))
    assert spans([*first, *rest]) == list(tokens_of(f"<think>hm</think>ok{END}"))
    reasoning = [e.body.text for e in [*first, *rest] if isinstance(e.body, Generated) and e.body.channel == 1]
    assert "".join(reasoning) == "hm"
    assert (await core.kinds(session)).count("GenerationPrompt") == 1


async def test_call_cut_off_at_max_tokens_is_made_when_the_turn_goes_on(core: SessionCore) -> None:
    session = await core.chat()
    await core.cut(session, CALL[:20], Finish.LENGTH)
    await core.replied(session, CALL[20:])
    assert [body for body in await core.bodies(session) if isinstance(body, ToolUse)] == [ToolUse("f", '{"a":1}')]


async def test_call_id_is_the_event_id_of_the_call(core: SessionCore) -> None:
    session = await core.chat()
    events = await core.replied(session, CALL)
    (call,) = [event for event in events if isinstance(event.body, ToolUse)]
    assert [call_id for call_id, _ in await core.sessions.open_tool_calls(session)] == [call.event_id]


async def test_call_left_open_by_the_model_comes_behind_the_record_with_the_finish(core: SessionCore) -> None:
    session = await core.chat()
    events = await core.replied(session, CALL.removesuffix("</tool_call>"))
    assert isinstance(events[-2].body, Generated)
    assert events[-2].body.finish == Finish.END_OF_TURN
    assert isinstance(events[-1].body, ToolUse)


async def test_job_draws_with_the_sessions_params_and_class(core: SessionCore) -> None:
    session = await core.sessions.create(None, GenParams(0.5, 0.25, 0.125, 7, 2**64 - 1))
    await core.sessions.append(session, "x", ())
    opened = await core.log.open(session)
    await core.log.append(opened, [QosSet(3, False)])
    await core.sessions.generate(session, 9)
    job = core.backend.last.job
    sampling = job.sampling
    assert (sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k) == (0.5, 0.25, 0.125, 7)
    assert (sampling.seed, job.qos, job.max_tokens) == (2**64 - 1, QosClass.BACKGROUND, 9)


async def test_max_tokens_used_up_is_finish_2_on_the_last_record_and_in_the_summary(core: SessionCore) -> None:
    session = await core.chat()
    turn = await core.sessions.generate(session, 2)
    core.backend.last.start()
    core.backend.last.draw(ord("a"))
    await asyncio.sleep(0)
    core.backend.last.draw(ord("b"))
    core.backend.last.finish(Finish.LENGTH)
    events, ended = await rest_of(turn)
    assert ended == TurnEnded(2, Finish.LENGTH, 0)
    assert events[-1].body == Generated(tokens_of("b"), "b", 0, Finish.LENGTH)


async def test_reply_that_fills_the_window_ends_with_2_and_every_further_one_at_once(core: SessionCore) -> None:
    session = await core.sessions.create(None, PARAMS)
    await core.sessions.append(session, None, (ord("x"),) * 4095)
    turn = await core.sessions.generate(session, 50)
    assert core.backend.last.job.max_tokens == 1
    core.backend.last.draw(ord("a"))
    core.backend.last.finish(Finish.LENGTH)
    await rest_of(turn)
    turn = await core.sessions.generate(session, 50)
    assert core.backend.last.job.max_tokens == 0
    core.backend.last.finish(Finish.LENGTH)
    assert (await rest_of(turn))[1] == TurnEnded(0, Finish.LENGTH, 0)


async def test_engine_fault_is_an_error_with_a_record_of_finish_5(core: SessionCore) -> None:
    session = await core.chat()
    turn = await core.sessions.generate(session, 5)
    await core.backend.last.say("a")
    core.backend.last.sink.failed(EngineFaultError("broken"))
    events, error = await failure_of(turn)
    assert isinstance(error, EngineFaultError)
    log = await core.sessions.read(session, 0)
    assert log[-1].body == Generated((), "", 0, Finish.ERROR)
    assert events == log[4:]
    assert await core.replied(session, "b")


async def test_lost_worker_is_an_error_that_leaves_the_turn_open_with_all_that_was_drawn(core: SessionCore) -> None:
    session = await core.chat()
    turn = await core.sessions.generate(session, 5)
    core.backend.last.draw(ord("a"))
    core.backend.last.sink.failed(WorkerFailedError("dead"))
    events, error = await failure_of(turn)
    assert isinstance(error, WorkerFailedError)
    log = await core.sessions.read(session, 0)
    assert log[-1].body == Generated(tokens_of("a"), "a", 0, 0)
    assert events == log[-1:]
    assert spans(await core.replied(session, "b"))[0] == ord("b")
    assert core.backend.last.job.prompt_tokens == len(core.backend.last.tokens) - 1


async def test_summary_repeats_exactly_the_streamed_events_and_busy_ends_before_it(core: SessionCore) -> None:
    session = await core.chat()
    turn = await core.sessions.generate(session, 5)
    await core.backend.last.say("a")
    await core.backend.last.end_turn()
    async for batch in turn:
        if isinstance(batch[-1], TurnEnded):
            # The very next generation is never refused.
            await core.sessions.generate(session, 5)
    assert len(core.backend.jobs) == 2


async def test_other_records_may_come_between_those_of_a_reply_and_are_not_streamed(core: SessionCore) -> None:
    session = await core.chat()
    await core.replied(session, CALL)
    (call_id, _), = await core.sessions.open_tool_calls(session)  # fmt: skip
    turn = await core.sessions.generate(session, 5)
    await core.backend.last.say("a")
    opened = await core.log.open(session)
    await core.log.append(opened, [ToolOutcome(call_id, 1, "")])
    await core.backend.last.say("b")
    await core.backend.last.end_turn()
    events, _ = await rest_of(turn)
    ids = [event.event_id for event in events]
    assert ids[1] == ids[0] + 2
    assert all(isinstance(event.body, Generated) for event in events)
    assert [event.event_id for event in await core.sessions.read(session, 0)] == list(range(opened.state.events))


async def test_nothing_is_streamed_before_it_is_durable(core: SessionCore) -> None:
    session = await core.chat()
    turn = await core.sessions.generate(session, 5, wants_provisional=True)
    core.backend.last.draw(ord("a"))
    got: list[object] = []
    async for batch in turn:
        for item in batch:
            got.append(item)
            if isinstance(item, Event):
                # From a reader of its own: it is on the disk.
                assert core.store.events(session)[item.event_id].event_id == item.event_id
                if len(got) == 2:
                    await core.backend.last.end_turn()
    assert got[0] == ProvisionalText(0, "a")  # type: ignore[arg-type]


# ---- Cancel


async def test_cancel_ends_with_a_record_without_tokens_and_finish_4(core: SessionCore) -> None:
    session = await core.chat()
    turn = await core.sessions.generate(session, 50)
    core.backend.last.start()
    await core.backend.last.say("ab")
    await core.sessions.cancel(session)
    events, ended = await rest_of(turn)
    assert events[-1].body == Generated((), "", 0, Finish.CANCELLED)
    assert ended == TurnEnded(2, Finish.CANCELLED, 0)


async def test_cancel_of_an_idle_session_is_refused(core: SessionCore) -> None:
    session = await core.chat()
    with pytest.raises(SessionRefusedError, match="no generation in flight"):
        await core.sessions.cancel(session)
    await core.replied(session, "yes")
    with pytest.raises(SessionRefusedError, match="no generation in flight"):
        await core.sessions.cancel(session)


async def test_cancel_of_a_queued_generation_ends_it_with_0_tokens(core: SessionCore) -> None:
    session = await core.chat()
    turn = await core.sessions.generate(session, 50)
    await core.sessions.cancel(session)
    events, ended = await rest_of(turn)
    assert ended == TurnEnded(0, Finish.CANCELLED, 0)
    assert [event.body for event in events] == [Generated((), "", 0, Finish.CANCELLED)]
    assert await core.replied(session, "yes")
    assert (await core.kinds(session)).count("GenerationPrompt") == 1


async def test_cancel_does_not_wait_for_the_end(core: SessionCore) -> None:
    core.backend.ends_cancelled_at_once = False
    session = await core.chat()
    turn = await core.sessions.generate(session, 50)
    await core.sessions.cancel(session)
    await core.sessions.cancel(session)
    assert (await core.sessions.inspect(session)).is_generating
    # The tick that was in flight still counts.
    core.backend.last.draw(ord("a"))
    core.backend.last.finish(Finish.CANCELLED)
    events, ended = await rest_of(turn)
    assert ended == TurnEnded(1, Finish.CANCELLED, 0)
    assert [event.body for event in events] == [
        Generated(tokens_of("a"), "a", 0, 0),
        Generated((), "", 0, Finish.CANCELLED),
    ]


async def test_cancel_while_the_generation_finishes_changes_nothing_and_does_not_carry_over(core: SessionCore) -> None:
    session = await core.chat()
    turn = await core.sessions.generate(session, 50)
    await core.backend.last.say("a")
    await core.backend.last.end_turn()
    await core.sessions.cancel(session)
    assert (await rest_of(turn))[1] == TurnEnded(2, Finish.END_OF_TURN, 0)
    turn.cancel()
    second = await core.sessions.generate(session, 50)
    turn.cancel()
    await core.backend.last.say("b")
    await core.backend.last.end_turn()
    assert (await rest_of(second))[1] == TurnEnded(2, Finish.END_OF_TURN, 0)


# ---- Inspect


async def test_inspection_of_a_busy_session_shows_what_is_durable(core: SessionCore) -> None:
    session = await core.chat()
    turn = await core.sessions.generate(session, 50)
    core.backend.last.draw(ord("a"))
    await asyncio.sleep(0)
    inspected = await core.sessions.inspect(session)
    await core.log.settled()
    later = await core.sessions.inspect(session)
    for one in (inspected, later):
        assert (one.row.events, one.row.tokens) == (len(one.events), len(one.state.tokens))
        assert spans(one.events) == one.state.tokens.tolist()
        assert one.is_generating
    assert len(later.events) >= len(inspected.events)
    turn.cancel()
    await rest_of(turn)
    assert not (await core.sessions.inspect(session)).is_generating


async def test_warmth_is_the_backends_and_what_is_on_the_disk_is_the_inspections_tier(core: SessionCore) -> None:
    session = await core.chat((USER, "hi"))
    assert await core.sessions.warmth(session) == Warmth()
    core.backend.warm[session] = Warmth(lane=9, memory=5, disk=3)
    assert await core.sessions.warmth(session) == Warmth(lane=9, memory=5, disk=3)
    assert (await core.sessions.inspect(session)).parked_tokens == 3


async def test_warmth_of_a_session_that_is_not_there_is_refused(core: SessionCore) -> None:
    session = await core.chat()
    await core.sessions.purge(session, 0, PurgeMode.CASCADE)
    for absent in (session, 99):
        with pytest.raises(SessionNotFoundError):
            await core.sessions.warmth(absent)


async def test_inspection_does_not_change_when_the_session_goes_on(core: SessionCore) -> None:
    session = await core.chat()
    inspected = await core.sessions.inspect(session)
    await core.sessions.append_message(session, USER, "more")
    assert (len(inspected.events), inspected.state.events) == (2, 2)
    assert inspected.store_id == core.store.store_id


# ---- Trim and Rebase


async def test_trim_to_the_whole_length_is_a_fork(core: SessionCore) -> None:
    session = await core.chat()
    trimmed = await core.sessions.trim(session, 2)
    assert (await core.bodies(trimmed))[-1] == Forked(session, 2, PARAMS)


async def test_trim_is_a_rebase_that_drops_the_rest(core: SessionCore) -> None:
    session = await core.chat((USER, "a"), (USER, "b"))
    trimmed = await core.sessions.trim(session, 2)
    assert (await core.bodies(trimmed))[2:] == [Rebased(session, 2, PARAMS, (Drop(2, 3),))]
    assert (await core.sessions.read(trimmed, 0))[:2] == (await core.sessions.read(session, 0))[:2]


@pytest.mark.parametrize("to", [0, 3, 2**64 - 1])
async def test_trim_point_must_lie_in_the_log(core: SessionCore, to: int) -> None:
    with pytest.raises(SessionRefusedError):
        await core.sessions.trim(await core.chat(), to)


async def test_trim_of_a_session_that_grows_meanwhile_takes_nothing_of_what_came_later(core: SessionCore) -> None:
    session = await core.chat((USER, "a"), (USER, "b"))
    await core.sessions.generate(session, 50)
    trimming = asyncio.ensure_future(core.sessions.trim(session, 2))
    for _ in range(30):
        core.backend.last.draw(ord("x"))
        await asyncio.sleep(0.001)
    assert await core.kinds(await trimming) == ["Created", "Message", "Rebased"]


@pytest.mark.parametrize(
    "edits",
    [
        [],
        [Drop(0, 1)],
        [Drop(2, 2)],
        [Drop(3, 2)],
        [Drop(1, 9)],
        [Drop(1, 3), Drop(2, 4)],
        [Drop(2, 3), Drop(1, 2)],
        [Replace(1, 2, 3, "tool")],
        [Drop(1, 2**64 - 1)],
    ],
)
async def test_edits_out_of_bounds_or_order_are_refused_and_leave_no_child(
    core: SessionCore, edits: list[Drop | Replace]
) -> None:
    session = await core.chat((USER, "a"), (USER, "b"), (USER, "c"))
    with pytest.raises(SessionRefusedError):
        await core.sessions.rebase(session, edits, None)
    assert [row.id for row in await core.sessions.session_rows(include_archived=True)] == [session]


async def test_rebase_commits_the_rest_again_under_new_ids_at_epoch_1_and_now(core: SessionCore) -> None:
    session = await core.chat((USER, "a"), (USER, "b"))
    await core.replied(session, "yes")
    core.clock.seconds += 60
    edits: list[RebaseEdit] = [Replace(1, 2, 1, "A"), Drop(2, 3)]
    other = GenParams(0.5, 1.0, 0.0, 0, 9)
    child = await core.sessions.rebase(session, edits, other)
    parent, events = await core.sessions.read(session, 0), await core.sessions.read(child, 0)
    assert events[0] == parent[0]
    assert events[1].body == Rebased(session, 1, other, tuple(edits))
    assert events[2].body == Message(1, "A", tokens_of(f"<|im_start|>user\nA{END}\n"))
    assert [event.event_id for event in events] == list(range(len(events)))
    assert {(event.epoch, event.ts_unix_ms) for event in events[1:]} == {(1, parent[0].ts_unix_ms + 60_000)}
    copied = [event.body for event in parent[3:] if not isinstance(event.body, GenerationFingerprint)]
    assert [event.body for event in events[3:]] == copied
    assert (await core.sessions.inspect(child)).row.fork_at == 1


async def test_rebase_renders_a_replaced_message_where_it_stands(core: SessionCore) -> None:
    session = await core.chat()
    await core.replied(session, "yes")
    await core.sessions.append_message(session, USER, "more")
    length = len(await core.sessions.read(session, 0))
    child = await core.sessions.rebase(session, [Replace(length - 1, length, USER, "less")], None)
    assert (await core.bodies(child))[-1] == Message(1, "less", tokens_of(f"\n<|im_start|>user\nless{END}\n"))


async def test_rebase_without_a_chat_template_takes_the_text_as_it_is(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with session_core(tmp_path_factory.mktemp("r") / "s.db", text=text_with_template(None)) as core:
        session = await core.sessions.create(None, PARAMS)
        await core.sessions.append(session, "abc", ())
        child = await core.sessions.rebase(session, [Replace(1, 2, USER, "xyz")], None)
        assert (await core.bodies(child))[-1] == Message(1, "xyz", tokens_of("xyz"))


async def test_rebased_session_reads_and_goes_on_after_a_restart(core: SessionCore) -> None:
    session = await core.chat((SYSTEM, "s"), (USER, "a"))
    await core.replied(session, CALL)
    (call_id, _), = await core.sessions.open_tool_calls(session)  # fmt: skip
    await core.sessions.append_tool_result(session, call_id, "42")
    child = await core.sessions.rebase(session, [Replace(2, 3, USER, "b")], None)
    before = await core.sessions.inspect(child)
    assert before.state.open_calls == []
    assert [body for body in await core.bodies(child) if isinstance(body, ToolResult)]
    await core.close()
    async with session_core(core.path) as again:
        after = await again.sessions.inspect(child)
        assert after.events[:-1] == before.events
        assert isinstance(after.events[-1].body, EpochBump)
        assert await again.replied(child, "ok")


async def test_child_inherits_class_of_its_parent_and_a_fresh_ledger(core: SessionCore) -> None:
    session = await core.chat()
    await core.replied(session, CALL)
    opened = await core.log.open(session)
    await core.log.append(opened, [QosSet(3, True)])
    child = await core.sessions.rebase(session, [Drop(1, 2)], None)
    state = (await core.sessions.inspect(child)).state
    assert (state.qos_class, state.is_batch_invariant) == (3, True)
    assert len(state.open_calls) == 1, "the copied call is open again, under its new id"


# ---- Subscribe


async def collect(subscription: Subscription, count: int) -> list[Event | ProvisionalText]:
    items: list[Event | ProvisionalText] = []
    async with asyncio.timeout(30):
        async for batch in subscription:
            items += batch
            if len(items) >= count:
                break
    return items


def ids(items: Sequence[Event | ProvisionalText]) -> list[int]:
    return [item.event_id for item in items if isinstance(item, Event)]


async def test_subscription_gets_backlog_then_live_events_once_each(core: SessionCore) -> None:
    session = await core.chat()
    turn = await core.sessions.generate(session, 500)
    for _ in range(20):
        core.backend.last.draw(ord("x"))
        await asyncio.sleep(0.001)
    subscribing = asyncio.ensure_future(core.sessions.subscribe(session, 0, wants_provisional=False))
    for _ in range(20):
        core.backend.last.draw(ord("y"))
        await asyncio.sleep(0.001)
    subscription = await subscribing
    await core.backend.last.end_turn()
    await rest_of(turn)
    length = len(await core.sessions.read(session, 0))
    assert ids(await collect(subscription, length)) == list(range(length))


async def test_subscription_ids_are_counted_for_the_whole_daemon_from_1(core: SessionCore) -> None:
    first, second = await core.chat(), await core.chat()
    numbers = [
        (await core.sessions.subscribe(session, 0, wants_provisional=False)).sub_id for session in (first, second)
    ]
    assert numbers == [1, 2]


async def test_cursor_beyond_the_end_suppresses_live_events_until_it_is_reached(core: SessionCore) -> None:
    session = await core.chat()
    subscription = await core.sessions.subscribe(session, 4, wants_provisional=False)
    for text in ("a", "b", "c", "d"):
        await core.sessions.append_message(session, USER, text)
    assert ids(await collect(subscription, 2)) == [4, 5]


async def test_provisional_text_comes_before_its_record_and_only_if_asked_for(core: SessionCore) -> None:
    session = await core.chat()
    asked = await core.sessions.subscribe(session, 2, wants_provisional=True)
    unasked = await core.sessions.subscribe(session, 2, wants_provisional=False)
    await core.replied(session, "<think>h</think>a" + CALL)
    length = len(await core.sessions.read(session, 0))
    items = await collect(asked, length - 2 + 2)
    assert all(isinstance(item, Event) for item in await collect(unasked, length - 2))
    assert [item for item in items if isinstance(item, ProvisionalText)] == [
        ProvisionalText(1, "h"),  # type: ignore[arg-type]
        ProvisionalText(0, "a"),  # type: ignore[arg-type]
    ]
    shown = items.index(ProvisionalText(0, "a"))  # type: ignore[arg-type]
    recorded = next(i for i, e in enumerate(items) if isinstance(e, Event) and getattr(e.body, "text", "") == "a")
    assert shown < recorded


async def test_fingerprint_and_header_reach_subscribers(core: SessionCore) -> None:
    session = await core.chat()
    subscription = await core.sessions.subscribe(session, 2, wants_provisional=False)
    await core.replied(session, "a")
    kinds = [type(item.body).__name__ for item in await collect(subscription, 4) if isinstance(item, Event)]
    assert kinds == ["GenerationFingerprint", "GenerationPrompt", "Generated", "Generated"]


async def test_subscriber_of_an_http_session_sees_provisional_text_too(core: SessionCore) -> None:
    stored = core.chats.store(core.chats.prepare_text("x", tokens_of("x"), PARAMS))
    await stored.durable
    subscription = await core.sessions.subscribe(stored.session.id, 3, wants_provisional=True)
    recorder = core.chats.recorder(stored, parse_tools=True, on_failed=lambda error: None)
    recorder.feed(tokens_of("y"))
    items = await collect(subscription, 2)
    assert items[0] == ProvisionalText(0, "y")  # type: ignore[arg-type]


async def test_appended_tokens_are_continued_in_place(core: SessionCore) -> None:
    session = await core.chat()
    await core.cut(session, "a")
    await core.sessions.append(session, None, tokens_of("<think>"))
    events = await core.replied(session, "h</think>b")
    assert next((e.body.channel, e.body.text) for e in events if isinstance(e.body, Generated)) == (1, "h")
    assert (await core.bodies(session)).count(Appended(None, tokens_of("<think>"))) == 1
    assert (await core.kinds(session)).count("GenerationPrompt") == 1


async def test_metrics_and_log_level_are_passed_on(core: SessionCore) -> None:
    assert await core.sessions.metrics_text() == "metrics"
    await core.sessions.set_log_level("debug")
    assert core.levels == ["debug"]
