"""The worker as a process: its hand-shake, its ends, and what it does when the daemon is gone."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.tick_loop import cold_reply, make_job, make_settings, words

from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass
from superfluid.worker.frames import FrameBuffer, decode_from_worker, encode_frame
from superfluid.worker.protocol import (
    Cancel,
    FromWorker,
    Load,
    LoadFailed,
    LogRecord,
    Ping,
    Placed,
    Pong,
    Ready,
    SetLogFilter,
    Stop,
    Submit,
    Tick,
    TickStarted,
    ToWorker,
)
from superfluid.worker.settings import EngineSettings

_SOURCE = Path(__file__).parents[2] / "src"
_DEADLINE_SECONDS = 20


class _Worker:
    """A spawned worker and this end of its socket."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(_DEADLINE_SECONDS)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "superfluid.worker", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env={**os.environ, "PYTHONPATH": str(_SOURCE)},
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        self._frames = FrameBuffer()
        self._messages: list[FromWorker] = []

    def send(self, message: ToWorker) -> None:
        self.socket.sendall(encode_frame(message))

    def receive(self) -> FromWorker:
        """The next message that is not about a tick that has only begun."""
        while isinstance(message := self._next(), TickStarted | Placed):
            pass
        return message

    def wait_until_a_long_tick_begins(self) -> None:
        while not isinstance(self._next(), TickStarted):
            pass

    def finish_of(self, job_id: int) -> Finish:
        """Waits for it."""
        while True:
            message = self.receive()
            for output in message.outputs if isinstance(message, Tick) else ():
                if output.job_id == job_id and output.finish is not Finish.NONE:
                    return output.finish

    def _next(self) -> FromWorker:
        while not self._messages:
            data = self.socket.recv(1 << 16)
            assert data, "the worker hung up"
            self._messages += [decode_from_worker(payload) for payload in self._frames.feed(data)]
        return self._messages.pop(0)

    def load(self, settings: EngineSettings) -> Ready:
        self.send(Load(settings, "info"))
        ready = self.receive()
        assert isinstance(ready, Ready)
        return ready

    def exit_code(self) -> int:
        return self.process.wait(_DEADLINE_SECONDS)


@pytest.fixture
def worker() -> Iterator[_Worker]:
    spawned = _Worker()
    yield spawned
    spawned.socket.close()
    spawned.process.kill()
    spawned.process.communicate()


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., EngineSettings]:
    def write(**script: object) -> EngineSettings:
        path = tmp_path / "script.json"
        path.write_text(json.dumps(script))
        settings = make_settings(2)
        return EngineSettings(
            engine="fake", model=str(path), lanes=settings.lanes, window_tokens=None, max_queue=settings.max_queue
        )

    return write


def test_main_serves_a_job_answers_pings_and_stops(worker: _Worker) -> None:
    assert worker.load(make_settings(2)).facts.lanes == 2
    job = make_job(words(1, 40), max_tokens=6)
    worker.send(Submit(job))
    worker.send(Ping(3))
    tokens: list[int] = []
    finish = Finish.NONE
    has_pong = False
    while finish is Finish.NONE or not has_pong:
        message = worker.receive()
        match message:
            case Tick(outputs, _):
                for output in outputs:
                    tokens += np.frombuffer(output.tokens, "<i4").tolist()
                    finish = output.finish
            case Pong(sequence):
                has_pong = sequence == 3
            case _:
                raise AssertionError(message)
    assert tokens == cold_reply(job)
    worker.send(Stop())
    assert worker.exit_code() == 0


def test_main_load_failure_is_reported_and_exits_with_three(
    worker: _Worker, scripted: Callable[..., EngineSettings]
) -> None:
    worker.send(Load(scripted(load_error="not enough memory"), "info"))
    assert worker.receive() == LoadFailed("model_load", "not enough memory")
    assert worker.exit_code() == 3


def test_main_missing_model_file_is_the_files_fault(worker: _Worker) -> None:
    settings = EngineSettings(engine="fake", model="/nowhere/x.json", lanes=1, window_tokens=None, max_queue=1)
    worker.send(Load(settings, "info"))
    failure = worker.receive()
    assert isinstance(failure, LoadFailed)
    assert failure.code == "model_file"


def test_main_daemon_gone_in_the_middle_of_a_step_exits_at_once(
    worker: _Worker, scripted: Callable[..., EngineSettings]
) -> None:
    """The short job goes first; when its tick is reported, the first chunk of the long one (at least 7 s) has begun."""
    worker.load(scripted(token_seconds=0.5))
    for length in (2, 400):
        worker.send(Submit(make_job(words(length, length), max_tokens=1)))
    assert isinstance(worker.receive(), Tick)
    started = time.monotonic()
    worker.socket.close()
    assert worker.exit_code() == 0
    assert time.monotonic() - started < 5


def test_main_cancelled_prompt_does_not_wait_for_its_chunk(
    worker: _Worker, scripted: Callable[..., EngineSettings]
) -> None:
    """The chunk would take an hour."""
    worker.load(scripted(token_seconds=100))
    job = make_job(words(1, 40))
    worker.send(Submit(job))
    worker.wait_until_a_long_tick_begins()
    worker.send(Cancel(job.job_id))
    assert worker.finish_of(job.job_id) is Finish.CANCELLED


def test_main_chat_does_not_wait_for_an_agents_chunk(worker: _Worker, scripted: Callable[..., EngineSettings]) -> None:
    """The rest of the agent's chunk would take an hour; the chat's is what the worker begins next."""
    worker.load(scripted(token_seconds=100))
    worker.send(Submit(make_job(words(1, 40))))
    worker.wait_until_a_long_tick_begins()
    chat = make_job(words(2, 20), qos=QosClass.INTERACTIVE)
    worker.send(Submit(chat))
    worker.wait_until_a_long_tick_begins()
    worker.send(Cancel(chat.job_id))
    assert worker.finish_of(chat.job_id) is Finish.CANCELLED


def test_main_interrupt_from_the_terminal_is_ignored(worker: _Worker) -> None:
    worker.load(make_settings(1))
    worker.process.send_signal(signal.SIGINT)
    worker.send(Ping(1))
    assert worker.receive() == Pong(1)


def test_main_frame_of_nonsense_ends_the_worker_with_a_reason(worker: _Worker) -> None:
    worker.load(make_settings(1))
    worker.socket.sendall(b"\x01\x00\x00\x00\xc1")
    assert worker.exit_code() == 1
    assert worker.process.stderr is not None
    assert "does not decode" in worker.process.stderr.read()


def test_main_log_records_arrive_as_frames_down_to_the_level_asked_for(
    worker: _Worker, scripted: Callable[..., EngineSettings]
) -> None:
    worker.load(scripted(fault_steps=[1, 2]))
    worker.send(Submit(make_job(words(1, 40))))
    record = worker.receive()
    assert isinstance(record, LogRecord)
    assert record.target == "superfluid_daemon::engine"
    worker.send(SetLogFilter("off"))
    worker.send(Submit(make_job(words(1, 40))))
    while not isinstance(message := worker.receive(), Pong):
        assert not isinstance(message, LogRecord)
        worker.send(Ping(1))


def test_main_bug_in_the_loop_is_told_and_exits_with_failure(
    worker: _Worker, scripted: Callable[..., EngineSettings]
) -> None:
    # The first must still run when the second comes, however long that takes.
    worker.load(scripted(token_seconds=0.1))
    job = make_job(words(1, 40), max_tokens=100_000)
    worker.send(Submit(job))
    worker.send(Submit(job))  # breaks an invariant: ids are unique
    assert worker.exit_code() == 1
    assert worker.process.stderr is not None
    assert "AssertionError" in worker.process.stderr.read()


def test_main_wrong_call_is_explained() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "superfluid.worker"],
        env={**os.environ, "PYTHONPATH": str(_SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "started by the daemon" in result.stderr
