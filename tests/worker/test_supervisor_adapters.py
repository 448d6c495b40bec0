"""LoRA adapters and the worker's life: what a new worker has, and what becomes of a file that kills one."""

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fixtures.job_sink import RecordingSink, make_job

from superfluid.domain.reply import Finish
from superfluid.errors import AdapterNotFoundError, AdapterRefusedError, ModelLoadingError, SuperfluidError
from superfluid.worker.settings import EngineSettings
from superfluid.worker.supervisor import WorkerSupervisor

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
SCRIPT = '{"step_seconds": 0.005}'


@contextlib.asynccontextmanager
async def _serving(tmp_path: Path) -> AsyncIterator[WorkerSupervisor]:
    script = tmp_path / "script.json"
    script.write_text(SCRIPT)
    settings = EngineSettings(engine="fake", model=str(script), lanes=4, window_tokens=512, max_queue=8)
    supervisor = WorkerSupervisor(settings, environment=ENVIRONMENT)
    try:
        await supervisor.start()
        yield supervisor
    finally:
        await supervisor.stop()


def _file(tmp_path: Path, name: str = "a") -> str:
    path = tmp_path / name
    path.write_bytes(b"GGUF" + name.encode())
    return str(path)


def _submit(supervisor: WorkerSupervisor, job_id: int, adapter: int, max_tokens: int = 40) -> RecordingSink:
    sink = RecordingSink()
    supervisor.submit(make_job(job_id, prompt=range(40, 90), max_tokens=max_tokens, adapter=adapter), sink)
    return sink


async def _reply(supervisor: WorkerSupervisor, job_id: int, adapter: int) -> list[int]:
    sink = _submit(supervisor, job_id, adapter)
    await sink.until()
    assert sink.error is None
    return sink.received


async def test_killed_worker_changes_no_reply_of_any_adapter(tmp_path: Path) -> None:
    async with _serving(tmp_path) as supervisor:
        for adapter in (1, 2):
            await supervisor.adapters.load_adapter(adapter, _file(tmp_path, f"{adapter}"))
        expected = [await _reply(supervisor, 10 + adapter, adapter) for adapter in range(3)]
        sinks = [_submit(supervisor, 20 + adapter, adapter) for adapter in range(3)]
        for sink in sinks:
            await sink.until(tokens=5)
        assert supervisor.worker_pid is not None
        os.kill(supervisor.worker_pid, signal.SIGKILL)
        for sink in sinks:
            await sink.until()
    assert [sink.received for sink in sinks] == expected
    assert len({tuple(reply) for reply in expected}) == 3


async def test_file_that_kills_the_worker_is_refused_and_never_loaded_again(tmp_path: Path) -> None:
    async with _serving(tmp_path) as supervisor:
        await supervisor.adapters.load_adapter(1, _file(tmp_path, "good"))
        expected = await _reply(supervisor, 1, 1)
        running = _submit(supervisor, 2, 1)
        await running.until(tokens=3)
        with pytest.raises(AdapterRefusedError, match="died while it loaded"):
            await supervisor.adapters.load_adapter(2, _file(tmp_path, "crash"))
        await running.until()
        assert running.received == expected
        late = _submit(supervisor, 3, 2)
        assert isinstance(late.error, AdapterNotFoundError)
        assert await _reply(supervisor, 4, 1) == expected


async def test_adapter_whose_file_has_changed_is_lost_with_its_worker_and_its_jobs_fail(tmp_path: Path) -> None:
    lost: list[tuple[int, SuperfluidError]] = []
    async with _serving(tmp_path) as supervisor:
        supervisor.adapters.on_lost = lambda adapter, error: lost.append((adapter, error))
        await supervisor.adapters.load_adapter(1, _file(tmp_path))
        sinks = [_submit(supervisor, adapter, adapter) for adapter in (0, 1)]
        for sink in sinks:
            await sink.until(tokens=3)
        (tmp_path / "a").write_bytes(b"GGUF somebody else's")
        assert supervisor.worker_pid is not None
        os.kill(supervisor.worker_pid, signal.SIGKILL)
        for sink in sinks:
            await sink.until()
        assert (sinks[0].finish, len(sinks[0].received)) == (Finish.LENGTH, 40)
        assert isinstance(sinks[1].error, AdapterNotFoundError)
        assert [adapter for adapter, _ in lost] == [1]
        assert isinstance(_submit(supervisor, 9, 1).error, AdapterNotFoundError)


async def test_unloaded_adapter_is_there_for_its_jobs_even_in_a_new_worker(tmp_path: Path) -> None:
    async with _serving(tmp_path) as supervisor:
        await supervisor.adapters.load_adapter(1, _file(tmp_path))
        expected = await _reply(supervisor, 1, 1)
        running = _submit(supervisor, 2, 1)
        await running.until(tokens=3)
        supervisor.adapters.unload_adapter(1)
        assert isinstance(_submit(supervisor, 3, 1).error, AdapterNotFoundError)
        assert supervisor.worker_pid is not None
        os.kill(supervisor.worker_pid, signal.SIGKILL)
        await running.until()
        assert running.received == expected
        pid = supervisor.worker_pid
        assert pid is not None
        (tmp_path / "a").unlink()
        os.kill(pid, signal.SIGKILL)
        assert len(await _reply(supervisor, 4, 0)) == 40


async def test_adapter_is_refused_while_there_is_no_worker(tmp_path: Path) -> None:
    settings = EngineSettings(engine="fake", model="", lanes=1, window_tokens=512, max_queue=8)
    supervisor = WorkerSupervisor(settings, environment=ENVIRONMENT)
    with pytest.raises(ModelLoadingError):
        await supervisor.adapters.load_adapter(1, _file(tmp_path))
