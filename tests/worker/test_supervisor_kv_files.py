"""The supervisor and its worker's KV files: what it knows of them, and how sessions are erased come what may."""

import asyncio
import errno
import json
import logging
import os
import signal
import sys
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fixtures import standin_worker

from superfluid.domain.job import ParkKind
from superfluid.domain.statistics import KeptPrefix, Warmth
from superfluid.errors import StoreUnavailableError
from superfluid.kvfiles.names import KvName
from superfluid.worker.protocol import LogRecord
from superfluid.worker.settings import EngineSettings, KvFileSettings
from superfluid.worker.supervisor import WorkerSupervisor

SETTINGS = EngineSettings(engine="fake", model="", lanes=4, window_tokens=4096, max_queue=8)


def supervisor_with(tmp_path: Path, *lives: dict[str, Any], log: list[LogRecord] | None = None) -> WorkerSupervisor:
    kv_files = KvFileSettings(directory=str(tmp_path / "kv"), park_bytes=None, request_bytes=None)
    plan = json.dumps({"starts": str(tmp_path / "starts"), "lives": lives})
    return WorkerSupervisor(
        msgspec.structs.replace(SETTINGS, kv_files=kv_files),
        environment={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        command=(sys.executable, standin_worker.__file__, plan),
        on_log=None if log is None else log.append,
    )


def put_file(tmp_path: Path, owner: int) -> Path:
    (tmp_path / "kv").mkdir(exist_ok=True)
    path = tmp_path / "kv" / str(KvName(ParkKind.SESSION, "0" * 16, "a" * 32, owner))
    path.write_bytes(b"state")
    return path


async def test_worker_tells_what_is_parked_and_a_lost_one_takes_it_along(tmp_path: Path) -> None:
    supervisor = supervisor_with(tmp_path, {"kv": [[1, 7, 400], [2, 8, 300]], "dies_forgetting": True}, {})
    await supervisor.start()
    stream = array("i", range(350))
    assert [supervisor.warmth(session, stream).disk for session in (7, 8, 9)] == [350, 300, 0]
    assert (supervisor.statistics().parks_total, supervisor.statistics().kv_files) == (2, 2)
    await supervisor.forget([9])
    assert supervisor.warmth(7, stream).disk == 0
    assert (supervisor.statistics().parks_total, supervisor.statistics().kv_files) == (2, 0)
    await supervisor.stop()


async def test_worker_tells_what_lies_in_lanes_and_memory_and_erasing_takes_it_back(tmp_path: Path) -> None:
    held = [[1, 0, 7, 400], [2, None, 8, 300], [3, None, 7, 200]]
    supervisor = supervisor_with(tmp_path, {"held": held, "kv": [[1, 8, 100]], "dies_forgetting": True}, {})
    await supervisor.start()
    stream = array("i", range(350))
    assert supervisor.warmth(7, stream) == Warmth(lane=350, memory=200)
    assert supervisor.warmth(8, stream) == Warmth(memory=300, disk=100)
    statistics = supervisor.statistics()
    assert statistics.memory_prefixes == (KeptPrefix(7, 200), KeptPrefix(8, 300))
    assert statistics.disk_prefixes == (KeptPrefix(8, 100),)
    erasing = asyncio.ensure_future(supervisor.forget([8]))
    await asyncio.sleep(0)
    assert supervisor.warmth(8, stream) == Warmth(), "before the worker has answered"
    assert supervisor.statistics().disk_prefixes == ()
    await erasing
    assert supervisor.warmth(7, stream) == Warmth(), "the worker died of it"
    await supervisor.stop()


async def test_forget_asks_the_worker_and_removes_what_it_left(tmp_path: Path) -> None:
    log: list[LogRecord] = []
    supervisor = supervisor_with(tmp_path, {}, log=log)
    await supervisor.start()
    mine, other = put_file(tmp_path, 7), put_file(tmp_path, 8)
    await supervisor.forget([7, 9])
    assert "forget [7, 9]" in [record.message for record in log]
    assert (mine.exists(), other.exists()) == (False, True)
    await supervisor.stop()


async def test_forget_is_done_though_the_worker_dies_of_it(tmp_path: Path) -> None:
    supervisor = supervisor_with(tmp_path, {"dies_forgetting": True}, {})
    await supervisor.start()
    mine = put_file(tmp_path, 7)
    await asyncio.wait_for(supervisor.forget([7]), 20)
    assert not mine.exists()
    await supervisor.stop()


async def test_forget_before_there_is_a_worker_removes_the_files(tmp_path: Path) -> None:
    mine = put_file(tmp_path, 7)
    await supervisor_with(tmp_path, {}).forget([7])
    assert not mine.exists()


async def test_forget_where_the_disk_refuses_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_file(tmp_path, 7)

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StoreUnavailableError, match="KV files of erased sessions"):
        await supervisor_with(tmp_path, {}).forget([7])


async def test_forget_whose_caller_went_away_leaves_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    supervisor = supervisor_with(tmp_path, {})
    await supervisor.start()
    asking = asyncio.ensure_future(supervisor.forget([7]))
    await asyncio.sleep(0)
    asking.cancel()
    await supervisor.forget([8])
    assert caplog.records == []
    await supervisor.stop()


async def test_forget_ends_though_the_supervisor_itself_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody sees the worker die any more."""
    supervisor = supervisor_with(tmp_path, {})
    await supervisor.start()
    pid = supervisor.worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    asking = asyncio.ensure_future(supervisor.forget([7]))
    await asyncio.sleep(0)

    def broken(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(supervisor._watchdog, "check", broken)
    await asyncio.wait_for(asking, 20)
    assert supervisor.worker_pid is None
    await supervisor.stop()
