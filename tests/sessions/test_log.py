"""The way into the store: epochs, what is published when, what a refused write leaves, which sessions stay open."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest
from tests.fixtures.faulty_disk import FaultyDisk
from tests.fixtures.held_commits import HeldCommits
from tests.fixtures.session_core import PARAMS, USER, SessionCore, failure_of, session_core, tokens_of

from superfluid.domain.events import Created, EpochBump, Event, Forked, Message, MetaUpdated, Purged, PurgeMode, QosSet
from superfluid.domain.reply import Channel
from superfluid.domain.state import SessionState
from superfluid.errors import DamagedRecordError, SessionNotFoundError, StoreUnavailableError, WorkerFailedError
from superfluid.native.schema import CodecError
from superfluid.sessions import log as session_log
from superfluid.sessions.open_session import EndReason, OpenSession
from superfluid.store.interface import Origin


class Watcher:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.reason: EndReason | None = None

    def committed(self, events: Sequence[Event]) -> None:
        self.events += events

    def provisional(self, channel: Channel, text: str) -> None: ...

    def ended(self, reason: EndReason) -> None:
        self.reason = reason


# ---- epochs and restarts


async def test_epoch_rises_once_a_start_with_the_first_request_that_shows_the_session(core: SessionCore) -> None:
    session = await core.chat()
    untouched = await core.chat()
    await core.close()
    async with session_core(core.path) as again:
        events = await again.sessions.read(session, 0)
        assert (events[-1].body, events[-1].event_id, events[-1].epoch) == (EpochBump(), 2, 2)
        await asyncio.gather(*(again.sessions.read(session, 0) for _ in range(5)))
        assert len(await again.sessions.read(session, 0)) == 3
        later = await again.sessions.append_message(session, USER, "x")
        assert (later.event_id, later.epoch) == (3, 2)
    async with session_core(core.path) as third:
        assert (await third.sessions.inspect(session)).row.epoch == 3
        assert [event.epoch for event in await third.sessions.read(session, 0)] == [1, 1, 2, 2, 3]
        assert [event.epoch for event in await third.sessions.read(untouched, 0)] == [1, 1, 2]


async def test_requests_at_once_on_a_session_that_is_not_open_raise_its_epoch_once(core: SessionCore) -> None:
    session = await core.chat()
    await core.close()
    async with session_core(core.path) as again:
        logs = await asyncio.gather(*(again.sessions.read(session, 0) for _ in range(8)))
        assert [len(log) for log in logs] == [3] * 8


async def test_listings_raise_no_epoch(core: SessionCore) -> None:
    session = await core.chat()
    await core.close()
    async with session_core(core.path) as again:
        (row,) = await again.sessions.session_rows(include_archived=True)
        assert (row.id, row.events, row.epoch) == (session, 2, 1)
        assert again.store.statistics().commits_total == 0


async def test_inherited_events_keep_their_epochs_and_the_childs_own_begin_at_1(core: SessionCore) -> None:
    session = await core.chat()
    await core.close()
    async with session_core(core.path) as again:
        await again.sessions.read(session, 0)
        fork = await again.sessions.fork(session, 3, None)
        await again.sessions.append_message(fork, USER, "x")
        assert [event.epoch for event in await again.sessions.read(fork, 0)] == [1, 1, 2, 1, 1]
    async with session_core(core.path) as third:
        assert [event.epoch for event in await third.sessions.read(fork, 0)] == [1, 1, 2, 1, 1, 2]


async def test_session_reads_back_as_it_was_when_it_was_let_go_of(
    core: SessionCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_log, "_MAX_OPEN_SESSIONS", 2)
    sessions = [await core.chat((USER, str(number))) for number in range(6)]
    before = [(await core.sessions.inspect(session)).state for session in sessions]
    assert core.log.open_sessions <= 2
    after = [(await core.sessions.inspect(session)).state for session in sessions]
    assert after == before
    assert [state.events for state in after] == [2] * 6, "no epoch is raised twice in a start"


async def test_sessions_in_use_stay_open_whatever_the_limit(core: SessionCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_log, "_MAX_OPEN_TOKENS", 1)
    busy, watched = await core.chat(), await core.chat()
    await core.sessions.generate(busy, 5)
    await core.sessions.subscribe(watched, 0, wants_provisional=False)
    for _ in range(3):
        await core.chat()
    assert core.log.open_sessions == 3
    assert core.log.is_in_use(busy)
    assert core.log.is_in_use(watched)


async def test_session_somebody_holds_is_found_again_and_not_read_twice(
    core: SessionCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two objects for one session would number their events alike."""
    monkeypatch.setattr(session_log, "_MAX_OPEN_SESSIONS", 1)
    session = await core.chat()
    held = await core.log.open(session)
    for _ in range(3):
        await core.chat()
    assert await core.log.open(session) is held


async def test_caller_that_goes_away_does_not_fail_others_who_wait_for_the_session(core: SessionCore) -> None:
    session = await core.chat()
    await core.close()
    async with session_core(core.path) as again:
        first = asyncio.ensure_future(again.log.open(session))
        second = asyncio.ensure_future(again.log.open(session))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).state.events == 3


async def test_purged_session_is_unknown_in_other_words(core: SessionCore) -> None:
    session = await core.chat()
    await core.log.append(await core.log.open(session), [Purged(1, PurgeMode.CASCADE)])
    with pytest.raises(SessionNotFoundError, match="was purged"):
        await core.sessions.read(session, 0)
    with pytest.raises(SessionNotFoundError, match="was purged"):
        await core.sessions.create(session, PARAMS)
    assert await core.sessions.session_rows(include_archived=True) == []
    await core.close()
    async with session_core(core.path) as again:
        with pytest.raises(SessionNotFoundError, match="was purged"):
            await again.sessions.read(session, 0)


async def test_standing_settings_survive_a_restart(core: SessionCore) -> None:
    session = await core.chat()
    opened = await core.log.open(session)
    await core.log.append(opened, [QosSet(3, True), MetaUpdated(1, "title", True)])
    assert await core.sessions.session_rows(include_archived=False) == []
    await core.close()
    async with session_core(core.path) as again:
        state = (await again.sessions.inspect(session)).state
        assert (state.qos_class, state.is_batch_invariant, state.title, state.is_archived) == (3, True, "title", True)


# ---- publishing


async def test_event_is_published_when_it_is_durable_and_numbered_when_it_is_appended(core: SessionCore) -> None:
    opened = await core.log.open(await core.chat())
    watcher = Watcher()
    opened.watchers.append(watcher)
    future = core.log.append(opened, [QosSet(1, False), QosSet(2, False)])
    assert (opened.state.events, opened.durable_events, watcher.events) == (4, 2, [])
    events = await future
    assert watcher.events == events
    assert opened.durable_events == 4
    assert [stored.event_id for stored in core.store.events(opened.id)] == [0, 1, 2, 3]


async def test_appends_of_one_turn_of_the_loop_share_a_commit(core: SessionCore) -> None:
    sessions = [await core.log.open(await core.chat()) for _ in range(8)]
    before = core.store.statistics()
    await asyncio.gather(*(core.log.append(opened, [QosSet(1, False)]) for opened in sessions))
    after = core.store.statistics()
    assert after.commits_total == before.commits_total + 1
    assert after.events_total == before.events_total + 8


async def test_body_that_cannot_be_encoded_raises_and_leaves_the_session_as_it_was(core: SessionCore) -> None:
    opened = await core.log.open(await core.chat())
    with pytest.raises(CodecError):
        core.log.append(opened, [QosSet(1, False), Message(1, "\ud800", (1,))])
    assert opened.state.events == 2
    assert (await core.sessions.append_message(opened.id, USER, "x")).event_id == 2


# ---- a store that refuses


async def test_refused_write_closes_the_session_which_reads_again_from_what_is_durable(tmp_path: Path) -> None:
    disk = FaultyDisk("log-refused")
    async with session_core(tmp_path / "s.db", vfs=disk.name) as core:
        session = await core.chat()
        other = await core.chat()
        opened = await core.log.open(session)
        watcher = Watcher()
        opened.watchers.append(watcher)
        with disk.break_with(apsw.FullError):
            first, second = core.log.append(opened, [QosSet(1, False)]), core.log.append(opened, [QosSet(2, False)])
            results = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(result) for result in results] == [StoreUnavailableError, StoreUnavailableError]
        assert (watcher.events, watcher.reason) == ([], "publisher closed")
        # The object is dead; the session is not.
        with pytest.raises(StoreUnavailableError):
            await core.log.append(opened, [QosSet(3, False)])
        again = await core.log.open(session)
        assert again is not opened
        assert (again.state.events, again.state.qos_class) == (2, 2)
        assert (await core.sessions.append_message(session, USER, "x")).event_id == 2
        assert (await core.sessions.append_message(other, USER, "x")).event_id == 2
    disk.close()


async def test_epoch_that_cannot_be_committed_refuses_the_request_and_is_raised_later_once(tmp_path: Path) -> None:
    disk = FaultyDisk("log-epoch")
    async with session_core(tmp_path / "s.db") as core:
        session = await core.chat()
    async with session_core(tmp_path / "s.db", vfs=disk.name) as again:
        with disk.break_with(apsw.FullError):
            with pytest.raises(StoreUnavailableError):
                await again.sessions.read(session, 0)
            assert [row.id for row in await again.sessions.session_rows(include_archived=True)] == [session]
        assert [event.epoch for event in await again.sessions.read(session, 0)] == [1, 1, 2]
    disk.close()


async def test_session_that_could_not_be_created_is_unknown(tmp_path: Path) -> None:
    disk = FaultyDisk("log-create")
    async with session_core(tmp_path / "s.db", vfs=disk.name) as core:
        with disk.break_with(apsw.IOError), pytest.raises(StoreUnavailableError):
            await core.sessions.create(None, PARAMS)
        with pytest.raises(SessionNotFoundError):
            await core.sessions.read(1, 0)
        assert await core.sessions.create(None, PARAMS) == 2
    disk.close()


async def test_log_that_is_shorter_than_its_row_says_is_found_out(core: SessionCore) -> None:
    session, other = await core.chat(), await core.chat()
    await core.close()
    raw = apsw.Connection(str(core.path))
    raw.execute("DELETE FROM event WHERE session = ? AND id = 1", (session,))
    raw.close()
    async with session_core(core.path) as again:
        with pytest.raises(DamagedRecordError, match=f"session {session}: the stored record of event 1 is missing"):
            await again.sessions.read(session, 0)
        assert len(await again.sessions.read(other, 0)) == 3


@pytest.mark.parametrize(
    "damage", ["base = 2", "fork_at = 1", "base = NULL, fork_at = 0", "base = 2, fork_at = 3", "fork_at = 99"]
)
async def test_row_that_inherits_other_events_than_the_log_says_is_found_out(core: SessionCore, damage: str) -> None:
    session, other = await core.chat(), await core.chat((USER, "other"))
    fork = await core.sessions.fork(session, 2, None)
    await core.close()
    raw = apsw.Connection(str(core.path))
    raw.execute(f"UPDATE session SET {damage} WHERE id = ?", (fork,))
    raw.close()
    async with session_core(core.path) as again:
        with pytest.raises(DamagedRecordError, match=f"session {fork}"):
            await again.sessions.read(fork, 0)
        assert len(await again.sessions.read(other, 0)) == 3


async def test_store_that_is_closed_refuses_and_does_not_hang(core: SessionCore) -> None:
    opened = await core.log.open(await core.chat())
    await core.close()
    with pytest.raises(StoreUnavailableError, match="closed"):
        await core.log.append(opened, [QosSet(1, False)])


# ---- dropping


async def http_session(core: SessionCore) -> int:
    stored = core.chats.store(core.chats.prepare_text("x", tokens_of("x"), PARAMS))
    await stored.durable
    return stored.session.id


async def test_forgotten_session_is_unknown_and_its_holder_learns_of_it(core: SessionCore) -> None:
    session = await http_session(core)
    held = await core.log.open(session)
    await core.log.forget([session])
    with pytest.raises(SessionNotFoundError, match="unknown"):
        await core.sessions.read(session, 0)
    with pytest.raises(SessionNotFoundError, match="dropped"):
        await core.log.append(held, [QosSet(1, False)])
    with pytest.raises(SessionNotFoundError, match="dropped"):
        core.log.create(SessionState(99, fork_at=3), [Created(None, PARAMS)], base=held)


async def test_session_that_is_being_dropped_cannot_be_opened(core: SessionCore) -> None:
    session = await http_session(core)
    forgetting = asyncio.ensure_future(core.log.forget([session]))
    await asyncio.sleep(0)
    with pytest.raises(SessionNotFoundError, match="unknown"):
        await core.log.open(session)
    await forgetting


async def test_session_that_was_forked_in_the_same_turn_of_the_loop_is_not_dropped(core: SessionCore) -> None:
    """The fork was promised first: what drops its beginning must not overtake it on the way to the store."""
    held = await core.log.open(await http_session(core))
    child = await core.log.inherited_state(held, 2)
    fork, durable = core.log.create(child, [Forked(held.id, 2, PARAMS)], base=held)
    await core.log.forget([held.id])
    await durable
    assert [event.event_id for event in await core.sessions.read(fork.id, 0)] == [0, 1, 2]


async def test_session_others_inherit_from_is_not_dropped(core: SessionCore) -> None:
    session = await http_session(core)
    fork = await core.sessions.fork(session, 2, None)
    await core.log.forget([session])
    assert len(await core.sessions.read(session, 0)) == 3
    assert len(await core.sessions.read(fork, 0)) == 3


async def test_drop_that_the_store_refuses_leaves_the_session(tmp_path: Path) -> None:
    disk = FaultyDisk("log-forget")
    async with session_core(tmp_path / "s.db", vfs=disk.name) as core:
        session = await http_session(core)
        with disk.break_with(apsw.IOError), pytest.raises(StoreUnavailableError):
            await core.log.forget([session])
        assert len(await core.sessions.read(session, 0)) == 3
    disk.close()


async def test_http_origin_is_kept_in_the_row(core: SessionCore) -> None:
    session = await http_session(core)
    await core.sessions.read(session, 0)
    row = core.store.row(session)
    assert row is not None
    assert row.origin is Origin.HTTP


# ---- what happens in between


async def test_session_that_is_marked_while_it_is_read_in_is_marked_and_unmarked(
    core: SessionCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await core.chat(), await core.chat()
    await core.close()
    async with session_core(core.path) as again:
        again.log.mark_purging([second])
        held = HeldCommits(again.store, monkeypatch)
        opening = asyncio.ensure_future(again.log.open(first))
        marked = asyncio.ensure_future(again.log.open_marked(second))
        await held.arrived(2)
        again.log.mark_purging([first])
        again.log.unmark_purging([second])
        held.release()
        assert (await opening).is_purging
        assert not (await marked).is_purging


async def test_session_that_fails_before_whoever_opened_it_comes_to_run_is_read_again(core: SessionCore) -> None:
    """A subscription to the dead object would wait for ever."""
    session = await core.chat()
    await core.close()
    async with session_core(core.path) as again:
        opening = asyncio.ensure_future(again.log.open(session))
        await asyncio.sleep(0)
        reading = again.log._opening[session]
        failed = []

        def fail(done: "asyncio.Task[OpenSession]") -> None:
            failed.append(done.result())
            again.log._close(done.result(), StoreUnavailableError("the disk is full"))

        reading.add_done_callback(fail)
        opened = await opening
        assert opened.failure is None
        assert opened not in failed


async def test_end_without_a_record_is_refused_with_the_records_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored alone, its row would count records that are not there, and the session could never be read again."""
    disk = FaultyDisk("log-end")
    async with session_core(tmp_path / "s.db", vfs=disk.name) as core:
        session = await core.chat()
        turn = await core.sessions.generate(session, 10)
        await core.log.settled()
        held = HeldCommits(core.store, monkeypatch)
        core.backend.last.draw(ord("a"))
        await held.arrived()
        core.backend.last.sink.failed(WorkerFailedError("the worker is gone"))
        await held.arrived(2)
        with disk.break_with(apsw.FullError):
            await held.let_one_through()
        held.release()
        _, error = await failure_of(turn)
        assert isinstance(error, StoreUnavailableError)
        assert await core.kinds(session) == ["Created", "Message", "GenerationFingerprint", "GenerationPrompt"]
        assert await core.replied(session, "ok")
    disk.close()


async def test_reading_that_meets_a_drop_is_refused(core: SessionCore) -> None:
    held = await core.log.open(await http_session(core))
    await core.log.forget([held.id])
    with pytest.raises(SessionNotFoundError, match="dropped"):
        await core.log.read_events(held)


async def test_session_in_use_is_not_dropped(core: SessionCore) -> None:
    watched, idle = await http_session(core), await http_session(core)
    await core.sessions.subscribe(watched, 0, wants_provisional=False)
    assert await core.log.forget([watched, idle]) == [idle]
    assert (await core.log.open(watched)).failure is None


async def test_session_is_in_the_hands_of_one_drop_only(core: SessionCore) -> None:
    session = await http_session(core)
    first, second = await asyncio.gather(core.log.forget([session]), core.log.forget([session]))
    assert (first, second) == ([session], [])


async def test_session_is_shown_to_nobody_before_it_is_on_the_disk(
    core: SessionCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a fork inherits could not be read yet: whoever asked was told of an empty log."""
    session = await core.chat()
    held = HeldCommits(core.store, monkeypatch)
    forking = asyncio.ensure_future(core.sessions.fork(session, 2, None))
    await held.arrived()
    reading = asyncio.ensure_future(core.sessions.read(session + 1, 0))
    watching = asyncio.ensure_future(core.sessions.subscribe(session + 1, 0, wants_provisional=False))
    await asyncio.sleep(0)
    held.release()
    assert await forking == session + 1
    assert [event.event_id for event in await reading] == [0, 1, 2]
    first = await anext(aiter(await watching))
    assert isinstance(first[0], Event)
    assert first[0].event_id == 0


async def test_session_that_is_refused_while_somebody_waits_for_it_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk("log-creation")
    async with session_core(tmp_path / "s.db", vfs=disk.name) as core:
        held = HeldCommits(core.store, monkeypatch)
        creating = asyncio.ensure_future(core.sessions.create(None, PARAMS))
        await held.arrived()
        reading = asyncio.ensure_future(core.sessions.read(1, 0))
        await asyncio.sleep(0)
        with disk.break_with(apsw.FullError):
            await held.let_one_through()
        held.release()
        with pytest.raises(StoreUnavailableError):
            await creating
        with pytest.raises(SessionNotFoundError):
            await reading
    disk.close()
