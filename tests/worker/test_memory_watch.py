"""Pins that end and pressure that comes, on the tick loop, with a clock and a pressure file of the test's own."""

from pathlib import Path

import msgspec
import pytest
from tests.fixtures.tick_loop import SteppedLoop, cold_reply, make_job, make_settings, words

from superfluid.domain.job import Job
from superfluid.domain.memory import MemoryRules
from superfluid.domain.request import QosClass
from superfluid.engine.spare_buffers import LEAST_BYTES
from superfluid.scheduling.losses import WORTH_KEEPING_TOKENS
from superfluid.worker.memory_watch import MOST_HELD_SECONDS
from superfluid.worker.protocol import SetPin
from superfluid.worker.settings import EngineSettings
from superfluid.worker.system_pressure import SystemPressure

CALM, WARNING, CRITICAL = (0.0, 0.0), (12.0, 0.0), (60.0, 20.0)


class PressureFile:
    """As Linux writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(CALM)

    def set(self, averages: tuple[float, float]) -> None:
        lines = zip(("some", "full"), averages, strict=True)
        self.path.write_text("".join(f"{kind} avg10={value:.2f} avg60=0.00 total=1\n" for kind, value in lines))


@pytest.fixture
def file(tmp_path: Path) -> PressureFile:
    return PressureFile(tmp_path / "memory")


def _loop(file: PressureFile, lanes: int = 1, settings: EngineSettings | None = None) -> SteppedLoop:
    return SteppedLoop(settings=settings or make_settings(lanes), read_pressure=SystemPressure(file.path).read)


def _later(loop: SteppedLoop, seconds: float = 1.01) -> None:
    loop.clock.now += seconds
    loop.tick()


def _fill(loop: SteppedLoop) -> None:
    for seed in (1, 2, 3):
        loop.submit(make_job(words(seed, 300), max_tokens=2))
        loop.run()
    assert loop.records[-1].host_cache_entries == 2


def test_tick_under_a_warning_gives_host_copies_back_and_tells(file: PressureFile) -> None:
    loop = _loop(file)
    _fill(loop)
    file.set(WARNING)
    loop.tick()
    assert loop.records[-1].host_cache_entries == 2, "asked at most once a second"
    _later(loop)
    last = loop.records[-1]
    assert (last.host_cache_entries, last.host_cache_bytes) == (0, 0)
    assert (last.os_pressure_events_total, last.pressure_evictions_total) == (1, 1)
    assert last.pressure_bytes_evicted_total > 0


def test_tick_under_a_warning_gives_back_what_is_kept_for_states_to_come(file: PressureFile) -> None:
    loop = _loop(file)
    spares = loop.engine.spare_memory
    spares.put_back(spares.take(LEAST_BYTES))
    _later(loop)
    assert spares.ready_bytes == LEAST_BYTES
    file.set(WARNING)
    _later(loop)
    assert spares.ready_bytes == 0


def test_tick_without_the_watch_asks_nobody(file: PressureFile) -> None:
    rules = MemoryRules(watches_system=False)
    loop = _loop(file, settings=msgspec.structs.replace(make_settings(1), memory=rules))
    file.set(CRITICAL)
    _fill(loop)
    _later(loop)
    assert loop.records[-1].host_cache_entries == 2
    assert loop.loop.park_one(), "what is left is copied, and then there is nothing to wait for"
    assert loop.loop._seconds_to_wait() is None


def test_tick_under_critical_pressure_lets_background_replies_wait_and_repeats_nothing(file: PressureFile) -> None:
    loop = _loop(file, lanes=2)
    background = make_job(words(1, 100), max_tokens=80, qos=QosClass.BACKGROUND)
    got = loop.submit(background)
    while len(got.tokens) < 10:
        loop.tick()
    file.set(CRITICAL)
    _later(loop)
    assert got.is_waiting_again
    produced = len(got.tokens)
    agent = make_job(words(2, 100), max_tokens=20)
    answered = loop.submit(agent)
    while not answered.finish:
        loop.tick()
    assert len(got.tokens) == produced
    assert loop.loop._seconds_to_wait() is not None, "it looks again by itself"
    file.set(CALM)
    _later(loop)
    loop.run()
    assert got.tokens == cold_reply(background)
    assert answered.tokens == cold_reply(agent)
    assert loop.records[-1].admits_deferred_total == 1


def test_tick_under_lasting_pressure_holds_background_jobs_for_a_while_only(file: PressureFile) -> None:
    loop = _loop(file)
    file.set(CRITICAL)
    _later(loop)
    got = loop.submit(make_job(words(1, 50), max_tokens=4, qos=QosClass.BACKGROUND))
    loop.tick()
    assert got.warm_tokens == []
    for _ in range(int(MOST_HELD_SECONDS) + 1):
        _later(loop)
    loop.run()
    assert len(got.tokens) == 4


def _pinned(tokens: list[int], seconds: float, loop: SteppedLoop) -> Job:
    job = make_job(tokens, max_tokens=2, session=7)
    return msgspec.structs.replace(job, pin_deadline_unix_ms=int((loop.clock.unix() + seconds) * 1000))


def test_pin_ends_at_its_time_though_nothing_happens(file: PressureFile) -> None:
    loop = _loop(file)
    loop.submit(_pinned(words(1, WORTH_KEEPING_TOKENS - 2), 60.0, loop))
    loop.run()
    assert (loop.records[-1].pins_held, loop.records[-1].pins_expired_total) == (1, 0)
    assert loop.records[-1].pinned_bytes >= 0
    seconds = loop.loop._seconds_to_wait()
    assert seconds is not None
    assert 0 < seconds <= 60
    _later(loop, 61)
    assert (loop.records[-1].pins_held, loop.records[-1].pins_expired_total) == (0, 1)
    assert loop.loop._seconds_to_wait() is None


def test_set_pin_between_turns_is_taken_and_let_go(file: PressureFile) -> None:
    loop = _loop(file)
    loop.submit(make_job(words(1, 300), max_tokens=2, session=7))
    loop.run()
    for deadline, held in [(int(loop.clock.unix() * 1000) + 60_000, 1), (0, 0)]:
        loop.loop.take(SetPin(7, deadline))
        loop.tick()
        assert loop.records[-1].pins_held == held


def test_pin_of_a_past_deadline_is_none(file: PressureFile) -> None:
    loop = _loop(file)
    loop.submit(_pinned(words(1, 300), -5.0, loop))
    loop.run()
    assert loop.records[-1].pins_held == 0


def test_eviction_decisions_are_told_to_whoever_looks_for_mistakes(file: PressureFile) -> None:
    loop = _loop(file)
    _fill(loop)
    file.set(WARNING)
    _later(loop)
    size = loop.records[-1].pressure_bytes_evicted_total
    assert loop.pressure_lines == [f"[pressure] used=2 total=32 evictable={size}"]
