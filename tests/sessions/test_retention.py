"""Which sessions are dropped for their age or for room, and which never."""

import asyncio
from collections.abc import Sequence

import apsw
import pytest
from tests.fixtures.session_core import PARAMS, USER, SessionCore, tokens_of

from superfluid.config import SessionsConfig
from superfluid.errors import SessionNotFoundError, StoreUnavailableError
from superfluid.sessions import retention
from superfluid.sessions.retention import RetentionSweeper
from superfluid.store.interface import SessionRow


async def http_session(core: SessionCore, size: int = 1) -> int:
    tokens = tokens_of("x" * size)
    stored = core.chats.store(core.chats.prepare_text("x" * size, tokens, PARAMS))
    await stored.durable
    return stored.session.id


def sweeper(core: SessionCore, ttl_seconds: float | None = None, budget_bytes: int | None = None) -> RetentionSweeper:
    config = SessionsConfig(http_ttl_seconds=ttl_seconds, budget_bytes=budget_bytes)
    return RetentionSweeper(core.log, config, clock=core.clock, forget_states=core.backend.forget)


def ids(core: SessionCore) -> list[int]:
    return [row.id for row in core.store.rows()]


async def test_old_requests_are_dropped_and_young_and_named_ones_stay(core: SessionCore) -> None:
    named = await core.chat()
    await http_session(core)
    core.clock.seconds += 100
    young = await http_session(core)
    assert await sweeper(core, ttl_seconds=50).sweep() == 1
    assert ids(core) == [named, young]
    assert core.backend.forgotten == [named + 1]
    assert await sweeper(core, ttl_seconds=50).sweep() == 0


async def test_old_request_in_use_or_inherited_from_stays(core: SessionCore) -> None:
    watched, base, lineage, gone = [await http_session(core) for _ in range(4)]
    await core.sessions.subscribe(watched, 0, wants_provisional=False)
    fork = await core.sessions.fork(base, 2, None)
    child = await core.sessions.create(lineage, PARAMS)
    core.clock.seconds += 100
    assert await sweeper(core, ttl_seconds=50).sweep() == 1
    assert ids(core) == [watched, base, lineage, fork, child]
    assert gone not in ids(core)


async def test_request_that_a_client_went_on_from_by_its_id_is_named(core: SessionCore) -> None:
    session = await http_session(core)
    await core.sessions.append_message(session, USER, "more")
    core.clock.seconds += 100
    assert await sweeper(core, ttl_seconds=50).sweep() == 0


async def test_forked_conversation_goes_from_its_newest_turn_to_its_oldest(core: SessionCore) -> None:
    base = await http_session(core)
    parent = await core.log.open(base)
    state = await core.log.inherited_state(parent, 3)
    from superfluid.domain.events import Forked
    from superfluid.store.interface import Origin

    _, durable = core.log.create(state, [Forked(base, 3, PARAMS)], base=parent, origin=Origin.HTTP)
    await durable
    core.clock.seconds += 100
    assert await sweeper(core, ttl_seconds=50).sweep() == 2
    assert ids(core) == []


async def test_budget_drops_the_least_recently_used_requests_until_it_is_met(core: SessionCore) -> None:
    named = await core.chat((USER, "x" * 3000))
    for _ in range(12):
        await http_session(core, 100_000)
        core.clock.seconds += 1
    used = core.store.statistics().used_bytes
    assert used > 1_200_000
    dropped = await sweeper(core, budget_bytes=used // 2).sweep()
    assert 0 < dropped <= 12
    assert core.store.statistics().used_bytes <= used // 2
    assert named in ids(core)
    left = ids(core)
    assert left == sorted(left)[-len(left) :]


async def test_budget_that_named_sessions_alone_exceed_drops_no_more_than_there_is(core: SessionCore) -> None:
    named = await core.chat((USER, "x" * 100_000))
    await http_session(core)
    assert await sweeper(core, budget_bytes=10).sweep() == 1
    assert ids(core) == [named]


async def test_dropped_text_is_not_in_the_files_any_more(core: SessionCore) -> None:
    stored = core.chats.store(core.chats.prepare_text("PLANTED" * 9, tokens_of("PLANTED"), PARAMS))
    await stored.durable
    core.clock.seconds += 100
    await sweeper(core, ttl_seconds=1).sweep()
    assert all(b"PLANTED" not in file.read_bytes() for file in core.path.parent.iterdir())


async def test_ids_of_dropped_sessions_are_not_used_again_even_after_a_crash(core: SessionCore) -> None:
    session = await http_session(core)
    core.clock.seconds += 100
    await sweeper(core, ttl_seconds=1).sweep()
    # A crash: nobody closes the store.
    copy = core.path.with_name("copy.db")
    source = apsw.Connection(str(core.path))
    source.execute("VACUUM INTO ?", (str(copy),))
    source.close()
    crashed = SessionCore(copy)
    assert crashed.store.allocate_session_id() == session + 1
    await crashed.close()


async def test_nothing_is_swept_without_a_rule(core: SessionCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SWEEP_SECONDS", 0.0)
    unruled = sweeper(core)
    unruled.start()
    await unruled.stop()
    assert unruled._task is None


async def test_sweeper_sweeps_at_once_when_it_is_started(core: SessionCore) -> None:
    await http_session(core)
    core.clock.seconds += 100
    started = sweeper(core, ttl_seconds=50)
    started.start()
    while ids(core):
        await core.log.settled()
    await started.stop()


async def test_request_that_is_being_dropped_takes_nothing_that_would_be_lost(core: SessionCore) -> None:
    """Erasing the states takes its time; what a client appended meanwhile was acknowledged and then gone."""
    session = await http_session(core)
    core.clock.seconds += 100
    refusals = []

    async def forget_states(sessions: Sequence[int]) -> None:
        for dropped in sessions:
            with pytest.raises(SessionNotFoundError) as refusal:
                await core.sessions.append_message(dropped, USER, "more")
            refusals.append(refusal.value.message)

    config = SessionsConfig(http_ttl_seconds=50)
    assert await RetentionSweeper(core.log, config, clock=core.clock, forget_states=forget_states).sweep() == 1
    assert refusals == [f"unknown session {session}"]
    assert ids(core) == []


async def test_request_that_is_taken_up_again_between_the_listing_and_the_drop_stays(
    core: SessionCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await http_session(core)
    core.clock.seconds += 100
    oldest = core.store.oldest_http_sessions

    def then_watched(limit: int, *, touched_before_unix_ms: int | None = None) -> list[SessionRow]:
        rows = oldest(limit, touched_before_unix_ms=touched_before_unix_ms)
        watching = core.sessions.subscribe(session, 0, wants_provisional=False)
        asyncio.run_coroutine_threadsafe(watching, loop)
        return rows

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(core.store, "oldest_http_sessions", then_watched)
    assert await sweeper(core, ttl_seconds=50).sweep() == 0
    assert ids(core) == [session]
    assert core.backend.forgotten == []


async def test_states_that_cannot_be_erased_leave_the_request_for_the_next_sweep(core: SessionCore) -> None:
    session = await http_session(core)
    core.clock.seconds += 100

    async def forget_states(sessions: Sequence[int]) -> None:
        raise StoreUnavailableError("the disk refuses")

    failing = RetentionSweeper(
        core.log, SessionsConfig(http_ttl_seconds=50), clock=core.clock, forget_states=forget_states
    )
    with pytest.raises(StoreUnavailableError):
        await failing.sweep()
    assert len(await core.sessions.read(session, 0)) == 3
    assert await sweeper(core, ttl_seconds=50).sweep() == 1


async def test_sweeper_goes_on_after_a_bug(
    core: SessionCore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "SWEEP_SECONDS", 0.0)
    sweeping = sweeper(core, ttl_seconds=0.0)
    rounds = asyncio.Queue[None]()

    async def broken() -> int:
        rounds.put_nowait(None)
        raise ValueError("a bug")

    monkeypatch.setattr(sweeping, "sweep", broken)
    sweeping.start()
    async with asyncio.timeout(10):
        await rounds.get()
        await rounds.get()
    await sweeping.stop()
    assert "old sessions could not be dropped" in caplog.text
