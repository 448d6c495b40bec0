"""What was purged is in no file any more, whatever happened in between; keepers outside the store join in."""

import asyncio
import random
import shutil
from array import array
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest
from tests.fixtures.faulty_disk import FaultyDisk
from tests.fixtures.session_core import CALL, PARAMS, USER, SessionCore, rest_of, session_core, tokens_of
from tests.fixtures.traces import forms_of, is_anywhere, traces_of

from superfluid.domain.events import Appended, PurgeMode
from superfluid.errors import SessionNotFoundError, StoreUnavailableError, SuperfluidError
from superfluid.sessions.erasing import PurgedSession
from superfluid.store import checkpoint

SECRET = "Ça reste ici: the heron's password is marshmallow-éléphant, forty times over"
SECRET_TOKENS = tuple(140 + number * 37 % 116 for number in range(60))
CASCADE, REROOT = PurgeMode.CASCADE, PurgeMode.REROOT


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "sessions"
    path.mkdir()
    return path


def store_path(directory: Path) -> Path:
    return directory / "sessions.db"


def traces(directory: Path) -> list[str]:
    return traces_of(directory, SECRET, SECRET_TOKENS)


async def say_everywhere(core: SessionCore, session: int) -> None:
    """Puts the secret wherever a session can hold something."""
    await core.sessions.append(session, None, SECRET_TOKENS)
    await core.sessions.append_message(session, USER, SECRET)
    await core.sessions.append_block(session, USER, 2, f'{{"title":"{SECRET}","content":"{SECRET}"}}')
    await core.replied(session, f"{SECRET}<think>{SECRET}</think>" + CALL.replace('"a":1', f'"a":"{SECRET}"'))
    ((call_id, _),) = await core.sessions.open_tool_calls(session)
    asked = await core.sessions.request_permission(session, call_id, SECRET)
    await core.sessions.respond_permission(session, asked.event_id, granted=True)
    await core.sessions.append_tool_outcome(session, call_id, 1, SECRET)
    row = (await core.sessions.inspect(session)).row
    await core.sessions.set_meta(session, row.meta_version, SECRET, None)


async def neighbours(core: SessionCore, count: int = 12, seed: int = 1) -> None:
    """Other sessions that are written to and dropped in between, so that pages are divided and joined."""
    chance = random.Random(seed)
    sessions = [await core.sessions.create(None, PARAMS) for _ in range(count)]
    for _ in range(count * 8):
        session = chance.choice(sessions)
        await core.sessions.append(session, None, [1 + chance.randrange(100)] * chance.choice([1, 5, 40, 700]))
        if chance.random() < 0.05 and len(sessions) > 2:
            sessions.remove(session)
            await core.sessions.purge(session, 0, CASCADE)


# ---- nothing is left


@pytest.mark.parametrize("mode", list(PurgeMode))
async def test_purged_session_is_in_no_file_now_nor_later_nor_after_a_restart(directory: Path, mode: PurgeMode) -> None:
    async with session_core(store_path(directory)) as core:
        session = await core.sessions.create(None, PARAMS)
        child = await core.sessions.fork(session, 1, None)
        await say_everywhere(core, session)
        await neighbours(core)
        assert len(traces(directory)) >= 2, "or the test sees nothing"
        await core.sessions.purge(session, 0, mode)
        assert traces(directory) == []
        await neighbours(core, seed=2)
        assert traces(directory) == []
    assert traces(directory) == []
    async with session_core(store_path(directory)) as again:
        await neighbours(again, count=3)
        assert traces(directory) == []
        assert (child in [row.id for row in again.store.rows()]) is (mode is REROOT)


async def test_without_cleaned_pages_leftovers_of_purged_sessions_are_found(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason for ``store/page.py``, and the proof that the test above can fail."""
    monkeypatch.setattr(checkpoint, "cleaned_page", lambda page, is_first: None)
    async with session_core(store_path(directory)) as core:
        assert await leftovers(core, directory)


async def test_with_cleaned_pages_there_are_none(directory: Path) -> None:
    async with session_core(store_path(directory)) as core:
        assert await leftovers(core, directory) == []


async def leftovers(core: SessionCore, directory: Path) -> list[str]:
    """Many sessions grow side by side; then half of them are purged, and the others grow on."""
    chance = random.Random(3)
    texts = {await core.sessions.create(None, PARAMS): f"<secret {number:04}>" for number in range(40)}

    async def grow(sessions: Sequence[int]) -> None:
        for session in sessions:
            body = Appended(texts[session] * chance.choice([1, 1, 2, 3, 6, 20]), (1,))
            core.log.append(await core.log.open(session), [body])
        await core.log.settled()

    for _ in range(30):
        await grow([*texts])
    gone, stay = [*texts][::2], [*texts][1::2]
    for session in gone:
        await core.sessions.purge(session, 0, CASCADE)
    await grow(stay)
    return [texts[session] for session in gone if is_anywhere(texts[session].encode(), directory)]


async def test_what_a_rerooted_child_owns_stays_until_the_child_is_purged(directory: Path) -> None:
    async with session_core(store_path(directory)) as core:
        session = await core.sessions.create(None, PARAMS)
        await core.sessions.append(session, SECRET, SECRET_TOKENS)
        child = await core.sessions.fork(session, 2, None)
        await core.sessions.purge(session, 0, REROOT)
        assert (await core.sessions.inspect(child)).state.tokens.tolist() == list(SECRET_TOKENS)
        assert traces(directory)
        await core.sessions.purge(child, 0, REROOT)
        assert traces(directory) == []


# ---- a daemon that dies


async def planted(core: SessionCore) -> tuple[int, int]:
    """A session with the secret, and a child that has none of it."""
    session = await core.sessions.create(None, PARAMS)
    await core.sessions.append_message(session, USER, "harmless")
    child = await core.sessions.fork(session, 2, None)
    await core.sessions.append_message(child, USER, "the child's own")
    await core.sessions.append(session, SECRET, SECRET_TOKENS)
    await core.sessions.set_meta(session, 0, SECRET, None)
    return session, child


async def check_either_way(directory: Path, session: int, child: int, mode: PurgeMode) -> bool:
    """What a start behind a crash must find: the session whole, or no trace of it. Whether it was purged."""
    async with session_core(store_path(directory)) as core:
        await core.purger.finish()
        is_purged = session not in [row.id for row in core.store.rows()]
        if is_purged:
            assert traces(directory) == []
            with pytest.raises(SessionNotFoundError, match="was purged"):
                await core.sessions.read(session, 0)
        else:
            assert [event.body for event in await core.sessions.read(session, 0)][2] == Appended(SECRET, SECRET_TOKENS)
        if mode is REROOT or not is_purged:
            bodies = await core.bodies(child)
            assert "harmless" in repr(bodies[1])
            assert "the child's own" in repr(bodies[3])
            assert ("Rerooted" in await core.kinds(child)) is is_purged
        else:
            assert child not in [row.id for row in core.store.rows()]
        return is_purged


@pytest.mark.parametrize("mode", list(PurgeMode))
async def test_disk_that_fails_from_any_write_of_a_purge_on_leaves_all_of_it_or_nothing(
    tmp_path: Path, mode: PurgeMode
) -> None:
    outcomes = []
    for after in range(200):
        directory = tmp_path / str(after)
        directory.mkdir()
        disk = FaultyDisk(f"purge-{mode.value}-{after}")
        crashed = tmp_path / f"{after}-crashed"
        async with session_core(store_path(directory), vfs=disk.name) as core:
            session, child = await planted(core)
            failure: SuperfluidError | None = None
            with disk.break_with(apsw.IOError, after=after):
                try:
                    await core.sessions.purge(session, 0, mode)
                except SuperfluidError as error:
                    failure = error
                # What a process that died here would leave.
                shutil.copytree(directory, crashed)
            await core.purger.finish()
            assert core.store.erasing() == []
            if session not in [row.id for row in core.store.rows()]:
                assert traces(directory) == []
        disk.close()
        outcomes.append((failure is not None, await check_either_way(crashed, session, child, mode)))
        await check_either_way(directory, session, child, mode)
        if failure is None:
            break
    assert outcomes[0] == (True, False)
    assert outcomes[-1] == (False, True)
    assert (True, True) in outcomes, "some die between the purge and the end of the erasing"


async def test_daemon_that_dies_while_keepers_erase_finishes_at_its_next_start(directory: Path, tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"

    class Dying(Keeper):
        async def erase(self, purged: Sequence[PurgedSession]) -> None:
            await super().erase(purged)
            shutil.copytree(directory, crashed)

    async with session_core(store_path(directory)) as core:
        session, child = await planted(core)
        core.purger.add_eraser(Dying())
        await core.sessions.purge(session, 0, REROOT)
    assert traces(crashed)
    keeper = Keeper()
    async with session_core(store_path(crashed)) as again:
        with pytest.raises(SessionNotFoundError, match="was purged"):
            await again.sessions.read(session, 0)
        again.purger.add_eraser(keeper)
        await again.purger.finish()
        await again.purger.finish()
        assert traces(crashed) == []
        assert len(await again.sessions.read(child, 0)) > 3
    (told,) = keeper.told
    assert told.session == session
    assert told.tokens[-60:].tolist() == list(SECRET_TOKENS)


# ---- keepers outside the store


class Keeper:
    """Remembers what it was told; ``failure`` is raised instead."""

    def __init__(self, failure: SuperfluidError | None = None) -> None:
        self.told: list[PurgedSession] = []
        self.failure = failure

    async def erase(self, purged: Sequence[PurgedSession]) -> None:
        if self.failure is not None:
            raise self.failure
        self.told += purged


async def test_keepers_are_told_ids_tokens_and_what_others_still_have(core: SessionCore) -> None:
    keeper = Keeper()
    core.purger.add_eraser(keeper)
    root = await core.chat((USER, "root"), (USER, "more"))
    tokens = (await core.sessions.inspect(root)).state.tokens
    first = len(tokens_of("<|im_start|>user\nroot<|im_end|>\n"))
    middle = await core.sessions.fork(root, 2, None)
    await core.sessions.append_message(middle, USER, "middle")
    middle_tokens = (await core.sessions.inspect(middle)).state.tokens
    leaf = await core.sessions.fork(middle, 4, None)
    await core.sessions.purge(middle, 0, CASCADE)
    shares = {told.session: told.shared_tokens for told in keeper.told}
    assert shares == {middle: first, leaf: first}, "the root has its message still"
    assert {tuple(told.tokens) for told in keeper.told} == {tuple(middle_tokens)}
    keeper.told.clear()
    child = await core.sessions.fork(root, 2, None)
    await core.sessions.purge(root, 0, REROOT)
    assert keeper.told == [PurgedSession(root, tokens, first)]
    keeper.told.clear()
    await core.sessions.purge(child, 0, REROOT)
    assert [told.shared_tokens for told in keeper.told] == [0]


async def test_keepers_are_told_which_media_a_session_showed(core: SessionCore) -> None:
    keeper = Keeper()
    core.purger.add_eraser(keeper)
    session = await core.chat()
    for payload in ('{"blob":"ab12"}', "no json", '{"blob":3}', "[]"):
        await core.sessions.append_block(session, USER, 7, payload)
    await core.sessions.append_block(session, USER, 2, '{"blob":"cd34"}')
    await core.sessions.purge(session, 0, CASCADE)
    assert [told.blobs for told in keeper.told] == [frozenset({"ab12"})]


async def test_keeper_that_fails_is_reported_and_told_again_and_hides_nothing_from_others(core: SessionCore) -> None:
    failing, other = Keeper(StoreUnavailableError("no room")), Keeper()
    core.purger.add_eraser(failing)
    core.purger.add_eraser(other)
    session = await core.chat()
    with pytest.raises(StoreUnavailableError, match=r"traces of them may be on the disk .* no room"):
        await core.sessions.purge(session, 0, CASCADE)
    with pytest.raises(SessionNotFoundError, match="was purged"):
        await core.sessions.read(session, 0)
    assert [told.session for told in other.told] == [session]
    failing.failure = None
    second = await core.chat()
    await core.sessions.purge(second, 0, CASCADE)
    assert [told.session for told in failing.told] == [session, second]
    assert core.store.erasing() == []


@pytest.mark.parametrize(
    ("kept", "is_traced"),
    [
        ((1, 2, 3), False),
        ((1, 2, 3, 9, 9), False),
        ((1, 2, 3, 4), True),
        ((1, 2, 3, 4, 9), True),
        ((), False),
        ((4,), False),
    ],
)
def test_something_kept_is_traced_if_it_goes_beyond_what_others_have(kept: tuple[int, ...], is_traced: bool) -> None:
    purged = PurgedSession(1, array("i", (1, 2, 3, 4, 5)), shared_tokens=3)
    assert purged.is_traced_by(kept) is is_traced


def test_session_that_is_shared_whole_leaves_no_trace_of_its_own() -> None:
    assert not PurgedSession(1, array("i", (1, 2)), shared_tokens=2).is_traced_by((1, 2, 3))


# ---- the test's own eyes


def test_traces_are_found_in_every_form(tmp_path: Path) -> None:
    for form, data in forms_of(SECRET, SECRET_TOKENS).items():
        path = tmp_path / form
        path.write_bytes(b"\0" * 50 + data + b"\0" * 50)
        assert traces(tmp_path) == [f"{form}: {form}"]
        path.unlink()


async def test_reply_of_a_purged_generation_leaves_nothing(directory: Path) -> None:
    async with session_core(store_path(directory)) as core:
        session = await core.chat()
        turn = await core.sessions.generate(session, 1000, wants_provisional=True)
        core.backend.last.start()
        await core.backend.last.say(SECRET)
        await core.log.settled()
        await core.sessions.purge(session, 0, CASCADE)
        await rest_of(turn)
        await asyncio.sleep(0)
        assert traces(directory) == []
