"""The supervisor over the real worker program with the fake engine: what clients see when it is killed or stopped."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fixtures.image_jobs import pool_image
from tests.fixtures.images import picture
from tests.fixtures.job_sink import RecordingSink, make_job

from superfluid.domain.reply import Finish
from superfluid.domain.request import SamplingParams
from superfluid.errors import (
    ContextLengthExceededError,
    EngineFaultError,
    InvalidValueError,
    ModelFileError,
    ModelLoadError,
    ModelLoadingError,
    QueueFullError,
    UnsupportedInputError,
    WorkerFailedError,
)
from superfluid.worker.settings import EngineSettings
from superfluid.worker.supervisor import WorkerSupervisor

WINDOW_TOKENS = 512
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def settings(script: Path | None, **options: Any) -> EngineSettings:
    options = {"lanes": 4, "window_tokens": WINDOW_TOKENS, "max_queue": 8, **options}
    return EngineSettings(engine="fake", model=str(script) if script is not None else "", **options)


def write_script(tmp_path: Path, **script: Any) -> Path:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    return path


@contextlib.asynccontextmanager
async def serving(
    script: Path | None, *, timeout_seconds: float = 5.0, **options: Any
) -> AsyncIterator[WorkerSupervisor]:
    supervisor = WorkerSupervisor(settings(script, **options), environment=ENVIRONMENT, timeout_seconds=timeout_seconds)
    try:
        await supervisor.start()
        yield supervisor
    finally:
        await supervisor.stop()


def submit_all(supervisor: WorkerSupervisor, count: int, max_tokens: int = 60) -> list[RecordingSink]:
    sinks = [RecordingSink() for _ in range(count)]
    for job_id, sink in enumerate(sinks):
        supervisor.submit(make_job(job_id, prompt=range(40 + job_id, 90), max_tokens=max_tokens), sink)
    return sinks


async def replies_undisturbed(count: int) -> list[list[int]]:
    async with serving(None) as supervisor:
        sinks = submit_all(supervisor, count)
        for sink in sinks:
            await sink.until()
    return [sink.received for sink in sinks]


@pytest.mark.parametrize(("number", "timeout_seconds"), [(signal.SIGKILL, 5.0), (signal.SIGSTOP, 1.0)])
async def test_killed_or_stopped_worker_changes_no_reply(
    tmp_path: Path, number: signal.Signals, timeout_seconds: float
) -> None:
    script = write_script(tmp_path, step_seconds=0.005)
    async with serving(script, timeout_seconds=timeout_seconds) as supervisor:
        sinks = submit_all(supervisor, 6)
        for tokens in (5, 30):
            await sinks[0].until(tokens=tokens)
            assert supervisor.worker_pid is not None
            os.kill(supervisor.worker_pid, number)
        for sink in sinks:
            await sink.until()
        statistics = supervisor.statistics()
    assert [sink.received for sink in sinks] == await replies_undisturbed(6)
    assert all(sink.finish is Finish.LENGTH for sink in sinks)
    assert statistics.respawns_total >= 2
    assert 300 < statistics.decode_tokens_total <= 360
    assert (statistics.lanes_active, statistics.queue_depth) == (0, (0, 0, 0, 0))


async def test_seeded_sampling_continues_with_the_same_draws(tmp_path: Path) -> None:
    job = msgspec.structs.replace(make_job(1, max_tokens=60), sampling=SamplingParams(temperature=1.3, seed=7))
    replies = []
    for is_killed in (False, True):
        async with serving(write_script(tmp_path, step_seconds=0.005)) as supervisor:
            sink = RecordingSink()
            supervisor.submit(job, sink)
            if is_killed:
                await sink.until(tokens=20)
                assert supervisor.worker_pid is not None
                os.kill(supervisor.worker_pid, signal.SIGKILL)
            await sink.until()
            replies.append(sink.received)
    assert replies[0] == replies[1]


async def test_engine_that_aborts_every_time_ends_in_a_typed_error(tmp_path: Path) -> None:
    async with serving(write_script(tmp_path, crash_step=1)) as supervisor:
        sinks = submit_all(supervisor, 6)
        for sink in sinks:
            await sink.until()
        assert not supervisor.is_ready
    assert all(isinstance(sink.error, WorkerFailedError) for sink in sinks)


async def test_engine_that_aborts_once_is_not_seen_by_clients(tmp_path: Path) -> None:
    script = write_script(tmp_path, crash_step=20, crash_marker=str(tmp_path / "crashed"))
    async with serving(script) as supervisor:
        sinks = submit_all(supervisor, 3)
        for sink in sinks:
            await sink.until()
        assert supervisor.statistics().respawns_total == 1
    assert [sink.received for sink in sinks] == await replies_undisturbed(3)


async def test_cancelled_job_ends_within_a_tick(tmp_path: Path) -> None:
    async with serving(write_script(tmp_path, step_seconds=0.005)) as supervisor:
        (sink,) = submit_all(supervisor, 1, max_tokens=400)
        await sink.until(tokens=3)
        supervisor.cancel(0)
        seen = len(sink.received)
        await sink.until()
    assert sink.finish is Finish.CANCELLED
    assert len(sink.received) <= seen + 2


async def test_refusals_of_the_worker_reach_the_sink(tmp_path: Path) -> None:
    async with serving(write_script(tmp_path, step_seconds=0.02), lanes=1, max_queue=1) as supervisor:
        too_long = RecordingSink()
        supervisor.submit(make_job(99, prompt=[65] * (WINDOW_TOKENS + 1)), too_long)
        await too_long.until()
        sinks = submit_all(supervisor, 3)
        await sinks[2].until()
    assert isinstance(too_long.error, ContextLengthExceededError)
    assert isinstance(sinks[2].error, QueueFullError)


async def test_load_failures_are_the_workers_own(tmp_path: Path) -> None:
    for script, leaf in (
        (tmp_path / "missing.json", ModelFileError),
        (write_script(tmp_path, load_error="no such tensor"), ModelLoadError),
    ):
        supervisor = WorkerSupervisor(settings(script), environment=ENVIRONMENT)
        with pytest.raises(leaf):
            await supervisor.start()
        await supervisor.stop()


async def test_worker_ends_when_the_daemon_dies(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, sys;"
        "from superfluid.worker.protocol import EngineSettings;"
        "from superfluid.worker.supervisor import WorkerSupervisor;"
        "s = WorkerSupervisor(EngineSettings(engine='fake', model='', lanes=1, window_tokens=64, max_queue=1),"
        " environment=os.environ);\n"
        "async def main():\n"
        "    await s.start()\n"
        "    print(s.worker_pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, env=ENVIRONMENT, stdout=asyncio.subprocess.PIPE
    )
    assert daemon.stdout is not None
    pid = int(await asyncio.wait_for(daemon.stdout.readline(), 20))
    daemon.kill()
    await daemon.wait()
    for _ in range(500):
        if not is_running(pid):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the worker outlived its daemon")


def is_running(pid: int) -> bool:
    """A zombie, whose new parent is slow, does not count as running."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_image_is_sized_by_the_worker(tmp_path: Path) -> None:
    script = write_script(tmp_path, image_tokens=6)
    blob, other = pool_image(tmp_path, picture(1)), pool_image(tmp_path, b"no image")
    async with serving(script, media_directory=str(tmp_path)) as supervisor:
        assert await supervisor.size_image(blob) == [60, -1, -1, -1, 124, -1, -1, -1, 62]
        with pytest.raises(InvalidValueError, match="no PNG"):
            await supervisor.size_image(other)
        with pytest.raises(EngineFaultError, match="not in the media pool"):
            await supervisor.size_image("0" * 64)


async def test_image_for_a_model_that_sees_none_is_refused_without_asking_the_worker() -> None:
    async with serving(None) as supervisor:
        with pytest.raises(UnsupportedInputError, match="sees no images"):
            await supervisor.size_image("0" * 64)


async def test_worker_that_ends_while_it_sizes_an_image_is_replaced_and_the_caller_told(tmp_path: Path) -> None:
    script = write_script(tmp_path, image_tokens=6)
    blob = pool_image(tmp_path, picture(1))
    async with serving(script, media_directory=str(tmp_path)) as supervisor:
        assert supervisor.worker_pid is not None
        os.kill(supervisor.worker_pid, signal.SIGSTOP)
        sizing = asyncio.ensure_future(supervisor.size_image(blob))
        await asyncio.sleep(0)
        os.kill(supervisor.worker_pid, signal.SIGKILL)
        with pytest.raises(WorkerFailedError, match="looked at the image"):
            await sizing
        with pytest.raises(ModelLoadingError, match="being replaced"):
            await supervisor.size_image(blob)
        sink = RecordingSink()
        supervisor.submit(make_job(1, max_tokens=3), sink)
        await sink.until()
        assert len(await supervisor.size_image(blob)) == 9
