"""A disk that fails, under all that the session API does: what was acknowledged stays, the rest never happened."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest
from tests.fixtures.faulty_disk import FaultyDisk
from tests.fixtures.session_core import PARAMS, USER, SessionCore, failure_of, session_core, tokens_of

from superfluid.domain.events import Drop, EpochBump, Event, Generated, Replace, ToolUse
from superfluid.domain.reply import Finish, ReplyFinished
from superfluid.domain.request import ChatPrompt, GenerationRequest, Message
from superfluid.domain.state import SessionState
from superfluid.errors import SessionRefusedError, StoreUnavailableError, SuperfluidError
from superfluid.sessions.session_api import TurnEnded

CALL = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
# Set it to 1 to try every single write (20 s).
STRIDE = 6
FAILURES = (apsw.FullError, apsw.IOError)


@dataclass
class Client:
    """Asks for things one after the other, and remembers everything it was told."""

    core: SessionCore
    acknowledged: dict[int, dict[int, Event]] = field(default_factory=dict)
    failures: list[SuperfluidError] = field(default_factory=list)
    has_reply: bool = False

    async def ask(self, work: Callable[[], Awaitable[object]]) -> object:
        """The reply, or ``None`` if it was refused."""
        try:
            return await asyncio.wait_for(work(), 10)
        except SuperfluidError as error:
            self.failures.append(error)
            return None

    async def create(self, work: Callable[[], Awaitable[int]]) -> int | None:
        session = await self.ask(work)
        assert session is None or isinstance(session, int)
        if session is not None:
            self.acknowledged[session] = {}
        return session

    async def append(self, session: int, work: Callable[[], Awaitable[Event]]) -> None:
        event = await self.ask(work)
        if isinstance(event, Event):
            self.acknowledged[session][event.event_id] = event

    async def generate(self, session: int, text: str) -> None:
        """A reply, or its typed end."""
        turn = await self.ask(lambda: self.core.sessions.generate(session, 1000))
        if turn is None:
            return
        job = self.core.backend.last
        job.start()

        async def run() -> None:
            for token in tokens_of(text):
                job.draw(token)
                await asyncio.sleep(0.0005)
            if not job.is_cancelled:
                await job.end_turn()

        running = asyncio.ensure_future(run())
        items, error = await failure_of(turn)  # type: ignore[arg-type]
        await running
        for item in items:
            if isinstance(item, Event):
                self.acknowledged[session][item.event_id] = item
        if error is None:
            assert isinstance(items[-1], TurnEnded)
        else:
            self.failures.append(error)
            assert isinstance(error, StoreUnavailableError)

    async def chat(self) -> None:
        self.core.backend.answer = lambda _: "yes"
        request = GenerationRequest(prompt=ChatPrompt(messages=(Message(role="user", content="hi"),)))

        async def run() -> None:
            async for batch in await self.core.service.start(request):
                self.has_reply = isinstance(batch[-1], ReplyFinished)

        await self.ask(run)
        self.core.backend.answer = None

    async def run_everything(self) -> None:
        sessions = self.core.sessions
        session = await self.create(lambda: sessions.create(None, PARAMS))
        if session is not None:
            await self.append(session, lambda: sessions.append_system(session, "s", ()))
            await self.append(session, lambda: sessions.append_message(session, USER, "hello"))
            await self.generate(session, "ab" + CALL)
            for call_id, _ in await self.ask(lambda: sessions.open_tool_calls(session)) or []:  # type: ignore[attr-defined]
                await self.append(session, lambda: sessions.append_tool_result(session, call_id, "42"))  # noqa: B023
            await self.append(session, lambda: sessions.append(session, "raw", ()))
            await self.create(lambda: sessions.fork(session, 2, None))
            await self.create(lambda: sessions.rebase(session, [Replace(1, 2, USER, "x"), Drop(2, 3)], None))
            await self.create(lambda: sessions.trim(session, 1))
        await self.chat()

    async def verify(self) -> None:
        """Everything acknowledged is there, every log is whole, and every session goes on."""
        for row in await self.core.sessions.session_rows(include_archived=True):
            self.acknowledged.setdefault(row.id, {})
        for session, events in self.acknowledged.items():
            log = await self.core.sessions.read(session, 0)
            assert [event.event_id for event in log] == list(range(len(log)))
            for event_id, event in events.items():
                assert log[event_id] == event
            SessionState(session, fork_at=0).apply_all(log)
            inspected = await self.core.sessions.inspect(session)
            assert (inspected.row.events, inspected.is_generating) == (len(log), False)
            await self.core.sessions.append_message(session, USER, "go on")
            assert await self.core.replied(session, "ok")
        assert self.core.counter.running == 0


async def count_writes(tmp_path: Path) -> int:
    disk = FaultyDisk("counting")
    async with session_core(tmp_path / "count.db", vfs=disk.name) as core:
        with disk.break_with(apsw.FullError, after=1_000_000):
            client = Client(core)
            await client.run_everything()
            assert client.failures == []
            assert client.has_reply
            writes = 1_000_000 - disk.writes_left
    disk.close()
    return writes


@pytest.mark.parametrize(("failure", "first"), [(apsw.FullError, 0), (apsw.IOError, 3)])
async def test_disk_that_fails_from_any_write_on_loses_nothing_acknowledged_and_serving_resumes(
    tmp_path: Path, failure: type[apsw.Error], first: int
) -> None:
    writes = await count_writes(tmp_path)
    assert writes > 40
    for after in range(first, writes, STRIDE):
        disk = FaultyDisk(f"faulty-{failure.__name__}-{after}")
        async with session_core(tmp_path / f"{after}.db", vfs=disk.name) as core:
            client = Client(core)
            with disk.break_with(failure, after=after):
                await client.run_everything()
            # Besides the disk, only a call that was never made can be in the way. (That the last writes happen at all
            # depends on how records meet in commits.)
            assert all(isinstance(e, StoreUnavailableError | SessionRefusedError) for e in client.failures)
            assert client.failures or after > writes // 2
            await client.verify()
        # What the next daemon finds is the same.
        async with session_core(tmp_path / f"{after}.db") as again:
            client.core = again
            await client.verify()
        disk.close()


@pytest.mark.parametrize("failure", FAILURES)
async def test_disk_that_fails_for_a_single_write_fails_one_commit_only(
    tmp_path: Path, failure: type[apsw.Error]
) -> None:
    disk = FaultyDisk(f"once-{failure.__name__}")
    async with session_core(tmp_path / "s.db", vfs=disk.name) as core:
        sessions = [await core.chat() for _ in range(4)]
        with disk.break_with(failure):
            results = await asyncio.gather(
                *(core.sessions.append_message(session, USER, "x") for session in sessions), return_exceptions=True
            )
        assert {type(result) for result in results} == {StoreUnavailableError}
        for session in sessions:
            assert (await core.sessions.append_message(session, USER, "x")).event_id == 2
    disk.close()


async def test_full_disk_ends_running_generations_with_the_reason_and_keeps_what_was_shown(tmp_path: Path) -> None:
    disk = FaultyDisk("running")
    async with session_core(tmp_path / "s.db", vfs=disk.name) as core:
        sessions = [await core.chat() for _ in range(3)]
        turns = [await core.sessions.generate(session, 50) for session in sessions]
        for job in core.backend.jobs:
            await job.say("ab")
        await core.log.settled()
        with disk.break_with(apsw.FullError):
            for job in core.backend.jobs:
                job.draw(ord("c"))
            ends = [await failure_of(turn) for turn in turns]
        for session, (items, error) in zip(sessions, ends, strict=True):
            assert isinstance(error, StoreUnavailableError)
            assert "could not be written" in error.message
            shown = [item for item in items if isinstance(item, Event)]
            log = await core.sessions.read(session, 0)
            assert log[-len(shown) :] == shown
            assert [event.body.text for event in shown if isinstance(event.body, Generated)] == ["a", "b"]
        assert all(job.is_cancelled for job in core.backend.jobs)
        # The cut replies are gone on with.
        for session in sessions:
            assert (await core.replied(session, "c"))[0].body == Generated(tokens_of("c"), "c", 0, 0)
            assert (await core.kinds(session)).count("GenerationPrompt") == 1
    disk.close()


async def test_header_that_is_not_stored_ends_the_generation_before_its_first_token(tmp_path: Path) -> None:
    disk = FaultyDisk("header")
    async with session_core(tmp_path / "s.db", vfs=disk.name) as core:
        session = await core.chat()
        with disk.break_with(apsw.FullError):
            turn = await core.sessions.generate(session, 50)
            _, error = await failure_of(turn)
        assert isinstance(error, StoreUnavailableError)
        assert core.backend.last.is_cancelled
        assert await core.replied(session, "yes")
    disk.close()


async def test_end_that_is_not_stored_is_an_error_and_the_reply_is_gone_on_with(tmp_path: Path) -> None:
    disk = FaultyDisk("end")
    async with session_core(tmp_path / "s.db", vfs=disk.name) as core:
        session = await core.chat()
        turn = await core.sessions.generate(session, 50)
        await core.backend.last.say("a")
        await core.log.settled()
        with disk.break_with(apsw.IOError):
            core.backend.last.draw(ord("b"))
            core.backend.last.finish(Finish.LENGTH)
            items, error = await failure_of(turn)
        assert isinstance(error, StoreUnavailableError)
        assert not any(isinstance(item, TurnEnded) for item in items)
        assert (await core.replied(session, "b"))[0].body == Generated(tokens_of("b"), "b", 0, 0)
    disk.close()


async def test_disk_that_cannot_be_read_refuses_the_request_and_serving_resumes(tmp_path: Path) -> None:
    disk = FaultyDisk("unreadable")
    async with session_core(tmp_path / "s.db") as core:
        sessions = [await core.chat((USER, "x" * 5000)) for _ in range(40)]
    async with session_core(tmp_path / "s.db", vfs=disk.name) as again:
        with disk.break_with(apsw.IOError, is_reading_too=True):
            reads = [again.sessions.read(session, 0) for session in sessions]
            results = await asyncio.gather(*reads, return_exceptions=True)
            assert {type(result) for result in results} == {StoreUnavailableError}
        for session in sessions:
            log = await again.sessions.read(session, 0)
            assert [type(event.body) for event in log].count(EpochBump) == 1
    disk.close()


async def test_damaged_record_stops_its_session_and_its_forks_only(core: SessionCore) -> None:
    damaged, sound = await core.chat(), await core.chat()
    await core.replied(damaged, CALL)
    fork = await core.sessions.fork(damaged, 3, None)
    early = await core.sessions.fork(damaged, 1, None)
    at = [type(body) for body in await core.bodies(damaged)].index(ToolUse)
    await core.close()
    raw = apsw.Connection(str(core.path))
    raw.execute("UPDATE event SET body = zeroblob(length(body)) WHERE session = ? AND id IN (2, ?)", (damaged, at))
    raw.close()
    async with session_core(core.path) as again:
        requests: list[Callable[[int], Awaitable[object]]] = [
            lambda session: again.sessions.read(session, 0),
            lambda session: again.sessions.inspect(session),
            lambda session: again.sessions.append_message(session, USER, "x"),
            lambda session: again.sessions.generate(session, 5),
            lambda session: again.sessions.fork(session, 1, None),
            lambda session: again.sessions.subscribe(session, 0, wants_provisional=False),
        ]
        for request in requests:
            with pytest.raises(SuperfluidError, match=f"session {damaged}: the stored record of event 2 is damaged"):
                await request(damaged)
        with pytest.raises(SuperfluidError, match=f"session {fork}.*inherited from session {damaged}"):
            await again.sessions.read(fork, 0)
        rows = await again.sessions.session_rows(include_archived=True)
        assert [row.id for row in rows] == [damaged, sound, fork, early]
        for session in (sound, early):
            await again.sessions.append_message(session, USER, "x")
            assert await again.replied(session, "ok")
