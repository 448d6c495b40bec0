"""The debug line of a session's generation, and the lines of what destroys."""

import asyncio
import logging
from typing import Any

import pytest
from tests.fixtures.session_core import USER, SessionCore, rest_of

from superfluid.domain.events import PurgeMode
from superfluid.domain.reply import Finish
from superfluid.errors import EngineFaultError, QueueFullError, WorkerFailedError

ENDED = "a session's generation ended"


def _lines(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, Any]]:
    records = [record for record in caplog.records if record.getMessage() == message]
    assert all(record.name == "superfluid_daemon::sessions" for record in records)
    return [record.__dict__["fields"] for record in records]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "superfluid_daemon::sessions")
    return caplog


async def test_generation_that_ended_is_one_line_with_its_numbers(
    core: SessionCore, log: pytest.LogCaptureFixture
) -> None:
    session = await core.chat((USER, "hello there"))
    turn = await core.sessions.generate(session, 100, transport="socket")
    job = core.backend.last
    core.clock.seconds += 0.25
    job.start(warm_tokens=3)
    for token in (65, 66):
        core.clock.seconds += 0.5
        job.draw(token)
    assert not _lines(log, ENDED)
    await job.end_turn()
    core.clock.seconds += 0.125
    await rest_of(turn)
    (line,) = _lines(log, ENDED)
    assert line == {
        "session": session,
        "job": job.job.job_id,
        "class": 2,
        "transport": "socket",
        "prompt": job.job.prompt_tokens,
        "cached": 3,
        "completion": 3,
        "finish": "end_of_turn",
        "total_ms": line["total_ms"],
        "ttft_ms": 750,
        "decode_ms": 500,
    }
    assert line["total_ms"] in (1250, 1375), "with or without what passed while the end became durable"


@pytest.mark.parametrize("finish", [Finish.LENGTH, Finish.CANCELLED])
async def test_generation_that_was_cut_has_a_line_too(
    core: SessionCore, log: pytest.LogCaptureFixture, finish: Finish
) -> None:
    await core.cut(await core.chat(), "a", finish)
    (line,) = _lines(log, ENDED)
    assert (line["finish"], line["completion"]) == (finish.name.lower(), 1)
    assert "transport" not in line


@pytest.mark.parametrize("error", [EngineFaultError("no"), WorkerFailedError("gone")])
async def test_generation_that_failed_says_with_which_error(
    core: SessionCore, log: pytest.LogCaptureFixture, error: EngineFaultError | WorkerFailedError
) -> None:
    turn = await core.sessions.generate(await core.chat(), 100)
    core.backend.last.start()
    core.backend.last.sink.failed(error)
    with pytest.raises(type(error)):
        await rest_of(turn)
    (line,) = _lines(log, ENDED)
    assert (line["finish"], line["error"], line["completion"]) == ("error", error.code, 0)
    assert "ttft_ms" not in line


async def test_generation_that_the_backend_refuses_says_why(core: SessionCore, log: pytest.LogCaptureFixture) -> None:
    core.backend.refusal = QueueFullError("full")
    with pytest.raises(QueueFullError):
        await core.sessions.generate(await core.chat(), 100)
    assert [line["error"] for line in _lines(log, ENDED)] == [QueueFullError.code]


async def test_generations_have_no_line_unless_asked_for(core: SessionCore, log: pytest.LogCaptureFixture) -> None:
    log.set_level(logging.INFO, "superfluid_daemon::sessions")
    await core.replied(await core.chat(), "a")
    assert not _lines(log, ENDED)


@pytest.mark.parametrize(("mode", "count"), [(PurgeMode.CASCADE, 2), (PurgeMode.REROOT, 1)])
async def test_purge_is_a_line_with_the_sessions_that_are_gone(
    core: SessionCore, log: pytest.LogCaptureFixture, mode: PurgeMode, count: int
) -> None:
    session = await core.chat()
    await core.sessions.fork(session, 1, None)
    await core.sessions.purge(session, 0, mode)
    (line,) = _lines(log, "sessions were purged")
    assert line == {"session": session, "mode": mode.name.lower(), "sessions": count}


async def test_collected_media_are_a_line_with_their_numbers(core: SessionCore, log: pytest.LogCaptureFixture) -> None:
    await asyncio.gather(*(core.sessions.put_media(content) for content in (b"one", b"two")))
    await core.sessions.gc_media()
    assert _lines(log, "media that no session shows was deleted") == [{"kept": 0, "removed": 2}]
