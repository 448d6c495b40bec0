"""Adapters are tried out where nobody's stream is: by real processes, on the fake engine and on llama.cpp."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest
from tests.fixtures.child_processes import children
from tests.fixtures.tiny_gguf import write_tiny_model
from tests.fixtures.tiny_lora import DEADLY, write_deadly_lora, write_tiny_lora

from superfluid.errors import AdapterRefusedError, WorkerFailedError
from superfluid.worker.adapter_trial import AdapterTrial
from superfluid.worker.settings import EngineSettings

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
SLEEPER = (sys.executable, "-c", "import sys, time; open(sys.argv[1], 'w').write('x'); time.sleep(600)")


def _trial(model: str = "", *, engine: str = "fake") -> AdapterTrial:
    settings = EngineSettings(
        engine="llamacpp" if engine == "llamacpp" else "fake", model=model, lanes=4, window_tokens=None, max_queue=8
    )
    return AdapterTrial(settings, environment=ENVIRONMENT)


def _file(tmp_path: Path, name: str, more: bytes = b"") -> str:
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(b"GGUF" + more)
    return str(path)


async def test_trial_of_a_sound_file_gives_its_fingerprint_and_of_a_changed_one_another(tmp_path: Path) -> None:
    trial, path = _trial(), _file(tmp_path, "good")
    first = await trial.fingerprint(path)
    assert first == await trial.fingerprint(path)
    _file(tmp_path, "good", b"and more")
    assert await trial.fingerprint(path) != first


async def test_trial_refuses_what_the_engine_refuses_in_its_words(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"no GGUF")
    with pytest.raises(AdapterRefusedError, match="is no GGUF file"):
        await _trial().fingerprint(str(tmp_path / "bad"))


@pytest.mark.parametrize("kind", DEADLY)
async def test_trial_of_a_file_that_ends_llama_cpp_refuses_it(tmp_path: Path, kind: str) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    path = write_deadly_lora(tmp_path / "deadly.gguf", kind)
    with pytest.raises(AdapterRefusedError, match="is damaged: a process that tried it died of SIG"):
        await _trial(str(model), engine="llamacpp").fingerprint(str(path))


async def test_trial_takes_a_sound_file_on_llama_cpp(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    path = write_tiny_lora(tmp_path / "good.gguf")
    assert await _trial(str(model), engine="llamacpp").fingerprint(str(path))


async def test_trial_that_does_not_come_back_is_ended_and_the_file_refused(tmp_path: Path) -> None:
    settings = EngineSettings(engine="fake", model="", lanes=1, window_tokens=None, max_queue=8)
    command = (*SLEEPER, str(tmp_path / "started"))
    trial = AdapterTrial(settings, environment=ENVIRONMENT, command=command, timeout_seconds=0.05)
    with pytest.raises(AdapterRefusedError, match="was not done after"):
        await trial.fingerprint("a")


async def test_trial_that_somebody_kills_says_nothing_of_the_file() -> None:
    settings = EngineSettings(engine="fake", model="", lanes=1, window_tokens=None, max_queue=8)
    command = (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(WorkerFailedError, match="died of SIGKILL"):
        await AdapterTrial(settings, environment=ENVIRONMENT, command=command).fingerprint("a")


async def test_cancelled_trial_leaves_no_process_and_lets_the_next_one_begin(tmp_path: Path) -> None:
    settings = EngineSettings(engine="fake", model="", lanes=1, window_tokens=None, max_queue=8)
    started = tmp_path / "started"
    trial = AdapterTrial(settings, environment=ENVIRONMENT, command=(*SLEEPER, str(started)))
    before = children()
    trying = asyncio.ensure_future(trial.fingerprint("a"))
    deadline = time.monotonic() + 20
    while children() == before or not started.exists():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(trying, 20)
    assert children() == before


async def test_trial_without_a_model_says_that_it_could_not_be_made(tmp_path: Path) -> None:
    trial = _trial(str(tmp_path / "gone.gguf"), engine="llamacpp")
    with pytest.raises(WorkerFailedError, match="could not be tried out: there is no model file"):
        await trial.fingerprint(_file(tmp_path, "good"))
