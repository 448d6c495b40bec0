"""Images in sessions: what is checked in which order, what the record holds, what a sweep keeps."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.fixtures.images import picture
from tests.fixtures.session_core import ASSISTANT, PARAMS, SYSTEM, USER, SessionCore, session_core, tokens_of

from superfluid.domain.events import Block, BlockKind, Drop, Event, PurgeMode, Replace
from superfluid.domain.media import MAX_PLACEHOLDERS, ImageRun, MediaFacts, image_ids
from superfluid.errors import (
    InvalidValueError,
    SessionBusyError,
    SessionNotFoundError,
    SessionRefusedError,
    StoreUnavailableError,
    SuperfluidError,
    UnsupportedInputError,
    WorkerFailedError,
)
from superfluid.store.media import Swept

PLACE = 256
MEDIA = MediaFacts(encoder="tiny", fingerprint="0123456789abcdef", placeholder_token=PLACE)
IMAGE = picture(1, width=4, height=4)
SHOWN = (*b"<", PLACE, PLACE, *b"|", PLACE, PLACE, *b">")


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[SessionCore]:
    async with session_core(tmp_path / "sessions.db") as opened:
        opened.backend.media = MEDIA
        yield opened


async def new_session(core: SessionCore) -> int:
    return await core.sessions.create(None, PARAMS)


def block_of(event: Event) -> Block:
    assert isinstance(event.body, Block)
    return event.body


async def show(core: SessionCore, session: int, content: bytes = IMAGE, *, role: int = USER) -> Event:
    blob = await core.sessions.put_media(content)
    return await core.sessions.append_image(session, role, blob, "see ", " there")


async def inputs(core: SessionCore, session: int) -> tuple[list[int], list[ImageRun]]:
    state = (await core.sessions.inspect(session)).state
    return state.tokens.tolist(), state.images


async def test_image_is_one_turn_with_both_texts_around_its_places(core: SessionCore) -> None:
    session = await new_session(core)
    await core.sessions.append_message(session, USER, "hi")
    before, _ = await inputs(core, session)
    event = await show(core, session)
    block = block_of(event)
    turn = (*tokens_of("<|im_start|>user\nsee "), *SHOWN, *tokens_of(" there<|im_end|>\n"))
    assert block.span == turn
    assert (block.role, block.kind, block.visibility_version) == (USER, BlockKind.IMAGE, 2)
    assert json.loads(block.payload) == {
        "blob": await core.sessions.put_media(IMAGE),
        "n_tokens": 4,
        "image_token_id": PLACE,
        "offset": len(before) + turn.index(PLACE),
        "pre_text": "see ",
        "post_text": " there",
        "media_identity": {"preprocessing_fp": MEDIA.fingerprint, "encoder": "tiny"},
    }


async def test_first_turn_with_an_image_begins_with_the_prologue(core: SessionCore) -> None:
    first, second = await new_session(core), await new_session(core)
    await core.sessions.append_message(first, USER, "x")
    tokens, _ = await inputs(core, first)
    block = block_of(await show(core, second))
    prologue = tokens[: -len(tokens_of("<|im_start|>user\nx<|im_end|>\n"))]
    assert list(block.span[: len(prologue)]) == prologue
    assert block.span[json.loads(block.payload)["offset"]] == PLACE


@pytest.mark.parametrize("role", [SYSTEM, USER, ASSISTANT])
async def test_image_may_have_any_role_of_a_message(core: SessionCore, role: int) -> None:
    session = await new_session(core)
    assert block_of(await show(core, session, role=role)).span.count(PLACE) == 4
    assert len((await inputs(core, session))[1]) == 2


async def test_text_that_looks_like_a_marker_or_like_the_gap_stays_text(core: SessionCore) -> None:
    session = await new_session(core)
    blob = await core.sessions.put_media(IMAGE)
    text = "<|im_end|>\ue000\ue001"
    block = block_of(await core.sessions.append_image(session, USER, blob, text, text))
    assert block.span.count(tokens_of("<|im_end|>")[0]) == 1
    assert bytes(token for token in block.span if token < 256).decode().count("\ue000\ue001") == 2


class Refusal(NamedTuple):
    role: int
    blob: str
    error: type[SuperfluidError]
    message: str


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(3, "nonsense", SessionRefusedError, "role 3"),
        Refusal(USER, "nonsense", SessionRefusedError, "64 lower-case hex"),
        Refusal(USER, "A" * 64, SessionRefusedError, "64 lower-case hex"),
        Refusal(USER, "../../../etc/passwd", SessionRefusedError, "64 lower-case hex"),
        Refusal(USER, "a" * 64, SessionRefusedError, "no blob"),
    ],
)
async def test_image_is_checked_role_first_then_its_name_then_its_presence(core: SessionCore, refusal: Refusal) -> None:
    core.backend.media = None
    session = await new_session(core)
    with pytest.raises(refusal.error, match=refusal.message):
        await core.sessions.append_image(session, refusal.role, refusal.blob, "", "")
    assert core.backend.sized == []
    assert len(await core.sessions.read(session, 0)) == 1


async def test_image_on_a_busy_session_is_refused_before_all_else(core: SessionCore) -> None:
    session = await new_session(core)
    await core.sessions.append_message(session, USER, "hi")
    await core.sessions.generate(session, 5)
    with pytest.raises(SessionBusyError):
        await core.sessions.append_image(session, 99, "nonsense", "", "")


async def test_image_for_a_session_that_is_not_there_is_refused(core: SessionCore) -> None:
    with pytest.raises(SessionNotFoundError):
        await core.sessions.append_image(77, USER, "a" * 64, "", "")


@pytest.mark.parametrize(
    ("layout", "error", "message"),
    [
        ([60, 62], SessionRefusedError, "takes 0 tokens"),
        ([-1] * (MAX_PLACEHOLDERS + 1), SessionRefusedError, "takes 4097 tokens"),
        ([-1, PLACE, -1], SessionRefusedError, "markers"),
        (InvalidValueError("damaged"), InvalidValueError, "damaged"),
        (WorkerFailedError("gone"), WorkerFailedError, "gone"),
    ],
)
async def test_image_that_the_model_cannot_take_is_refused(
    core: SessionCore, layout: list[int] | SuperfluidError, error: type[SuperfluidError], message: str
) -> None:
    core.backend.layout = layout
    session = await new_session(core)
    with pytest.raises(error, match=message):
        await show(core, session)
    assert len(await core.sessions.read(session, 0)) == 1
    core.backend.layout = [-1] * MAX_PLACEHOLDERS
    await show(core, session)


async def test_blob_that_is_no_image_never_reaches_the_worker(core: SessionCore) -> None:
    with pytest.raises(InvalidValueError, match="no PNG"):
        await show(core, await new_session(core), b"hello")
    assert core.backend.sized == []


async def test_text_model_refuses_with_the_reason(core: SessionCore) -> None:
    core.backend.media = None
    with pytest.raises(UnsupportedInputError, match=r"sees no images.*--mmproj"):
        await show(core, await new_session(core))


async def test_generation_gives_the_worker_ids_in_the_places_of_the_image(core: SessionCore) -> None:
    session = await new_session(core)
    await show(core, session)
    await core.sessions.append_message(session, USER, "what?")
    tokens, runs = await inputs(core, session)
    await core.sessions.generate(session, 5)
    job = core.backend.last.job
    assert job.images == runs
    assert [run.length for run in runs] == [2, 2]
    sent = core.backend.last.tokens
    for run in runs:
        assert sent[run.position : run.end] == image_ids(run, MEDIA.fingerprint).tolist()
        assert tokens[run.position : run.end] == [PLACE, PLACE]
    assert [token for token in sent[: len(tokens)] if token >= 0] == [token for token in tokens if token != PLACE]


async def test_generation_on_a_session_with_an_image_is_refused_by_a_text_model(core: SessionCore) -> None:
    session = await new_session(core)
    await show(core, session)
    core.backend.media = None
    with pytest.raises(UnsupportedInputError, match="shows an image"):
        await core.sessions.generate(session, 5)
    assert core.backend.jobs == []


async def test_fork_shares_the_image(core: SessionCore) -> None:
    session = await new_session(core)
    event = await show(core, session)
    child = await core.sessions.fork(session, event.event_id + 1, None)
    assert await inputs(core, child) == await inputs(core, session)


async def test_session_read_from_the_disk_has_its_image_where_it_was(tmp_path: Path) -> None:
    async with session_core(tmp_path / "sessions.db") as core:
        core.backend.media = MEDIA
        session = await new_session(core)
        await show(core, session)
        expected = await inputs(core, session)
    async with session_core(tmp_path / "sessions.db") as core:
        assert await inputs(core, session) == expected


async def test_rebase_counts_offsets_anew(core: SessionCore) -> None:
    session = await new_session(core)
    await core.sessions.append_message(session, USER, "a long story that is going to be shorter")
    await show(core, session)
    second = await show(core, session, picture(2, width=4, height=4))
    edited = await core.sessions.rebase(session, [Replace(1, 2, USER, "short")], None)
    tokens, runs = await inputs(core, edited)
    assert len(runs) == 4
    assert all(tokens[run.position : run.end] == [PLACE, PLACE] for run in runs)
    blocks = [event.body for event in await core.sessions.read(edited, 0) if isinstance(event.body, Block)]
    assert [json.loads(block.payload)["offset"] for block in blocks] == [runs[0].position, runs[2].position]
    without = await core.sessions.rebase(session, [Drop(2, 3)], None)
    tokens, runs = await inputs(core, without)
    assert [run.blob for run in runs] == [json.loads(block_of(second).payload)["blob"]] * 2
    assert all(tokens[run.position : run.end] == [PLACE, PLACE] for run in runs)


async def test_image_block_without_a_span_shows_nothing(core: SessionCore) -> None:
    session = await new_session(core)
    payload = block_of(await show(core, session)).payload
    other = await new_session(core)
    await core.sessions.append_block(other, USER, BlockKind.IMAGE, payload)
    assert await inputs(core, other) == ([], [])


# ---- letting go


async def test_sweep_keeps_what_live_sessions_show_and_deletes_the_rest(core: SessionCore) -> None:
    shown, archived, edited, loose = (picture(seed, width=4, height=4) for seed in range(4))
    session, other = await new_session(core), await new_session(core)
    await show(core, session, shown)
    await show(core, other, archived)
    await core.sessions.set_meta(other, 0, None, True)
    await show(core, session, edited)
    await core.sessions.put_media(loose)
    assert await core.sessions.gc_media() == (3, 1)
    assert await core.sessions.gc_media() == (3, 0)
    await show(core, session, edited)


async def test_sweep_keeps_what_a_fork_has_inherited(core: SessionCore) -> None:
    session = await new_session(core)
    event = await show(core, session)
    await core.sessions.fork(session, event.event_id + 1, None)
    assert await core.sessions.gc_media() == (1, 0)


async def test_sweep_is_not_fooled_by_text_that_names_a_blob(core: SessionCore) -> None:
    blob = await core.sessions.put_media(IMAGE)
    session = await new_session(core)
    await core.sessions.append_message(session, USER, f'"blob":"{blob}"')
    await core.sessions.append_block(session, USER, BlockKind.ARTIFACT, f'{{"blob":"{blob}"}}')
    assert await core.sessions.gc_media() == (0, 1)


async def test_sweep_keeps_what_a_block_names_without_showing_it(core: SessionCore) -> None:
    blob = await core.sessions.put_media(IMAGE)
    await core.sessions.append_block(await new_session(core), USER, BlockKind.IMAGE, f'{{ "blob" : "{blob}" }}')
    assert await core.sessions.gc_media() == (1, 0)


@pytest.mark.parametrize("is_shown", [True, False])
async def test_sweep_spares_an_image_that_is_being_appended(
    core: SessionCore, monkeypatch: pytest.MonkeyPatch, is_shown: bool
) -> None:
    """The scan has passed the session when its record becomes durable."""
    session = await new_session(core)
    blob = await core.sessions.put_media(IMAGE)
    scanned, go_on = threading.Event(), threading.Event()
    extents = core.store.live_extents

    def slow_extents() -> list[tuple[int, int]]:
        found = extents()
        scanned.set()
        assert go_on.wait(30)
        return [entry for entry in found if entry[0] != session]

    monkeypatch.setattr(core.store, "live_extents", slow_extents)
    sweep = asyncio.create_task(core.sessions.gc_media())
    await asyncio.to_thread(scanned.wait, 10)
    if is_shown:
        await core.sessions.append_image(session, USER, blob, "", "")
    else:
        await core.sessions.append_block(session, USER, BlockKind.IMAGE, f'{{"blob":"{blob}"}}')
    go_on.set()
    assert await sweep == (1, 0)


async def sweep_that_waits(
    core: SessionCore, monkeypatch: pytest.MonkeyPatch
) -> tuple["asyncio.Task[tuple[int, int]]", threading.Event]:
    """A collection that is about to delete files, and does when the event is set."""
    deleting, go_on = threading.Event(), threading.Event()
    sweep = core.pool.sweep

    def slow_sweep(named: set[str], among: set[str] | None) -> Swept:
        deleting.set()
        assert go_on.wait(30)
        return sweep(named, among)

    monkeypatch.setattr(core.pool, "sweep", slow_sweep)
    collecting = asyncio.create_task(core.sessions.gc_media())
    assert await asyncio.to_thread(deleting.wait, 10)
    return collecting, go_on


async def test_image_appended_while_files_are_deleted_is_there_or_refused(
    core: SessionCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a record that names what the sweep is deleting."""
    session = await new_session(core)
    blob = await core.sessions.put_media(IMAGE)
    collecting, go_on = await sweep_that_waits(core, monkeypatch)
    appending = asyncio.create_task(core.sessions.append_image(session, USER, blob, "", ""))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not appending.done()
    go_on.set()
    assert await collecting == (0, 1)
    with pytest.raises(SessionRefusedError, match="no blob"):
        await appending


async def test_blob_put_again_while_files_are_deleted_is_there(
    core: SessionCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = await core.sessions.put_media(IMAGE)
    collecting, go_on = await sweep_that_waits(core, monkeypatch)
    putting = asyncio.create_task(core.sessions.put_media(IMAGE))
    # Either it waits for the sweep, or it has found the file.
    await asyncio.wait((putting,), timeout=0.1)
    go_on.set()
    assert await collecting == (0, 1)
    assert await putting == blob
    assert core.pool.get(blob) == IMAGE


async def test_purge_takes_images_along_that_nobody_else_shows(core: SessionCore) -> None:
    core.purger.add_eraser(core.sessions.media)
    first, second = await new_session(core), await new_session(core)
    shared = picture(5, width=4, height=4)
    await show(core, first)
    await show(core, first, shared)
    await show(core, second, shared)
    own, also = (
        {run.blob for run in (await inputs(core, first))[1]},
        {run.blob for run in (await inputs(core, second))[1]},
    )
    loose = await core.sessions.put_media(b"put and not shown yet")
    await core.sessions.purge(first, 0, PurgeMode.CASCADE)
    assert [core.pool.get(blob) for blob in own - also] == [None]
    assert all(core.pool.get(blob) is not None for blob in (*also, loose))


async def test_purge_that_leaves_a_fork_leaves_it_the_image(core: SessionCore) -> None:
    core.purger.add_eraser(core.sessions.media)
    session = await new_session(core)
    event = await show(core, session)
    child = await core.sessions.fork(session, event.event_id + 1, None)
    await core.sessions.purge(session, 0, PurgeMode.REROOT)
    tokens, runs = await inputs(core, child)
    assert tokens.count(PLACE) == 4
    assert len(runs) == 2
    assert await core.sessions.gc_media() == (1, 0)
    await core.sessions.purge(child, 0, PurgeMode.CASCADE)
    assert await core.sessions.gc_media() == (0, 0)


async def test_pool_that_cannot_be_written_refuses_and_sessions_go_on(tmp_path: Path) -> None:
    (tmp_path / "media").write_bytes(b"in the way")
    async with session_core(tmp_path / "sessions.db") as core:
        with pytest.raises(StoreUnavailableError, match="media pool"):
            await core.sessions.put_media(IMAGE)
        await core.sessions.append_message(await new_session(core), USER, "hi")
