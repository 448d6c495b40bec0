"""Everything that can happen to a worker, in an order drawn by a seed: replies are what they would have been alone,
each job ends once, the books agree after every step, and of a forgotten session nothing is left."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.fixtures.kv_files import SteppedKvFiles
from tests.fixtures.tick_loop import (
    CostlyEngine,
    Received,
    SteppedClock,
    SteppedLoop,
    cold_reply,
    make_job,
    make_settings,
    words,
)

from superfluid.domain.job import Job, ParkKind
from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass, SamplingParams
from superfluid.engine.fake_script import FakeScript
from superfluid.kvfiles.format import KvKey
from superfluid.kvfiles.names import KvName, parse_name
from superfluid.scheduling.pressure import PressureLevel
from superfluid.worker.protocol import Forget, LoadAdapter, SetBackgroundRate, SetPin, UnloadAdapter
from superfluid.worker.settings import KvFileSettings

# More seeds find more: a hundred take fifteen seconds.
SEEDS = range(20)
STEPS = 260
LANES = 4
SESSIONS = 5
MOST_TICKS = 20_000
# Room for a few files.
BUDGETS: Mapping[ParkKind, int | None] = {ParkKind.SESSION: 20_000, ParkKind.REQUEST: 10_000}
SAMPLED = SamplingParams(temperature=1.5, top_p=0.9, seed=11)


@dataclass
class Running:
    job: Job
    received: Received

    @property
    def is_over(self) -> bool:
        return self.received.finish is not Finish.NONE or self.received.rejection is not None


class Everything:
    """One directory, and one worker after the other on it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        # One half with an engine that is exact, the other with one whose decode steps read prompts along.
        self._script = FakeScript(flash_attention=seed % 2 == 1)
        self._draw = random.Random(seed)
        self._streams = {session: words(session, 300) for session in range(1, SESSIONS + 1)}
        self._next_session = SESSIONS + 1
        self._forgotten: set[int] = set()
        self._forgets = 0
        self._adapters: set[int] = set()
        self._last_adapter = 0
        self._running: list[Running] = []
        self._pressure = PressureLevel.NONE
        self._open()

    def run(self) -> None:
        steps: list[Callable[[], None]] = [
            self._submit, self._submit, self._submit, self._tick, self._tick, self._tick, self._tick, self._some_ticks,
            self._some_ticks, self._settle, self._settle, self._write, self._write, self._deliver, self._deliver,
            self._cancel, self._forget, self._pin, self._lose_a_file, self._press, self._slow_down, self._restart,
            self._rest, self._rest, self._load, self._unload, self._crowd,
        ]  # fmt: skip
        for _ in range(STEPS):
            self._draw.choice(steps)()
            self._loop.loop.check_integrity()
        self._finish()

    # ---- what can happen

    def _submit(self) -> None:
        session = self._draw.choice(list(self._streams))
        if any(running.job.session == session and not running.is_over for running in self._running):
            return
        kind = self._draw.choice(list(ParkKind))
        job = make_job(
            self._streams[session],
            max_tokens=self._draw.randrange(1, 20),
            sampling=SAMPLED,
            session=session,
            park=kind,
            qos=self._draw.choice(list(QosClass)),
            adapter=self._draw.choice([0, 0, *self._adapters]),
        )
        self._running.append(Running(job, self._loop.submit(job)))

    def _crowd(self) -> None:
        """Some read their prompts while others, on the lanes around them, reply."""
        for _ in range(2 * LANES):
            self._submit()
            self._tick()

    def _tick(self) -> None:
        self._loop.tick()
        self._take_replies()

    def _some_ticks(self) -> None:
        for _ in range(self._draw.randrange(30)):
            self._tick()

    def _settle(self) -> None:
        self._loop.clock.now += self._draw.choice((0.05, 0.2, 1.0, 11.0))
        self._loop.loop.park_one()

    def _write(self) -> None:
        self._files.work_once(is_read=self._draw.random() < 0.5)

    def _deliver(self) -> None:
        self._loop.take_events()

    def _cancel(self) -> None:
        if self._running:
            self._loop.cancel(self._draw.choice(self._running).job)

    def _forget(self) -> None:
        """Its jobs are cancelled first, and may be in the middle of a reply."""
        session = self._draw.choice(list(self._streams))
        for running in self._running:
            if running.job.session == session:
                self._loop.cancel(running.job)
        self._forgets += 1
        self._loop.loop.take(Forget(self._forgets, [session]))
        del self._streams[session]
        self._forgotten.add(session)
        self._streams[self._next_session] = words(self._next_session % SESSIONS, 300)
        self._next_session += 1

    def _pin(self) -> None:
        session = self._draw.choice(list(self._streams))
        deadline = self._draw.choice((0.0, self._loop.clock.unix() + 0.3, self._loop.clock.unix() + 100))
        self._loop.loop.take(SetPin(session, int(deadline * 1000)))

    def _lose_a_file(self) -> None:
        files = sorted(self._directory.glob("*.kv"))
        if files:
            path = self._draw.choice(files)
            if self._draw.random() < 0.5:
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[:-1])

    def _press(self) -> None:
        self._pressure = self._draw.choice(list(PressureLevel))

    def _slow_down(self) -> None:
        self._loop.loop.take(SetBackgroundRate(self._draw.randrange(1, 4)))

    def _load(self) -> None:
        """Numbers are used once."""
        self._last_adapter += 1
        self._adapters.add(self._last_adapter)
        self._adapter_file(self._last_adapter).write_bytes(b"GGUF%d" % self._last_adapter)
        self._load_again(self._last_adapter)

    def _unload(self) -> None:
        if self._adapters:
            adapter = self._draw.choice(list(self._adapters))
            self._adapters.discard(adapter)
            self._loop.loop.take(UnloadAdapter(adapter))

    def _restart(self) -> None:
        """The worker is lost, with what its threads had not done yet."""
        left = [running for running in self._running if not running.is_over]
        self._open()
        self._running = []
        wanted = {running.job.adapter for running in left} - {0}
        for adapter in self._adapters | wanted:
            self._load_again(adapter)
        for running in left:
            if running.job.session in self._forgotten:
                continue
            received = running.received.tokens
            job = msgspec.structs.replace(
                running.job,
                tokens=running.job.tokens + np.array(received, "<i4").tobytes(),
                max_tokens=running.job.max_tokens - len(received),
                is_resubmission=True,
            )
            self._running.append(Running(job, self._loop.submit(job)))
        for adapter in wanted - self._adapters:
            self._loop.loop.take(UnloadAdapter(adapter))

    def _rest(self) -> None:
        """Nobody wants anything for a while."""
        for _ in range(40):
            self._tick()
        self._loop.clock.now += 1.0
        while self._loop.loop.park_one():
            self._files.work()
        self._loop.take_events()

    # ----

    def _adapter_file(self, adapter: int) -> Path:
        return self._directory.with_name(f"adapter-{adapter}")

    def _load_again(self, adapter: int) -> None:
        self._loop.loop.take(LoadAdapter(adapter, str(self._adapter_file(adapter))))
        assert self._loop.adapters_loaded[-1].code == ""

    def _open(self) -> None:
        settings = msgspec.structs.replace(
            make_settings(LANES, host_cache_bytes=40_000, max_queue=6),
            kv_files=KvFileSettings(directory=str(self._directory), park_bytes=None, request_bytes=None),
        )
        made: list[OneByOneKvFiles] = []

        def make(post: object, clock: SteppedClock) -> OneByOneKvFiles:
            made.append(OneByOneKvFiles(self._directory, post, clock=clock, budgets=BUDGETS, key=KvKey("m", "s")))  # type: ignore[arg-type]
            return made[-1]

        clock = SteppedClock()
        engine = CostlyEngine(self._script, lanes=LANES, clock=clock, window_tokens=1000)
        self._loop = SteppedLoop(
            None, settings, engine, clock=clock, kv_files=make, read_pressure=lambda: self._pressure
        )
        (self._files,) = made
        self._loop.take_events()
        # What the daemon does where the worker could not.
        for path in self._directory.iterdir():
            name = parse_name(path.name)
            if name is not None and name.owner in self._forgotten:
                path.unlink()

    def _take_replies(self) -> None:
        for running in [running for running in self._running if running.is_over]:
            self._running.remove(running)
            job, received = running.job, running.received
            if received.rejection is not None:
                assert received.rejection == "queue_full"
                continue
            expected = cold_reply(job, adapter=self._adapter_file(job.adapter) if job.adapter else None)
            if received.finish is Finish.CANCELLED:
                expected = expected[: len(received.tokens)]
            assert received.tokens == expected
            stream = [*np.frombuffer(job.tokens, "<i4").tolist(), *received.tokens]
            if job.session in self._streams and len(stream) < 700:
                self._streams[job.session] = [*stream, *words(self._draw.randrange(100), 20)]

    def _finish(self) -> None:
        """Whoever waits gets what he waits for, and then all is quiet."""
        self._pressure = PressureLevel.NONE
        for _ in range(MOST_TICKS):
            is_busy = self._loop.tick()
            self._take_replies()
            is_busy |= self._files.work() > 0
            self._loop.take_events()
            if not is_busy and not self._running:
                break
            if not is_busy:
                self._loop.clock.now += 1.0
        assert self._running == []
        self._loop.clock.now += 1.0
        self._rest()
        self._loop.loop.check_integrity()
        resuming = self._loop.loop._parking._resuming
        assert resuming is not None
        assert list(resuming.deadlines) == []
        assert [name for name in self._names() if name.owner in self._forgotten] == []
        assert self._owners() & self._forgotten == set()

    def _names(self) -> Iterator[KvName]:
        return (name for path in self._directory.iterdir() if (name := parse_name(path.name)) is not None)

    def _owners(self) -> set[int | None]:
        scheduler = self._loop.loop._scheduler
        return {lane.owner for lane in scheduler.parks.lanes if lane.length} | {
            entry.owner for entry in scheduler.parks._host
        }


class OneByOneKvFiles(SteppedKvFiles):
    def work_once(self, *, is_read: bool) -> None:
        """One thing that waits, if there is any."""
        todo = self._reads if is_read else self._writes
        if not todo.empty():
            task = todo.get_nowait()
            assert task is not None
            self._carry_out(task)


@pytest.mark.parametrize("seed", SEEDS)
def test_worker_to_which_anything_happens_keeps_its_word(tmp_path: Path, seed: int) -> None:
    directory = tmp_path / "kv"
    directory.mkdir()
    Everything(directory, seed).run()
