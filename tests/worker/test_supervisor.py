"""The supervisor against a stand-in worker: real processes, real sockets, scripted misbehaviour."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.fixtures import standin_worker
from tests.fixtures.child_processes import children
from tests.fixtures.job_sink import RecordingSink, make_job
from tests.fixtures.standin_worker import token_at

from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass
from superfluid.errors import (
    ContextLengthExceededError,
    EngineLibraryError,
    ModelFileError,
    ModelLoadError,
    ModelLoadingError,
    QueueFullError,
    ShuttingDownError,
    SuperfluidError,
    UsageError,
    WorkerFailedError,
)
from superfluid.worker.protocol import LogRecord, TickRecord
from superfluid.worker.restarts import RETRY_SECONDS
from superfluid.worker.settings import EngineSettings
from superfluid.worker.supervisor import WorkerSupervisor

SETTINGS = EngineSettings(engine="fake", model="", lanes=4, window_tokens=4096, max_queue=8)
OK: dict[str, Any] = {}


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def unix(self) -> float:
        return self.now


Start = Callable[..., contextlib.AbstractAsyncContextManager[WorkerSupervisor]]


@pytest.fixture
def supervisor_with(tmp_path: Path) -> Callable[..., WorkerSupervisor]:
    def make(*lives: dict[str, Any], timeout_seconds: float = 5.0, **options: Any) -> WorkerSupervisor:
        plan = json.dumps({"starts": str(tmp_path / "starts"), "lives": lives or (OK,)})
        options.setdefault("environment", {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        return WorkerSupervisor(
            SETTINGS,
            timeout_seconds=timeout_seconds,
            command=(sys.executable, standin_worker.__file__, plan),
            **options,
        )

    return make


@pytest.fixture
def running(supervisor_with: Callable[..., WorkerSupervisor]) -> Start:
    @contextlib.asynccontextmanager
    async def start(*lives: dict[str, Any], **options: Any) -> AsyncIterator[WorkerSupervisor]:
        supervisor = supervisor_with(*lives, **options)
        try:
            await supervisor.start()
            yield supervisor
        finally:
            await supervisor.stop()

    return start


def expected_tokens(prompt_tokens: int, count: int) -> list[int]:
    return [token_at(position) for position in range(prompt_tokens, prompt_tokens + count)]


async def next_pid(supervisor: WorkerSupervisor, old: int | None) -> int:
    await eventually(lambda: supervisor.worker_pid not in (None, old))
    assert supervisor.worker_pid is not None
    return supervisor.worker_pid


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not happen within thirty seconds")


async def test_start_returns_when_the_model_is_loaded(running: Start) -> None:
    async with running() as supervisor:
        assert supervisor.is_ready
        assert supervisor.facts.architecture == "standin"


async def test_facts_before_the_load_raise_model_loading(supervisor_with: Callable[..., WorkerSupervisor]) -> None:
    supervisor = supervisor_with()
    sink = RecordingSink()
    supervisor.submit(make_job(1), sink)
    assert not supervisor.is_ready
    assert isinstance(sink.error, ModelLoadingError)
    with pytest.raises(ModelLoadingError):
        _ = supervisor.facts


async def test_submit_delivers_start_tokens_and_finish_in_order(running: Start) -> None:
    async with running({"warm": 2}) as supervisor:
        sink = RecordingSink()
        supervisor.submit(make_job(1), sink)
        await sink.until()
    assert sink.warm_tokens == 2
    assert sink.received == expected_tokens(3, 20)
    assert sink.finish is Finish.LENGTH


async def test_cancel_ends_the_job_as_cancelled(running: Start) -> None:
    async with running() as supervisor:
        sink = RecordingSink()
        supervisor.submit(make_job(1, max_tokens=100_000), sink)
        await sink.until(tokens=3)
        supervisor.cancel(1)
        supervisor.cancel(99)
        await sink.until()
    assert sink.finish is Finish.CANCELLED


@pytest.mark.parametrize(
    ("code", "leaf"),
    [("queue_full", QueueFullError), ("context_length_exceeded", ContextLengthExceededError)],
)
async def test_rejection_reaches_the_sink_as_its_leaf(running: Start, code: str, leaf: type[SuperfluidError]) -> None:
    async with running({"reject": [code, "no"]}) as supervisor:
        sink = RecordingSink()
        supervisor.submit(make_job(1), sink)
        await sink.until()
    assert type(sink.error) is leaf
    assert sink.error.message == "no"


@pytest.mark.parametrize(
    ("code", "leaf"),
    [
        ("model_file", ModelFileError),
        ("model_load", ModelLoadError),
        ("engine_library", EngineLibraryError),
        ("usage", UsageError),
        ("something_else", ModelLoadError),
    ],
)
async def test_load_failed_raises_the_leaf_of_its_code(
    supervisor_with: Callable[..., WorkerSupervisor], code: str, leaf: type[SuperfluidError]
) -> None:
    supervisor = supervisor_with({"load_failed": [code, "the reason"]})
    with pytest.raises(leaf, match="the reason"):
        await supervisor.start()
    await supervisor.stop()


async def test_death_while_loading_names_signal_and_last_line(
    supervisor_with: Callable[..., WorkerSupervisor],
) -> None:
    supervisor = supervisor_with({"print": ["GGML_ASSERT(n_tensors) failed"], "die_loading": signal.SIGABRT})
    with pytest.raises(ModelLoadError, match=r"died of SIGABRT.*GGML_ASSERT\(n_tensors\) failed"):
        await supervisor.start()
    assert supervisor.worker_pid is None


async def test_exit_while_loading_names_the_code(supervisor_with: Callable[..., WorkerSupervisor]) -> None:
    with pytest.raises(ModelLoadError, match="exited with code 7"):
        await supervisor_with({"exit_loading": 7}).start()


async def test_program_that_does_not_exist_is_a_typed_error() -> None:
    supervisor = WorkerSupervisor(SETTINGS, environment={}, command=("/nonexistent/worker",))
    with pytest.raises(WorkerFailedError, match="could not be started"):
        await supervisor.start()


async def test_stop_while_loading_ends_start_with_shutting_down(
    supervisor_with: Callable[..., WorkerSupervisor],
) -> None:
    supervisor = supervisor_with({"hang_loading": True})
    start = asyncio.create_task(supervisor.start())
    await next_pid(supervisor, None)
    await supervisor.stop()
    with pytest.raises(ShuttingDownError):
        await start


async def test_death_in_mid_stream_continues_with_the_same_tokens(running: Start) -> None:
    async with running({"die_after": 5}, {"die_after": 4}, OK) as supervisor:
        sinks = [RecordingSink() for _ in range(3)]
        for job_id, sink in enumerate(sinks):
            supervisor.submit(make_job(job_id, prompt=range(job_id + 1)), sink)
        for sink in sinks:
            await sink.until()
        assert supervisor.statistics().respawns_total == 2
        assert supervisor.statistics().failures == 0
    for job_id, sink in enumerate(sinks):
        assert sink.received == expected_tokens(job_id + 1, 20)
        assert sink.finish is Finish.LENGTH


async def test_stopped_worker_is_replaced_and_the_stream_continues(running: Start) -> None:
    async with running({"hang_after": 5}, OK, timeout_seconds=1.0) as supervisor:
        sink = RecordingSink()
        supervisor.submit(make_job(1), sink)
        await sink.until()
        assert supervisor.statistics().respawns_total >= 1
    assert sink.received == expected_tokens(3, 20)


async def test_idle_worker_that_is_stopped_is_noticed(running: Start) -> None:
    async with running(timeout_seconds=1.0) as supervisor:
        pid = supervisor.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await next_pid(supervisor, pid)


async def test_worker_that_does_not_answer_pings_is_replaced(running: Start) -> None:
    async with running({"is_silent": True}, OK, timeout_seconds=1.0) as supervisor:
        await next_pid(supervisor, supervisor.worker_pid)


@pytest.mark.parametrize("fault", ["garbage_after", "ragged_after", "close_after"])
async def test_broken_connection_replaces_the_worker_and_continues(running: Start, fault: str) -> None:
    async with running({fault: 5}, OK) as supervisor:
        sink = RecordingSink()
        supervisor.submit(make_job(1), sink)
        await sink.until()
    assert sink.received == expected_tokens(3, 20)


async def test_resubmission_is_not_counted_as_a_new_request(running: Start) -> None:
    async with running({"die_after": 5}, OK) as supervisor:
        sink = RecordingSink()
        supervisor.submit(make_job(1), sink)
        await sink.until()
        assert supervisor.statistics().cold_admissions_total == 1


async def test_counters_stay_monotonic_over_a_respawn(running: Start) -> None:
    seen: list[int] = []
    records: list[TickRecord] = []
    async with running({"die_after": 7}, OK, on_tick=records.append) as supervisor:
        sink = RecordingSink()
        supervisor.submit(make_job(1), sink)
        while not sink.is_done:
            await sink.until(tokens=len(sink.received) + 1)
            seen.append(supervisor.statistics().decode_tokens_total)
        statistics = supervisor.statistics()
    assert seen == sorted(seen)
    assert statistics.decode_tokens_total == statistics.ticks_total == len(records) == 20
    assert sum(statistics.first_token.counts) == 2


async def test_three_failures_in_a_row_fail_every_job(running: Start) -> None:
    async with running({"die_after": 3}, {"die_after": 0}, {"exit_loading": 1}, OK) as supervisor:
        sinks = [RecordingSink() for _ in range(3)]
        for job_id, sink in enumerate(sinks):
            supervisor.submit(make_job(job_id), sink)
        for sink in sinks:
            await sink.until()
        late = RecordingSink()
        supervisor.submit(make_job(9), late)
        assert not supervisor.is_ready
    assert all(isinstance(sink.error, WorkerFailedError) for sink in [*sinks, late])
    assert sinks[0].received == expected_tokens(3, 3)


async def test_submit_after_the_wait_starts_a_new_worker(running: Start) -> None:
    clock = FakeClock()
    async with running({"die_after": 0}, {"die_after": 0}, {"die_after": 0}, OK, clock=clock) as supervisor:
        sink = RecordingSink()
        supervisor.submit(make_job(1), sink)
        await sink.until()
        clock.now += RETRY_SECONDS
        late = RecordingSink()
        supervisor.submit(make_job(2), late)
        assert isinstance(late.error, WorkerFailedError)
        await eventually(lambda: supervisor.is_ready)
        good = RecordingSink()
        supervisor.submit(make_job(3), good)
        await good.until()
    assert good.finish is Finish.LENGTH


async def test_jobs_submitted_without_a_worker_wait_for_the_next(running: Start, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with running(OK, {"warm": 1, "load_when": str(go)}) as supervisor:
        pid = supervisor.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await next_pid(supervisor, pid)
        sink, cancelled = RecordingSink(), RecordingSink()
        supervisor.submit(make_job(1, qos=QosClass.BACKGROUND), sink)
        supervisor.submit(make_job(2), cancelled)
        supervisor.cancel(2)
        assert cancelled.finish is Finish.CANCELLED
        assert supervisor.statistics().queue_depth == (0, 0, 0, 1)
        go.touch()
        await sink.until()
    assert sink.warm_tokens == 1


async def test_jobs_submitted_without_a_worker_are_bounded(running: Start) -> None:
    async with running(OK, {"hang_loading": True}) as supervisor:
        pid = supervisor.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await next_pid(supervisor, pid)
        sinks = [RecordingSink() for _ in range(SETTINGS.lanes + SETTINGS.max_queue + 1)]
        for job_id, sink in enumerate(sinks):
            supervisor.submit(make_job(job_id), sink)
        assert [type(sink.error) for sink in sinks[-2:]] == [type(None), QueueFullError]
    assert isinstance(sinks[0].error, ShuttingDownError)


async def test_drain_waits_for_running_jobs_and_refuses_new_ones(running: Start) -> None:
    async with running() as supervisor:
        sink, late = RecordingSink(), RecordingSink()
        supervisor.submit(make_job(1, max_tokens=50), sink)
        await sink.until(tokens=1)
        drain = asyncio.create_task(supervisor.drain(10))
        await asyncio.sleep(0)
        supervisor.submit(make_job(2), late)
        assert await drain
    assert sink.finish is Finish.LENGTH
    assert isinstance(late.error, ShuttingDownError)


async def test_drain_that_runs_out_of_time_leaves_the_rest_to_stop(running: Start) -> None:
    async with running() as supervisor:
        sink = RecordingSink()
        supervisor.submit(make_job(1, max_tokens=1_000_000), sink)
        assert not await supervisor.drain(0.05)
    assert isinstance(sink.error, ShuttingDownError)


async def test_stop_kills_a_worker_that_does_not_stop(running: Start) -> None:
    async with running({"is_deaf_to_stop": True}) as supervisor:
        await supervisor.stop(grace_seconds=0.1)
        await supervisor.stop()
        assert supervisor.worker_pid is None


async def test_raising_sink_loses_its_own_job_only(running: Start) -> None:
    class Broken(RecordingSink):
        def tokens(self, tokens: object, scores: object) -> None:
            raise RuntimeError("a bug")

    async with running() as supervisor:
        broken, sink = Broken(), RecordingSink()
        supervisor.submit(make_job(1), broken)
        supervisor.submit(make_job(2), sink)
        await sink.until()
        assert supervisor.statistics().respawns_total == 0
    assert sink.received == expected_tokens(3, 20)


async def test_worker_debug_lines_go_to_stderr_as_they_are_past_the_log(
    running: Start, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO):
        async with running({"print": ["[tick] secs=0.001", "other"]}) as supervisor:
            sink = RecordingSink()
            supervisor.submit(make_job(1), sink)
            await sink.until()
    assert "[tick] secs=0.001\n" in capsys.readouterr().err
    assert "[tick]" not in caplog.text
    assert "other" in caplog.text


async def test_worker_output_and_log_records_reach_the_daemon(running: Start, caplog: pytest.LogCaptureFixture) -> None:
    records: list[LogRecord] = []
    with caplog.at_level(logging.INFO):
        async with running({"print": ["x" * 20_000, "second"]}, on_log=records.append) as supervisor:
            supervisor.set_log_filter("debug")
            sink = RecordingSink()
            supervisor.submit(make_job(1), sink)
            await sink.until()
    lines = [r.getMessage() for r in caplog.records if r.name == "superfluid_daemon::worker"]
    assert lines == ["x" * 16384, "x" * (20_000 - 16384), "second"]
    assert [record.message for record in records] == ["loaded", "filter debug"]


async def test_background_rate_reaches_the_worker_and_every_later_one(running: Start) -> None:
    records: list[LogRecord] = []
    async with running({"die_after": 3}, OK, on_log=records.append) as supervisor:
        supervisor.set_background_rate(4)
        supervisor.set_background_rate(3)
        sink = RecordingSink()
        supervisor.submit(make_job(1), sink)
        await sink.until()
    said = [record.message for record in records if record.message != "loaded"]
    assert said == ["rate 4", "rate 3", "rate 3"]


async def test_background_rate_set_while_the_worker_loads_reaches_it(
    supervisor_with: Callable[..., WorkerSupervisor], tmp_path: Path
) -> None:
    records: list[LogRecord] = []
    supervisor = supervisor_with({"load_when": str(tmp_path / "go")}, on_log=records.append)
    starting = asyncio.ensure_future(supervisor.start())
    await eventually(lambda: supervisor.worker_pid is not None)
    supervisor.set_background_rate(2)
    (tmp_path / "go").touch()
    await starting
    await eventually(lambda: len(records) > 1)
    await supervisor.stop()
    assert [record.message for record in records] == ["loaded", "rate 2"]


async def test_worker_environment_has_no_credentials(running: Start, caplog: pytest.LogCaptureFixture) -> None:
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "HF_TOKEN": "a",
        "superfluid_api_key": "b",
        "DB_PASSWORD_FILE": "c",
        "MY_SECRET_THING": "d",
        "OMP_NUM_THREADS": "1",
    }
    with caplog.at_level(logging.INFO):
        async with running({"echo_environment": True}, environment=environment):
            pass
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("environment ")]
    names = set(line.split())
    assert "OMP_NUM_THREADS" in names
    assert not names & {"HF_TOKEN", "superfluid_api_key", "DB_PASSWORD_FILE", "MY_SECRET_THING"}


async def test_worker_has_its_own_session(running: Start) -> None:
    async with running() as supervisor:
        pid = supervisor.worker_pid
        assert pid is not None
        assert os.getsid(pid) == pid
        assert os.getpgid(pid) == pid


def test_uvloop_carries_the_stream_over_death_wedge_and_garbage(running: Start) -> None:
    async def scenario() -> list[int]:
        lives = ({"die_after": 5}, {"hang_after": 3}, {"garbage_after": 2}, OK)
        async with running(*lives, timeout_seconds=1.0) as supervisor:
            sink = RecordingSink()
            supervisor.submit(make_job(1), sink)
            await sink.until()
        return sink.received

    assert uvloop.run(scenario()) == expected_tokens(3, 20)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
async def test_respawns_leak_no_descriptors_and_no_zombies(running: Start) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async with running() as warm_up:
        assert warm_up.is_ready
    before, processes = descriptors(), children()
    async with running({"die_after": 2}, {"die_after": 2}, {"hang_after": 2}, OK, timeout_seconds=1.0) as supervisor:
        sink = RecordingSink()
        supervisor.submit(make_job(1), sink)
        await sink.until()
    await asyncio.sleep(0)
    assert descriptors() == before
    assert children() == processes
