"""Exact mode and the disk on llama.cpp: what goes on from a KV file gives the tokens of a run that was never broken."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.fixtures.kv_files import SteppedKvFiles
from tests.fixtures.tick_loop import SteppedLoop, make_job, make_settings
from tests.fixtures.tiny_gguf import Architecture, write_tiny_model

from superfluid.domain.job import Job, ParkKind
from superfluid.domain.reply import Finish
from superfluid.domain.request import SamplingParams
from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.kvfiles.format import KvKey
from superfluid.worker.leftovers import SETTLE_SECONDS
from superfluid.worker.settings import KvFileSettings

SAMPLED = SamplingParams(temperature=0.8, top_k=40, seed=5)
PROMPT = np.random.default_rng(4).integers(97, 123, 300).tolist()
Start = Callable[..., "Worker"]


class Worker:
    """A tick loop on a real engine, and on the KV files of ``directory``."""

    def __init__(self, model: Path, directory: Path, *, lanes: int, window_tokens: int) -> None:
        options = LlamaOptions(lanes=lanes, window_tokens=window_tokens, flash_attention="off", threads=1)
        self.engine = LlamaEngine(model, options)
        self.files: list[SteppedKvFiles] = []
        kv_files = KvFileSettings(directory=str(directory), park_bytes=None, request_bytes=None)
        key = KvKey("tiny", self.engine.facts.state_key)
        self.loop = SteppedLoop(
            settings=msgspec.structs.replace(make_settings(lanes), kv_files=kv_files),
            engine=self.engine,
            kv_files=lambda post, clock: self._keep(SteppedKvFiles(directory, post, clock=clock, key=key)),
        )
        self.loop.take_events()

    def _keep(self, files: SteppedKvFiles) -> SteppedKvFiles:
        self.files.append(files)
        return files

    def run(self, job: Job) -> tuple[list[int], int]:
        """The job's tokens, and how many it had warm."""
        received = self.loop.submit(job)
        while received.finish is Finish.NONE:
            if not self.loop.tick():
                assert self.files[0].work()
                self.loop.take_events()
        return received.tokens, received.warm_tokens[0]

    def settle(self) -> None:
        self.loop.clock.now += SETTLE_SECONDS
        while self.loop.loop.park_one() or self.files[0].work():
            self.loop.take_events()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    workers: list[Worker] = []

    def open_worker(architecture: Architecture = "llama", *, lanes: int = 4, window_tokens: int = 1024) -> Worker:
        model = tmp_path / f"{architecture}.gguf"
        if not model.exists():
            write_tiny_model(model, seed=3, architecture=architecture)
        workers.append(Worker(model, tmp_path / "kv", lanes=lanes, window_tokens=window_tokens))
        return workers[-1]

    yield open_worker
    for worker in workers:
        worker.engine.close()


def job(tokens: list[int], max_tokens: int, *, prompt_tokens: int | None = None) -> Job:
    return make_job(
        tokens,
        max_tokens=max_tokens,
        prompt_tokens=prompt_tokens,
        sampling=SAMPLED,
        ignore_eos=True,
        session=7,
        park=ParkKind.SESSION,
    )


@pytest.mark.parametrize("cut_after", [1, 2, 17])
@pytest.mark.parametrize(("lanes", "window_tokens"), [(4, 1024), (1, 400)])
def test_cut_reply_goes_on_from_its_park_as_if_it_had_not_been_cut(
    start: Start, cut_after: int, lanes: int, window_tokens: int
) -> None:
    unbroken, _ = start().run(make_job(PROMPT, max_tokens=40, sampling=SAMPLED, ignore_eos=True))
    first = start()
    begun, _ = first.run(job(PROMPT, cut_after))
    first.settle()
    second = start(lanes=lanes, window_tokens=window_tokens)
    rest, warm = second.run(job([*PROMPT, *begun], 40 - cut_after, prompt_tokens=len(PROMPT)))
    assert warm == len(PROMPT) + cut_after - 1
    assert [*begun, *rest] == unbroken


def test_next_turn_from_a_park_is_that_of_a_worker_which_never_stopped(start: Start, tmp_path: Path) -> None:
    more = np.random.default_rng(5).integers(97, 123, 40).tolist()
    unbroken = start()
    reply, _ = unbroken.run(make_job(PROMPT, max_tokens=12, sampling=SAMPLED, ignore_eos=True))
    expected, _ = unbroken.run(make_job([*PROMPT, *reply, *more], max_tokens=40, sampling=SAMPLED, ignore_eos=True))
    first = start()
    assert first.run(job(PROMPT, 12))[0] == reply
    first.settle()
    second = start(lanes=2)
    assert second.run(job([*PROMPT, *reply, *more], 40)) == (expected, len(PROMPT) + 11)
    for path in (tmp_path / "kv").glob("*.kv"):
        path.unlink()
    cold, warm = start().run(make_job([*PROMPT, *reply, *more], max_tokens=40, sampling=SAMPLED, ignore_eos=True))
    assert (cold, warm) == (expected, 0)


def test_turn_from_a_copy_is_that_of_a_lane_which_was_never_lost(start: Start) -> None:
    more = np.random.default_rng(5).integers(97, 123, 120).tolist()
    other = np.random.default_rng(6).integers(97, 123, 200).tolist()
    unbroken = start()
    reply, _ = unbroken.run(job(PROMPT, 12))
    second, _ = unbroken.run(job([*PROMPT, *reply, *more], 40))
    branch, _ = unbroken.run(job([*PROMPT, *reply, *more[:20], *other[:20]], 40))
    worker = start(lanes=1)
    # On this clock a chunk takes as long as a save; computing is to be dear, as it is.
    worker.loop.loop._scheduler.rates.observe_prefill(1000, 1000.0)
    assert worker.run(job(PROMPT, 12))[0] == reply
    worker.settle()
    worker.run(make_job(other, max_tokens=4))
    assert worker.run(job([*PROMPT, *reply, *more], 40)) == (second, len(PROMPT) + 11)
    worker.settle()
    worker.run(make_job(other, max_tokens=4))
    branching = job([*PROMPT, *reply, *more[:20], *other[:20]], 40)
    assert worker.run(branching) == (branch, len(PROMPT) + len(reply) + 20)


@pytest.mark.parametrize("architecture", ["mamba", "gemma3"])
def test_state_that_cannot_be_cut_is_used_whole_or_not_at_all(start: Start, architecture: Architecture) -> None:
    first = start(architecture)
    reply, _ = first.run(job(PROMPT, 12))
    first.settle()
    second = start(architecture)
    _, warm = second.run(make_job([*PROMPT[:280], *PROMPT[:30]], max_tokens=4, sampling=SAMPLED))
    assert warm == 0
    tokens = [*PROMPT, *reply, *PROMPT[:30]]
    continued, warm = second.run(job(tokens, 12))
    assert warm == len(PROMPT) + 11
    assert continued == first.run(make_job(tokens, max_tokens=12, sampling=SAMPLED, ignore_eos=True))[0]


def test_file_of_another_model_is_not_touched(start: Start, tmp_path: Path) -> None:
    first = start()
    first.run(job(PROMPT, 12))
    first.settle()
    write_tiny_model(tmp_path / "llama.gguf", seed=4)
    _, warm = start().run(job(PROMPT, 4))
    assert warm == 0
