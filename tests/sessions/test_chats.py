"""Conversations over HTTP as stored sessions: what a later request shares with an earlier one, and when it does not."""

import asyncio
from pathlib import Path

import apsw
import pytest
from tests.fixtures.faulty_disk import FaultyDisk
from tests.fixtures.session_core import END, SessionCore, session_core, spans, text_with_template, tokens_of

from superfluid.domain.events import Appended, Created, Forked, Generated, GenerationPrompt, Message
from superfluid.domain.reply import Finish, ReplyEvent, ReplyFinished, TextDelta
from superfluid.domain.request import ChatPrompt, GenerationRequest, Role, SamplingOverrides, TextPrompt, TokenPrompt
from superfluid.domain.request import Message as ChatMessage
from superfluid.errors import (
    EngineFaultError,
    QueueFullError,
    StoreUnavailableError,
    SuperfluidError,
    WorkerFailedError,
)
from superfluid.sessions.interface import Reply

Talk = tuple[tuple[Role, str], ...]
HELLO: Talk = (("user", "hello"),)


def request(*messages: tuple[Role, str], **fields: object) -> GenerationRequest:
    prompt = ChatPrompt(messages=tuple(ChatMessage(role=role, content=text) for role, text in messages))
    return GenerationRequest(prompt=prompt, sampling=SamplingOverrides(temperature=0.0, seed=1), **fields)  # type: ignore[arg-type]


async def finished(reply: Reply) -> tuple[str, ReplyFinished]:
    events: list[ReplyEvent] = []
    async with asyncio.timeout(30):
        async for batch in reply:
            events += batch
    last = events[-1]
    assert isinstance(last, ReplyFinished)
    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.channel == 0), last


async def ask(core: SessionCore, *messages: tuple[Role, str], says: str = "yes", **fields: object) -> int:
    """Sends a conversation and lets the model say something; the session it was stored as."""
    core.backend.answer = lambda _: says
    reply = await core.service.start(request(*messages, **fields))
    await finished(reply)
    return max(row.id for row in core.store.rows())


def turn(*pairs: tuple[str, str]) -> tuple[int, ...]:
    return tokens_of("".join(f"<|im_start|>{role}\n{text}{END}\n" for role, text in pairs))


async def test_conversation_is_stored_message_by_message_with_its_reply(core: SessionCore) -> None:
    session = await ask(core, ("system", "s"), ("user", "hello"))
    bodies = await core.bodies(session)
    assert isinstance(bodies[0], Created)
    assert bodies[1:3] == [Message(0, "s", turn(("system", "s"))), Message(1, "hello", turn(("user", "hello")))]
    assert bodies[4] == GenerationPrompt(tokens_of("<|im_start|>assistant\n"))
    assert [type(body).__name__ for body in bodies[5:]] == ["Generated"] * 4
    assert bodies[-1] == Generated(tokens_of(END), "", 0, Finish.END_OF_TURN)


@pytest.mark.parametrize("has_store", [True, False])
async def test_reply_that_was_begun_goes_on_behind_its_beginning(core: SessionCore, has_store: bool) -> None:
    prompt = ChatPrompt(messages=(ChatMessage(role="user", content="hello"),), prefill="I say")
    core.backend.answer = lambda _: " yes"
    if not has_store:
        core.service.attach_text(core.text)
    text, last = await finished(await core.service.start(GenerationRequest(prompt=prompt)))
    sent = tokens_of(f"<|im_start|>user\nhello{END}\n<|im_start|>assistant\nI say")
    assert core.backend.last.tokens == list(sent)
    assert (text, last.prompt_tokens) == (" yes", len(sent))
    assert await core.service.count_tokens(prompt) == len(sent)


async def test_reply_that_was_begun_is_found_again_as_one_text(core: SessionCore) -> None:
    prompt = ChatPrompt(messages=(ChatMessage(role="user", content="hello"),), prefill="I say")
    core.backend.answer = lambda _: " yes"
    await finished(await core.service.start(GenerationRequest(prompt=prompt)))
    first = max(row.id for row in core.store.rows())
    second = await ask(core, *HELLO, ("assistant", "I say yes"), ("user", "more"))
    row = core.store.row(second)
    assert row is not None
    assert row.base == first


async def test_second_turn_is_a_fork_that_goes_on_from_the_replys_exact_tokens(core: SessionCore) -> None:
    """The reply is sent back as text, reasoning dropped; what it was made of stays on the input, by reference."""
    first = await ask(core, *HELLO, says="<think>hm</think>yes")
    length = len(await core.sessions.read(first, 0))
    second = await ask(core, *HELLO, ("assistant", "yes"), ("user", "more"))
    assert second != first
    bodies = await core.bodies(second)
    parent = await core.sessions.read(first, 0)
    assert (await core.sessions.read(second, 0))[:length] == parent
    assert isinstance(bodies[length], Forked)
    assert bodies[length + 1] == Message(1, "more", (*tokens_of("\n"), *turn(("user", "more"))))
    sent = tokens_of(f"<|im_start|>user\nhello{END}\n<|im_start|>assistant\n<think>hm</think>yes{END}\n")
    assert core.backend.last.tokens == [*sent, *turn(("user", "more")), *tokens_of("<|im_start|>assistant\n")]
    row = core.store.row(second)
    assert row is not None
    assert (row.base, row.fork_at) == (first, length)
    own = [event for event in core.store.events(second) if event.event_id >= length]
    assert len(own) < length, "the first turn is not stored again"


async def test_conversation_of_many_turns_costs_its_length_once(core: SessionCore) -> None:
    talk: list[tuple[Role, str]] = [("user", "0")]
    for number in range(1, 12):
        await ask(core, *talk, says=f"r{number}")
        talk += [("assistant", f"r{number}"), ("user", str(number))]
    rows = core.store.rows()
    assert [row.base for row in rows] == [None, *[row.id for row in rows[:-1]]]
    own = [row.events - row.fork_at for row in rows]
    assert max(own[1:]) <= own[0] + 1
    assert max(row.tokens for row in rows) == len(core.backend.last.tokens) + len(tokens_of(f"r11{END}"))


async def test_conversation_goes_on_after_a_restart(core: SessionCore) -> None:
    first = await ask(core, *HELLO)
    await core.close()
    async with session_core(core.path) as again:
        second = await ask(again, *HELLO, ("assistant", "yes"), ("user", "more"))
        row = again.store.row(second)
        assert row is not None
        assert row.base == first


async def test_branch_shares_the_turns_before_it(core: SessionCore) -> None:
    first = await ask(core, *HELLO)
    await ask(core, *HELLO, ("assistant", "yes"), ("user", "a"))
    branch = await ask(core, *HELLO, ("assistant", "yes"), ("user", "b"))
    row = core.store.row(branch)
    assert row is not None
    assert row.base == first
    assert "a" not in [getattr(body, "text", None) for body in await core.bodies(branch)]


async def test_same_conversation_again_is_another_reply_behind_the_same_messages(core: SessionCore) -> None:
    first = await ask(core, *HELLO)
    again = await ask(core, *HELLO, says="no")
    bodies = await core.bodies(again)
    assert isinstance(bodies[2], Forked)
    assert bodies[1] == (await core.bodies(first))[1]
    assert core.backend.last.tokens == [*turn(*HELLO), *tokens_of("<|im_start|>assistant\n")]
    both = [await ask(core, *HELLO, ("assistant", said), ("user", "?")) for said in ("yes", "no")]
    assert [core.store.row(session).base for session in both] == [first, again]  # type: ignore[union-attr]


async def test_reply_that_was_edited_by_the_client_is_rendered_anew(core: SessionCore) -> None:
    await ask(core, *HELLO)
    session = await ask(core, *HELLO, ("assistant", "edited"), ("user", "more"))
    texts = [body.text for body in await core.bodies(session) if isinstance(body, Message | Generated) and body.text]
    assert texts[:3] == ["hello", "edited", "more"]


@pytest.mark.parametrize(
    ("says", "fields"), [("yes", {"max_tokens": 3}), ("yes", {"stop": ("s",)}), ("y" * 9, {"stop": ("yyyy",)})]
)
async def test_reply_cut_at_its_length_or_a_stop_string_is_not_gone_on_from(
    core: SessionCore, says: str, fields: dict[str, object]
) -> None:
    """What the client has differs from what the model would go on from."""
    core.backend.answer = lambda _: says
    text, _ = await finished(await core.service.start(request(*HELLO, **fields)))
    session = await ask(core, *HELLO, ("assistant", text), ("user", "more"))
    assert core.backend.last.tokens == [
        *turn(*HELLO, ("assistant", text), ("user", "more")),
        *tokens_of("<|im_start|>assistant\n"),
    ]
    assert not [body for body in (await core.bodies(session))[:-4] if isinstance(body, Generated)]


async def test_stop_string_is_a_cut_turn_in_the_log_and_an_end_to_the_client(core: SessionCore) -> None:
    core.backend.answer = lambda _: "yes"
    _, end = await finished(await core.service.start(request(*HELLO, stop=("e",))))
    assert (end.finish, end.stopped_by) == (Finish.END_OF_TURN, "e")
    bodies = await core.bodies(1)
    assert bodies[-1] == Generated((), "", 0, Finish.CANCELLED)
    assert spans(await core.sessions.read(1, 0))[-1] == ord("e")


async def test_tokens_behind_a_stop_string_in_the_same_tick_are_neither_recorded_nor_counted(core: SessionCore) -> None:
    """They were guessed ahead, and rightly; but the reply had ended before them."""
    reply = await core.service.start(request(*HELLO, stop=("e",)))
    job = core.backend.last
    job.start()
    job.sink.guessed(6, 4)
    job.draw(*b"yes!!")
    text, end = await finished(reply)
    assert (text, end.completion_tokens, end.guessed_tokens, end.right_guesses) == ("y", 2, 6, 1)
    assert spans(await core.sessions.read(1, 0))[-2:] == [ord("y"), ord("e")]


async def test_other_tools_or_template_arguments_are_another_conversation(core: SessionCore) -> None:
    await ask(core, *HELLO)
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    prompt = ChatPrompt(messages=(ChatMessage(role="user", content="hello"),), tools=(tool,))
    await finished(await core.service.start(GenerationRequest(prompt=prompt)))
    assert [row.base for row in core.store.rows()] == [None, None]


async def test_template_that_is_not_append_stable_stores_whole_conversations(tmp_path: Path) -> None:
    template = "{{ messages | length }}{%- for m in messages %}{{ '<|im_start|>' + m.role + ': ' + m.content }}"
    template += (
        "{{ '<|im_end|>' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant: ' }}{%- endif %}"
    )
    text = text_with_template(template)
    assert not text.codec.is_append_stable
    async with session_core(tmp_path / "s.db", text=text) as core:
        await ask(core, *HELLO)
        session = await ask(core, *HELLO, ("assistant", "yes"), ("user", "more"))
        row = core.store.row(session)
        assert row is not None
        assert (row.base, row.fork_at) == (None, 0)
        shown = spans(await core.sessions.read(session, 0))
        assert bytes(token for token in shown if token < 256).decode().startswith("3")


async def test_text_and_token_prompts_are_stored_as_they_are(core: SessionCore) -> None:
    core.backend.answer = lambda _: "b"
    await finished(await core.service.start(GenerationRequest(prompt=TextPrompt(text="a"))))
    await finished(await core.service.start(GenerationRequest(prompt=TokenPrompt(tokens=(97,)))))
    assert (await core.bodies(1))[1] == Appended("a", (97,))
    assert (await core.bodies(2))[1] == Appended(None, (97,))
    assert [row.base for row in core.store.rows()] == [None, None]


async def test_damaged_or_dropped_beginning_is_stored_anew(core: SessionCore) -> None:
    first = await ask(core, *HELLO)
    await core.close()
    raw = apsw.Connection(str(core.path))
    raw.execute("UPDATE event SET body = x'ff' WHERE session = ? AND id = 1", (first,))
    raw.close()
    async with session_core(core.path) as again:
        session = await ask(again, *HELLO, ("assistant", "yes"), ("user", "more"))
        row = again.store.row(session)
        assert row is not None
        assert row.base is None


async def test_beginning_that_is_dropped_while_the_request_is_prepared_is_stored_anew(core: SessionCore) -> None:
    """Two turns of the loop lie between finding the parent and forking it."""
    first = await ask(core, *HELLO)
    for yields in range(12):
        starting = asyncio.ensure_future(ask(core, *HELLO, ("assistant", "yes"), ("user", str(yields))))
        for _ in range(yields):
            await asyncio.sleep(0)
        await core.log.forget([row.id for row in core.store.rows() if not core.log.is_in_use(row.id)])
        session = await starting
        assert (await core.sessions.inspect(session)).state.tokens, first
        for row in core.store.rows():
            assert core.store.events(row.id)[0].event_id == 0


@pytest.mark.parametrize("error", [QueueFullError("full"), WorkerFailedError("dead")])
async def test_request_that_the_backend_refuses_is_not_stored(core: SessionCore, error: SuperfluidError) -> None:
    core.backend.refusal = error
    with pytest.raises(type(error)):
        await core.service.start(request(*HELLO))
    assert core.store.rows() == []
    assert core.counter.running == 0


async def test_request_whose_prompt_the_store_refuses_fails_with_its_reason(tmp_path: Path) -> None:
    disk = FaultyDisk("chats-prompt")
    async with session_core(tmp_path / "s.db", vfs=disk.name) as core:
        with disk.break_with(apsw.FullError):
            reply = await core.service.start(request(*HELLO))
            with pytest.raises(StoreUnavailableError):
                await finished(reply)
        assert core.backend.last.is_cancelled
        assert core.counter.running == 0
        assert await ask(core, *HELLO)
    disk.close()


async def test_end_of_a_reply_is_told_when_all_of_it_is_durable(core: SessionCore) -> None:
    core.backend.answer = lambda _: "yes"
    reply = await core.service.start(request(*HELLO))
    async for batch in reply:
        if isinstance(batch[-1], ReplyFinished):
            (row,) = core.store.rows()
            assert (await core.bodies(row.id))[-1] == Generated(tokens_of(END), "", 0, Finish.END_OF_TURN)
            assert not core.log.is_in_use(row.id)


async def test_cancelled_reply_is_recorded_once_even_if_the_backend_ends_it_within_the_call(core: SessionCore) -> None:
    reply = await core.service.start(request(*HELLO))
    core.backend.last.start()
    await core.backend.last.say("y")
    reply.cancel()
    reply.cancel()
    _, end = await finished(reply)
    assert end.finish is Finish.CANCELLED
    bodies = await core.bodies(1)
    assert bodies[-2:] == [Generated(tokens_of("y"), "y", 0, 0), Generated((), "", 0, Finish.CANCELLED)]


async def test_running_request_can_be_cancelled_by_its_sessions_id(core: SessionCore) -> None:
    reply = await core.service.start(request(*HELLO))
    await core.log.settled()
    await core.sessions.cancel(1)
    assert (await finished(reply))[1].finish is Finish.CANCELLED


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (EngineFaultError("broken"), Generated((), "", 0, Finish.ERROR)),
        (WorkerFailedError("dead"), Generated(tokens_of("y"), "y", 0, 0)),
    ],
)
async def test_failed_reply_keeps_what_was_drawn(core: SessionCore, error: SuperfluidError, last: Generated) -> None:
    reply = await core.service.start(request(*HELLO))
    core.backend.last.draw(ord("y"))
    core.backend.last.sink.failed(error)
    with pytest.raises(type(error)):
        await finished(reply)
    assert (await core.bodies(1))[-1] == last
    assert core.counter.running == 0


async def test_sessions_of_requests_can_be_gone_on_from_by_their_id(core: SessionCore) -> None:
    session = await ask(core, *HELLO)
    core.backend.answer = None
    await core.sessions.append_message(session, 1, "more")
    assert await core.replied(session, "ok")
