"""Many clients at once on the same sessions, in interleavings drawn by a seed: nothing acknowledged is lost, nobody
hangs, and nobody is refused with a reason that is not true."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest
from tests.fixtures.faulty_disk import FaultyDisk
from tests.fixtures.images import picture
from tests.fixtures.inner_worker import InnerLink
from tests.fixtures.jitter import Jitter, JitteredExecutor, jitter_commits
from tests.fixtures.session_core import (
    CALL,
    PARAMS,
    USER,
    DrivenBackend,
    DrivenJob,
    SessionCore,
    SettableClock,
    tokens_of,
)

from superfluid.config import SessionsConfig
from superfluid.domain.events import Drop, Event, PurgeMode, Replace
from superfluid.domain.job import Job
from superfluid.domain.media import MediaFacts
from superfluid.domain.reply import Finish
from superfluid.domain.request import ChatPrompt, GenerationRequest, Message
from superfluid.domain.state import SessionState
from superfluid.errors import (
    EngineFaultError,
    QueueFullError,
    SessionBusyError,
    SessionNotFoundError,
    SessionRefusedError,
    StoreUnavailableError,
    UnsupportedInputError,
    WorkerFailedError,
)
from superfluid.kvfiles.erasing import erase_files
from superfluid.kvfiles.names import parse_name
from superfluid.sessions import log as session_log
from superfluid.sessions.backend import JobSink
from superfluid.sessions.erasing import StateEraser
from superfluid.sessions.fanout import SessionSubscription
from superfluid.sessions.retention import RetentionSweeper
from superfluid.worker import supervisor as supervisor_module
from superfluid.worker.settings import EngineSettings, KvFileSettings
from superfluid.worker.supervisor import WorkerSupervisor

# More seeds find more: a hundred take a minute.
SEEDS = range(4)
CLIENTS = 7
REQUESTS = 45
DEADLINE_SECONDS = 60.0
UNKNOWN = 999_999
REFUSALS = (SessionBusyError, SessionNotFoundError, SessionRefusedError, QueueFullError, UnsupportedInputError)
FAULTS = (EngineFaultError, WorkerFailedError)
SAYINGS = ("a", "hello there", f"x{CALL}", "<think>hm</think>so")


class UnsteadyBackend(DrivenBackend):
    """Says something in its own time; refuses, fails and is slow to cancel now and then."""

    def __init__(self, jitter: Jitter) -> None:
        super().__init__()
        self.media = MediaFacts(encoder="tiny", fingerprint="0" * 16, placeholder_token=256)
        self._jitter = jitter
        self._running: dict[int, DrivenJob] = {}

    def submit(self, job: Job, sink: JobSink) -> None:
        if self._jitter.random.random() < 0.05:
            sink.failed(QueueFullError("full"))
            return
        driven = self._running[job.job_id] = DrivenJob(job, sink)
        task = asyncio.ensure_future(self._answer(driven))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, job_id: int) -> None:
        driven = self._running.get(job_id)
        if driven is None:
            return
        driven.is_cancelled = True
        if self._jitter.random.random() < 0.3:
            self._end(driven, lambda: driven.finish(Finish.CANCELLED))

    async def forget(self, sessions: Sequence[int]) -> None:
        await self._jitter.pause()
        assert not any(job.job.session in sessions for job in self._running.values() if not job.is_cancelled)
        self.forgotten += sessions

    async def _answer(self, driven: DrivenJob) -> None:
        draw = self._jitter.random
        await self._jitter.pause()
        if self._is_over(driven):
            return
        driven.start()
        for count, token in enumerate(tokens_of(draw.choice(SAYINGS)), 1):
            await self._jitter.pause()
            if self._is_over(driven):
                return
            if draw.random() < 0.01:
                error = draw.choice(FAULTS)("failed")
                self._end(driven, lambda: driven.sink.failed(error))  # noqa: B023  (called at once)
                return
            driven.draw(token)
            if count == driven.job.max_tokens:
                self._end(driven, lambda: driven.finish(Finish.LENGTH))
                return
        self._end(driven, lambda: driven.sink.finished(Finish.END_OF_TURN))

    def _is_over(self, driven: DrivenJob) -> bool:
        if driven.is_cancelled:
            self._end(driven, lambda: driven.finish(Finish.CANCELLED))
        return driven.job.job_id not in self._running

    def _end(self, driven: DrivenJob, tell: Callable[[], None]) -> None:
        if self._running.pop(driven.job.job_id, None) is not None:
            tell()


@dataclass
class Books:
    """What clients were told."""

    acknowledged: defaultdict[int, dict[int, Event]] = field(default_factory=lambda: defaultdict(dict))
    purged: set[int] = field(default_factory=set)
    not_found: set[int] = field(default_factory=set)
    may_be_dropped: set[int] = field(default_factory=set)
    has_failed_purge: bool = False

    def note(self, session: int, event: Event) -> None:
        known = self.acknowledged[session].setdefault(event.event_id, event)
        assert known == event, "an event is what it was"


class Clients:
    def __init__(self, core: SessionCore, jitter: Jitter, disk: FaultyDisk | None) -> None:
        self.core = core
        self.books = Books()
        self._jitter = jitter
        self._draw = jitter.random
        self._disk = disk
        self._known: list[int] = []
        self._requests: list[Callable[[], Awaitable[None]]] = [
            self._create, self._append, self._append, self._append, self._generate, self._generate, self._generate,
            self._fork, self._fork, self._trim, self._rebase, self._purge, self._set, self._subscribe, self._read,
            self._inspect, self._chat, self._chat, self._chat, self._sweep, self._cancel, self._answer_call,
            self._show, self._show, self._collect,
        ]  # fmt: skip

    async def run(self) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._client())

    async def _client(self) -> None:
        for _ in range(REQUESTS):
            await self._jitter.pause()
            request = self._draw.choice(self._requests)
            try:
                await request()
            except FAULTS:
                continue
            except REFUSALS:
                continue
            except StoreUnavailableError:
                assert self._disk is not None, "the disk is sound"

    def _session(self) -> int:
        """Young ones rather than old ones, so that much happens to a few."""
        return self._draw.choice(self._known[-6:]) if self._known else UNKNOWN

    async def _on(self, session: int, work: Awaitable[object]) -> object:
        try:
            return await work
        except SessionNotFoundError:
            self.books.not_found.add(session)
            raise

    def _made(self, session: object) -> None:
        assert isinstance(session, int)
        self._known.append(session)
        self.books.acknowledged[session]

    async def _create(self) -> None:
        parent = self._session() if self._known and self._draw.random() < 0.3 else None
        self._made(await self._on(parent or UNKNOWN, self.core.sessions.create(parent, PARAMS)))

    async def _append(self) -> None:
        session = self._session()
        event = await self._on(session, self.core.sessions.append_message(session, USER, "hi"))
        assert isinstance(event, Event)
        self.books.note(session, event)

    async def _generate(self) -> None:
        session = self._session()
        turn = await self._on(session, self.core.sessions.generate(session, self._draw.randrange(1, 40)))
        gives_up_after = self._draw.randrange(30)
        seen = 0
        async for batch in turn:  # type: ignore[attr-defined]
            for item in batch:
                if isinstance(item, Event):
                    self.books.note(session, item)
            seen += 1
            if seen == gives_up_after:
                turn.cancel()  # type: ignore[attr-defined]

    async def _fork(self) -> None:
        session = self._session()
        length = len(await self.core.sessions.read(session, 0))
        at = self._draw.randrange(1, length + 1)
        self._made(await self._on(session, self.core.sessions.fork(session, at, None)))

    async def _trim(self) -> None:
        session = self._session()
        self._made(await self._on(session, self.core.sessions.trim(session, 2)))

    async def _rebase(self) -> None:
        session = self._session()
        edit = Drop(1, 2) if self._draw.random() < 0.5 else Replace(1, 2, USER, "other")
        self._made(await self._on(session, self.core.sessions.rebase(session, [edit], None)))

    async def _purge(self) -> None:
        session = self._session()
        mode = self._draw.choice(list(PurgeMode))
        try:
            gone = await self._on(session, self.core.sessions.purge(session, 0, mode))
        except (StoreUnavailableError, SessionBusyError):
            self.books.has_failed_purge = True
            raise
        assert isinstance(gone, list)
        self.books.purged.update(gone)

    async def _set(self) -> None:
        session = self._session()
        match self._draw.randrange(3):
            case 0:
                version = (await self.core.sessions.inspect(session)).row.meta_version
                await self.core.sessions.set_meta(session, version, "title", None)
            case 1:
                await self.core.sessions.pin(session, 1000)
            case _:
                self.books.note(session, await self.core.sessions.set_qos(session, 1, batch_invariant=False))

    async def _subscribe(self) -> None:
        session = self._session()
        subscription = await self.core.sessions.subscribe(session, 0, wants_provisional=True)
        left = self._draw.randrange(1, 60)
        reading = asyncio.ensure_future(self._follow(session, subscription))
        for _ in range(left):
            await self._jitter.pause()
        subscription.close()
        await reading

    async def _follow(self, session: int, subscription: SessionSubscription) -> None:
        following = 0
        async for batch in subscription:
            for item in batch:
                if isinstance(item, Event):
                    assert item.event_id == following, "nothing twice and nothing missed"
                    following += 1
                    self.books.note(session, item)
        if subscription.end_reason == "publisher closed":
            assert self._disk is not None or session in self.books.may_be_dropped

    async def _read(self) -> None:
        session = self._session()
        for event in await self.core.sessions.read(session, 0):
            self.books.note(session, event)

    async def _inspect(self) -> None:
        session = self._session()
        inspected = await self.core.sessions.inspect(session)
        for event in inspected.events:
            self.books.note(session, event)
        folded = SessionState(session, fork_at=inspected.state.fork_at)
        folded.apply_all(inspected.events)
        assert folded.tokens == inspected.state.tokens

    async def _chat(self) -> None:
        messages = [Message(role="user", content="hello")]
        for _ in range(self._draw.randrange(1, 4)):
            reply = await self.core.service.start(GenerationRequest(prompt=ChatPrompt(messages=tuple(messages))))
            facts = self.core.counter.facts(reply.reply_id)
            if facts is not None and facts.session is not None:
                self.books.may_be_dropped.add(facts.session)
                self._known.append(facts.session)
            text = ""
            gives_up_after = self._draw.randrange(60)
            async for batch in reply:
                text += "".join(getattr(event, "text", "") for event in batch)
                gives_up_after -= 1
                if not gives_up_after:
                    reply.cancel()
            messages += [Message(role="assistant", content=text), Message(role="user", content="on")]

    async def _sweep(self) -> None:
        self.core.clock.seconds += 60
        config = SessionsConfig(http_ttl_seconds=30)
        forget = self.core.backend.forget
        await RetentionSweeper(self.core.log, config, clock=self.core.clock, forget_states=forget).sweep()

    async def _show(self) -> None:
        session = self._session()
        blob = await self.core.sessions.put_media(picture(self._draw.randrange(3), width=2, height=2))
        assert self.core.pool.get(blob) is not None
        await self._jitter.pause()
        event = await self._on(session, self.core.sessions.append_image(session, USER, blob, "", ""))
        assert isinstance(event, Event)
        self.books.note(session, event)

    async def _collect(self) -> None:
        await self.core.sessions.gc_media()

    async def _cancel(self) -> None:
        await self.core.sessions.cancel(self._session())

    async def _answer_call(self) -> None:
        session = self._session()
        for call_id, _ in await self.core.sessions.open_tool_calls(session):
            self.books.note(session, await self.core.sessions.append_tool_result(session, call_id, "42"))


async def check(core: SessionCore, books: Books) -> None:
    """Everybody is gone."""
    await core.log.settled()
    assert core.counter.running == 0
    assert (core.log._opening, core.log._forgetting, core.log._purging) == ({}, set(), {})
    rows = {row.id: row for row in core.store.rows()}
    for session, events in books.acknowledged.items():
        if session in books.purged:
            with pytest.raises(SessionNotFoundError, match=r"purged|unknown"):
                await core.sessions.read(session, 0)
            continue
        if session not in rows:
            row = core.store.row(session)
            is_purged = books.has_failed_purge and row is not None and row.is_purged
            assert is_purged or session in books.may_be_dropped, f"session {session} is lost"
            continue
        log = await core.sessions.read(session, 0)
        assert [event.event_id for event in log] == list(range(len(log)))
        for event_id, event in events.items():
            assert log[event_id] == event
    for session in rows:
        inspected = await core.sessions.inspect(session)
        assert (inspected.row.events, inspected.is_generating) == (len(inspected.events), False)
        assert all(core.pool.get(run.blob) is not None for run in inspected.state.images)
        opened = await core.log.open(session)
        assert (opened.watchers, opened.waiting, opened.lock.locked()) == ([], 0, False)
    for session in books.not_found - books.purged - books.may_be_dropped - {UNKNOWN}:
        assert session not in rows or books.has_failed_purge, f"session {session} was there"


async def interleave(
    path: Path,
    jitter: Jitter,
    monkeypatch: pytest.MonkeyPatch,
    *,
    disk: FaultyDisk | None = None,
    backend: WorkerSupervisor | None = None,
) -> Books:
    core = SessionCore(
        path,
        vfs=None if disk is None else disk.name,
        # Nothing here drives it.
        backend=backend or UnsteadyBackend(jitter),  # type: ignore[arg-type]
        make_executor=lambda: JitteredExecutor(jitter),
        drain_seconds=20.0,
    )
    # Nothing here looks at what a power cut leaves.
    core.store._writer._connection.execute("PRAGMA synchronous = OFF")
    jitter_commits(core.store, jitter, monkeypatch)

    async def in_a_thread(work: Callable[[], object]) -> object:
        # Of many: one of its own for each.
        return await asyncio.get_running_loop().run_in_executor(JitteredExecutor(jitter), work)

    monkeypatch.setattr(core.sessions.media, "_in_thread", in_a_thread)
    core.purger.add_eraser(core.sessions.media)
    core.purger.add_eraser(StateEraser(core.backend))
    clients = Clients(core, jitter, disk)
    failing = None if disk is None else asyncio.ensure_future(break_now_and_then(disk, jitter))
    await clients.run()
    if disk is not None and failing is not None:
        failing.cancel()
        await asyncio.wait((failing,))
        disk.failure = None
        await core.purger.finish()
    assert core.store.erasing() == []
    await check(core, clients.books)
    await core.close()
    again = SessionCore(path)
    await check(again, clients.books)
    await again.close()
    return clients.books


async def break_now_and_then(disk: FaultyDisk, jitter: Jitter) -> None:
    while True:
        for _ in range(jitter.random.randrange(20)):
            await jitter.pause()
        with disk.break_with(jitter.random.choice((apsw.FullError, apsw.IOError)), after=jitter.random.randrange(4)):
            await jitter.pause()


@pytest.mark.parametrize("seed", SEEDS)
async def test_clients_at_once_lose_nothing_and_do_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(session_log, "_MAX_OPEN_SESSIONS", 4)
    await interleave(tmp_path / "s.db", Jitter(seed), monkeypatch)


@pytest.mark.parametrize("seed", SEEDS)
async def test_clients_at_once_on_a_disk_that_fails_lose_nothing_and_do_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(session_log, "_MAX_OPEN_SESSIONS", 4)
    disk = FaultyDisk(f"interleavings-{seed}")
    await interleave(tmp_path / "s.db", Jitter(seed), monkeypatch, disk=disk)
    disk.close()


@pytest.mark.parametrize("seed", SEEDS[:2])
async def test_clients_at_once_on_workers_that_die_lose_nothing_and_do_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(session_log, "_MAX_OPEN_SESSIONS", 4)
    monkeypatch.setattr(supervisor_module, "erase_from_disk", erase_at_once)
    jitter = Jitter(seed)
    directory = tmp_path / "kv"
    directory.mkdir()
    settings = EngineSettings(
        engine="fake",
        model="",
        lanes=3,
        window_tokens=4096,
        max_queue=20,
        host_cache_bytes=100_000,
        kv_files=KvFileSettings(directory=str(directory), park_bytes=None, request_bytes=None),
    )
    supervisor = WorkerSupervisor(settings, environment={}, clock=SettableClock())
    link = InnerLink(supervisor._on_message, settings, jitter)
    supervisor._link = link  # type: ignore[assignment]
    supervisor.adapters._send = link.send
    await supervisor.start()
    try:
        books = await interleave(tmp_path / "s.db", jitter, monkeypatch, backend=supervisor)
    finally:
        await supervisor.stop()
    assert link.deaths > 1
    assert len(supervisor._jobs) == 0
    owners = {name.owner for path in directory.iterdir() if (name := parse_name(path.name)) is not None}
    assert owners & books.purged == set()


async def erase_at_once(directory: Path, sessions: Sequence[int]) -> None:
    erase_files(directory, sessions)
