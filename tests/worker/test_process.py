"""What a worker may inherit, and how its end is put into words."""

import asyncio
import os
import sys

import pytest
from tests.fixtures.child_processes import children

from superfluid.worker.process import WorkerExit, WorkerProcess, scrub_environment, worker_environment


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "hf_token",
        "SUPERFLUID_API_KEY",
        "OPENAI_API_KEY",
        "PGPASSWORD",
        "DB_PASSWORD_FILE",
        "CLIENT_SECRET",
        "AWS_SECRET_ACCESS_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ],
)
def test_variables_that_look_like_credentials_are_left_out(name: str) -> None:
    assert scrub_environment({name: "x", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize("name", ["HOME", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "SUPERFLUID_LLAMA_LIB", "KEYS"])
def test_other_variables_are_kept(name: str) -> None:
    assert scrub_environment({name: "x"}) == {name: "x"}


def test_worker_inherits_no_credential_and_calls_no_debugger_when_it_aborts() -> None:
    assert worker_environment({"HF_TOKEN": "x", "PATH": "/bin"}) == {"PATH": "/bin", "GGML_NO_BACKTRACE": "1"}


def test_exit_says_signal_code_or_fault() -> None:
    assert WorkerExit(-6, "", None).describe() == "died of SIGABRT"
    assert WorkerExit(3, "", None).describe() == "exited with code 3"
    assert WorkerExit(-9, "", "stopped answering").describe() == "stopped answering"
    assert WorkerExit(-200, "", None).describe() == "died of signal 200"


async def test_spawn_that_is_cancelled_before_it_is_connected_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connecting = asyncio.Event()

    async def never(*_arguments: object, **_options: object) -> None:
        connecting.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(asyncio.get_running_loop(), "create_unix_connection", never)
    command = (sys.executable, "-c", "import time; time.sleep(60)")
    before = children()
    spawning = asyncio.ensure_future(WorkerProcess.spawn(command, os.environ, lambda _: None, lambda _: None))
    await connecting.wait()
    assert children() > before
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    assert children() == before
