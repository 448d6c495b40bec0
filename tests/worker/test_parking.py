"""Parks and the disk tier on the tick loop: replies are the same with or without them, and a restart finds them.

Every worker here has the fake engine, a directory of its own or of an earlier one, and threads that a test steps.
"""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.fixtures.kv_files import BOTH, SteppedKvFiles
from tests.fixtures.tick_loop import (
    GREEDY,
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
from superfluid.domain.request import SamplingParams
from superfluid.engine.fake_script import FakeScript
from superfluid.engine.lane_state import State
from superfluid.errors import EngineFaultError
from superfluid.kvfiles.format import KvKey
from superfluid.kvfiles.service import MAX_WAITING_WRITES
from superfluid.scheduling.pressure import PressureLevel
from superfluid.worker.leftovers import BUSY_SHARE, MOST_SAVED_UP_SECONDS, SETTLE_SECONDS
from superfluid.worker.protocol import Forget, KvTotals, LoadAdapter, Ping, Stop, UnloadAdapter
from superfluid.worker.resuming import READ_PATIENCE_SECONDS
from superfluid.worker.settings import KvFileSettings

SAMPLED = SamplingParams(temperature=1.5, top_p=0.9, seed=11)
PROMPT = words(1, 400)
SESSION = 7


class Worker:
    """One worker's life on ``directory``."""

    def __init__(
        self,
        directory: Path,
        *,
        lanes: int = 2,
        window_tokens: int = 4096,
        script: FakeScript | None = None,
        host_cache_bytes: int = 1_000_000,
        kinds: tuple[ParkKind, ...] = (ParkKind.SESSION, ParkKind.REQUEST),
        state_key: str = "state",
        engine_type: type[CostlyEngine] = CostlyEngine,
    ) -> None:
        settings = msgspec.structs.replace(
            make_settings(lanes, host_cache_bytes=host_cache_bytes),
            kv_files=KvFileSettings(
                directory=str(directory),
                park_bytes=None if ParkKind.SESSION in kinds else 0,
                request_bytes=None if ParkKind.REQUEST in kinds else 0,
            ),
        )
        self.script = script
        self.made: list[SteppedKvFiles] = []

        def make(post: object, clock: SteppedClock) -> SteppedKvFiles:
            budgets = {kind: BOTH[kind] for kind in kinds}
            files = SteppedKvFiles(directory, post, clock=clock, budgets=budgets, key=KvKey("m", state_key))  # type: ignore[arg-type]
            self.made.append(files)
            return files

        clock = SteppedClock()
        engine = engine_type(script, lanes=lanes, clock=clock, window_tokens=window_tokens)
        self.loop = SteppedLoop(script, settings, engine, clock=clock, kv_files=make)
        (self.files,) = self.made
        self.loop.take_events()

    def run(self, job: Job) -> Received:
        """The job from its submission to its end, with whatever is read for it."""
        received = self.loop.submit(job)
        while received.finish is Finish.NONE:
            if not self.loop.tick():
                assert self.files.work(), "nothing runs and nothing is being read"
                self.loop.take_events()
        return received

    def turn(self, prompt: list[int], *, max_tokens: int = 12, session: int = SESSION) -> Received:
        return self.run(make_job(prompt, max_tokens=max_tokens, sampling=SAMPLED, session=session, park=self.kind))

    kind = ParkKind.SESSION

    def settle(self) -> None:
        """Time passes in which nobody wants anything."""
        self.loop.clock.now += SETTLE_SECONDS
        while self.loop.loop.park_one() or self.files.work():
            self.loop.take_events()
        self.loop.loop.check_integrity()

    @property
    def totals(self) -> KvTotals:
        return self.loop.kv_changes[-1].totals if self.loop.kv_changes else KvTotals()

    @property
    def known(self) -> dict[int, tuple[int | None, int]]:
        """Session and tokens of the files that the daemon was told of."""
        files: dict[int, tuple[int | None, int]] = {}
        for change in self.loop.kv_changes:
            files |= {file.file_id: (file.session, file.tokens) for file in change.added}
            for file_id in change.removed:
                files.pop(file_id, None)
        return files


def next_turn(prompt: list[int], reply: list[int], seed: int = 90) -> list[int]:
    return [*prompt, *reply, *words(seed, 30)]


def files_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.kv"))


def packed(tokens: list[int]) -> bytes:
    return np.array(tokens, "<i4").tobytes()


# ---- warm after a restart


@pytest.mark.parametrize("kind", [ParkKind.SESSION, ParkKind.REQUEST])
def test_next_turn_after_a_restart_begins_with_the_turn_before(tmp_path: Path, kind: ParkKind) -> None:
    first = Worker(tmp_path)
    first.kind = kind
    got = first.turn(PROMPT)
    first.settle()
    assert first.totals.parks_total == 1
    second = Worker(tmp_path)
    prompt = next_turn(PROMPT, got.tokens)
    again = second.turn(prompt)
    assert again.warm_tokens == [len(PROMPT) + len(got.tokens) - 1]
    assert again.tokens == cold_reply(make_job(prompt, max_tokens=12, sampling=SAMPLED))
    assert (second.totals.resumes_total, second.totals.files) == (1, 1)


@pytest.mark.parametrize(("lanes", "window_tokens"), [(1, 4096), (8, 4096), (2, 500)])
def test_file_written_with_other_lanes_or_a_larger_window_is_used(
    tmp_path: Path, lanes: int, window_tokens: int
) -> None:
    first = Worker(tmp_path, lanes=4)
    got = first.turn(PROMPT)
    first.settle()
    second = Worker(tmp_path, lanes=lanes, window_tokens=window_tokens)
    assert second.turn(next_turn(PROMPT, got.tokens)).warm_tokens == [411]


def test_file_that_is_too_long_for_the_window_is_left_alone(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    first.turn(PROMPT)
    first.settle()
    second = Worker(tmp_path, window_tokens=410)
    assert second.turn(PROMPT, max_tokens=4).warm_tokens == [0]
    assert len(files_of(tmp_path)) == 1
    assert second.totals.damaged_total == 0


def test_file_of_another_model_or_build_is_left_alone(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    got = first.turn(PROMPT)
    first.settle()
    second = Worker(tmp_path, state_key="another build")
    assert second.turn(next_turn(PROMPT, got.tokens)).warm_tokens == [0]
    assert files_of(tmp_path)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_file_that_is_damaged_while_the_worker_runs_is_a_miss(tmp_path: Path, damage: str) -> None:
    first = Worker(tmp_path)
    got = first.turn(PROMPT)
    first.settle()
    second = Worker(tmp_path)
    (path,) = files_of(tmp_path)
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"flip": data[:-9] + b"!" + data[-8:], "cut": data[:-1], "empty": b""}[damage])
    prompt = next_turn(PROMPT, got.tokens)
    again = second.turn(prompt)
    assert again.warm_tokens == [0]
    assert again.tokens == cold_reply(make_job(prompt, max_tokens=12, sampling=SAMPLED))
    second.files.work()
    second.loop.take_events()
    assert second.totals.damaged_total == (damage != "gone")
    assert files_of(tmp_path) == []
    assert second.known == {}


def test_file_that_the_engine_refuses_is_removed_and_the_job_starts_cold(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    got = first.turn(PROMPT)
    first.settle()
    second = Worker(tmp_path)
    second.loop.engine.import_lane = lambda lane, state, length: False  # type: ignore[method-assign]
    prompt = next_turn(PROMPT, got.tokens)
    again = second.turn(prompt)
    assert again.tokens == cold_reply(make_job(prompt, max_tokens=12, sampling=SAMPLED))
    second.files.work()
    assert (second.totals.damaged_total, files_of(tmp_path)) == (1, [])


def test_state_that_cannot_be_cut_is_used_by_the_next_turn_and_by_nobody_else(tmp_path: Path) -> None:
    script = FakeScript(can_truncate=False)
    first = Worker(tmp_path, script=script)
    got = first.turn(PROMPT)
    first.settle()
    second = Worker(tmp_path, script=script)
    assert second.turn([*PROMPT[:390], *words(5, 40)], session=8).warm_tokens == [0]
    prompt = next_turn(PROMPT, got.tokens)
    again = second.turn(prompt)
    assert again.warm_tokens == [411]
    assert again.tokens == cold_reply(make_job(prompt, max_tokens=12, sampling=SAMPLED), script)


def test_reply_that_was_cancelled_goes_on_from_its_own_park(tmp_path: Path) -> None:
    whole = make_job(PROMPT, max_tokens=40, sampling=SAMPLED)
    reply = cold_reply(whole)
    first = Worker(tmp_path)
    job = make_job(PROMPT, max_tokens=40, sampling=SAMPLED, session=SESSION, park=ParkKind.SESSION)
    got = first.loop.submit(job)
    while len(got.tokens) < 15:
        first.loop.tick()
    first.loop.cancel(job)
    first.loop.run()
    first.settle()
    second = Worker(tmp_path)
    rest = make_job([*PROMPT, *got.tokens], prompt_tokens=len(PROMPT), max_tokens=25, sampling=SAMPLED)
    again = second.run(rest)
    assert again.warm_tokens == [len(PROMPT) + len(got.tokens) - 1]
    assert [*got.tokens, *again.tokens] == reply[: len(got.tokens) + 25]


def test_fork_of_a_parked_session_begins_with_what_it_shares(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    first.turn(PROMPT)
    first.settle()
    second = Worker(tmp_path)
    assert second.turn([*PROMPT[:300], *words(4, 100)], session=8).warm_tokens == [300]


def test_others_are_served_while_a_file_is_read(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    got = first.turn(PROMPT)
    first.settle()
    second = Worker(tmp_path, lanes=1)
    waiting = second.loop.submit(make_job(next_turn(PROMPT, got.tokens), sampling=SAMPLED))
    other = second.loop.submit(make_job(words(3, 50), max_tokens=5))
    second.loop.run()
    assert (other.finish, waiting.warm_tokens) == (Finish.LENGTH, [])
    second.files.work()
    second.loop.take_events()
    second.loop.run()
    assert waiting.warm_tokens == [411]


def test_job_waits_for_a_slow_disk_but_not_for_ever(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    got = first.turn(PROMPT)
    first.settle()
    second = Worker(tmp_path)
    waiting = second.loop.submit(make_job(next_turn(PROMPT, got.tokens), sampling=SAMPLED))
    second.loop.run()
    assert waiting.warm_tokens == []
    second.loop.clock.now += READ_PATIENCE_SECONDS
    second.loop.run()
    assert waiting.warm_tokens == [0]
    second.files.work()
    second.loop.take_events()
    second.loop.run()
    assert waiting.finish is Finish.LENGTH


def test_file_that_is_forgotten_while_it_is_read_is_waited_for_no_longer(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    got = first.turn(PROMPT)
    first.settle()
    second = Worker(tmp_path)
    waiting = second.loop.submit(make_job(next_turn(PROMPT, got.tokens), sampling=SAMPLED))
    second.loop.run()
    assert second.loop.loop._parking.seconds_to_wait() is not None
    second.loop.loop.take(Forget(1, [SESSION]))
    second.files.work()
    second.loop.take_events()
    second.loop.run()
    assert (waiting.warm_tokens, waiting.finish) == ([0], Finish.LENGTH)
    second.settle()
    assert second.loop.loop._parking.seconds_to_wait() is None


# ---- what is written, and when


def test_turn_is_written_when_it_has_settled_and_not_before(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.turn(PROMPT)
    assert not worker.loop.loop.park_one()
    worker.loop.clock.now += SETTLE_SECONDS
    assert worker.loop.loop.park_one()
    assert not worker.loop.loop.park_one()


def test_turn_is_not_exported_while_a_message_waits(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.turn(PROMPT)
    worker.loop.clock.now += SETTLE_SECONDS
    worker.loop.inbox.put(Ping(1))
    assert not worker.loop.loop.park_one()
    worker.loop.take_messages()
    assert worker.loop.loop.park_one()


def test_turn_that_is_answered_at_once_is_written_with_the_answer(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    prompt = PROMPT
    for _ in range(3):
        prompt = next_turn(prompt, worker.turn(prompt).tokens)
    worker.settle()
    assert (worker.totals.parks_total, worker.totals.skips_total) == (1, 0)
    assert list(worker.known.values()) == [(SESSION, len(prompt) - 31)]


def test_next_turn_replaces_the_file_of_the_one_before(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    prompt = PROMPT
    for _ in range(3):
        prompt = next_turn(prompt, worker.turn(prompt).tokens)
        worker.settle()
        assert len(files_of(tmp_path)) == len(worker.known) == 1
    assert worker.totals.parks_total == 3
    assert worker.totals.size_bytes == files_of(tmp_path)[0].stat().st_size


def test_state_that_is_on_the_disk_already_is_not_written_again(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    for session in (7, 8):
        worker.turn(PROMPT, session=session)
        worker.settle()
    assert worker.totals.parks_total == 1


@pytest.mark.parametrize(
    ("kind", "kinds", "length", "is_written"),
    [
        (ParkKind.NONE, (ParkKind.SESSION, ParkKind.REQUEST), 400, False),
        (ParkKind.SESSION, (ParkKind.REQUEST,), 400, False),
        (ParkKind.REQUEST, (ParkKind.REQUEST,), 400, True),
        (ParkKind.SESSION, (ParkKind.SESSION,), 200, False),
    ],
)
def test_only_what_may_be_kept_and_is_worth_it_is_written(
    tmp_path: Path, kind: ParkKind, kinds: tuple[ParkKind, ...], length: int, is_written: bool
) -> None:
    worker = Worker(tmp_path, kinds=kinds)
    worker.kind = kind
    worker.turn(words(1, length))
    worker.settle()
    assert len(files_of(tmp_path)) == is_written
    assert worker.totals.skips_total == 0


def test_lane_that_goes_to_another_job_before_its_time_is_written_from_its_copy(tmp_path: Path) -> None:
    worker = Worker(tmp_path, lanes=1)
    got = worker.turn(PROMPT)
    worker.turn(words(2, 400), session=8)
    worker.settle()
    assert sorted(worker.known.values()) == [(SESSION, 411), (8, 411)]
    assert Worker(tmp_path).turn(next_turn(PROMPT, got.tokens)).warm_tokens == [411]


def test_lane_that_goes_to_another_job_without_being_saved_is_counted_as_skipped(tmp_path: Path) -> None:
    worker = Worker(tmp_path, lanes=1, host_cache_bytes=0)
    worker.turn(PROMPT)
    worker.files._waiting = MAX_WAITING_WRITES
    worker.turn(words(2, 300), session=8)
    assert worker.totals.skips_total == 1


def test_lane_that_goes_to_another_job_before_its_time_is_written_though_host_memory_keeps_nothing(
    tmp_path: Path,
) -> None:
    worker = Worker(tmp_path, lanes=1, host_cache_bytes=0)
    got = worker.turn(PROMPT)
    worker.turn(words(2, 40), session=8)
    assert worker.loop.loop._scheduler.statistics().host_cache_entries <= 1, "what was saved does not stay"
    worker.files.work()
    worker.loop.take_events()
    assert list(worker.known.values()) == [(SESSION, 411)]
    assert worker.turn(next_turn(PROMPT, got.tokens)).warm_tokens == [411]
    assert worker.loop.loop._scheduler.statistics().host_cache_entries <= 1


def test_parking_beside_running_jobs_takes_a_small_share_of_the_time(tmp_path: Path) -> None:
    worker = Worker(tmp_path, lanes=8, host_cache_bytes=0)
    engine = worker.loop.engine
    exported: list[float] = []
    begun = worker.loop.clock.now

    def export(lane: int) -> State:
        worker.loop.clock.now += 0.1
        exported.append(worker.loop.clock.now)
        return CostlyEngine.export_lane(engine, lane)  # type: ignore[arg-type]

    engine.export_lane = export  # type: ignore[method-assign]
    worker.loop.submit(make_job(words(3, 20), max_tokens=4000, sampling=GREEDY))
    for turn in range(40):
        received = worker.loop.submit(
            make_job(words(10 + turn, 300), max_tokens=40, session=turn, park=ParkKind.SESSION)
        )
        while received.finish is Finish.NONE:
            worker.loop.tick()
            worker.loop.loop.park_one()
            worker.files.work()
            worker.loop.take_events()
    seconds = exported[-1] - begun
    assert 0 < 0.1 * len(exported) <= MOST_SAVED_UP_SECONDS + 0.1 + BUSY_SHARE * seconds


def test_stop_writes_what_has_not_settled_yet(tmp_path: Path) -> None:
    worker = Worker(tmp_path, lanes=8)
    for session in range(6):
        worker.turn(words(session, 400), session=session)
    worker.loop.inbox.put(Stop())
    worker.loop.loop.run()
    assert len(files_of(tmp_path)) == 6


# ---- erasing


def test_forget_erases_a_session_from_lanes_memory_disk_and_what_is_on_its_way(tmp_path: Path) -> None:
    worker = Worker(tmp_path, lanes=2)
    secret = words(99, 400)
    worker.turn(secret)
    worker.settle()
    for session in (8, 9):
        worker.turn(words(session, 400), session=session)
    worker.settle()
    worker.turn([*secret, *words(98, 300)])
    worker.loop.clock.now += SETTLE_SECONDS
    assert worker.loop.loop.park_one()
    worker.loop.loop.take(Forget(5, [SESSION]))
    assert worker.loop.forgotten == []
    worker.settle()
    assert worker.loop.forgotten == [5]
    assert {session for session, _ in worker.known.values()} == {8, 9}
    assert files_of(tmp_path)
    assert not any(packed(secret[200:210]) in path.read_bytes() for path in tmp_path.iterdir())
    assert worker.turn([*secret, *words(97, 30)], session=10).warm_tokens == [0]


def test_forget_of_a_session_whose_job_still_runs_takes_what_it_leaves(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    job = make_job(PROMPT, max_tokens=30, session=SESSION, park=ParkKind.SESSION)
    worker.loop.submit(job)
    for _ in range(20):
        worker.loop.tick()
    worker.loop.loop.take(Forget(1, [SESSION]))
    worker.loop.cancel(job)
    worker.loop.run()
    worker.settle()
    assert files_of(tmp_path) == []
    assert [worker.loop.engine.length(lane) for lane in range(2)] == [0, 0]


def test_forget_spares_a_fork_and_what_it_shares(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    got = worker.turn(PROMPT)
    worker.settle()
    fork = next_turn(PROMPT, got.tokens)
    worker.turn(fork, session=8)
    worker.settle()
    worker.loop.loop.take(Forget(1, [SESSION]))
    worker.settle()
    assert [session for session, _ in worker.known.values()] == [8]
    second = Worker(tmp_path)
    assert second.turn([*fork, *words(4, 40)], session=8).warm_tokens[0] >= len(fork)


def test_forget_without_a_disk_is_answered_at_once() -> None:
    loop = SteppedLoop()
    loop.submit(make_job(PROMPT, session=SESSION))
    loop.run()
    loop.loop.take(Forget(3, [SESSION]))
    loop.loop.check_integrity()
    assert loop.forgotten == [3]
    assert {loop.engine.length(lane) for lane in range(4)} == {0}


# ---- copies in host memory


class Counted(CostlyEngine):
    """Counts its exports."""

    exports = 0

    def export_lane(self, lane: int) -> State:
        self.exports += 1
        return super().export_lane(lane)


def test_turn_is_exported_once_for_the_disk_and_for_host_memory(tmp_path: Path) -> None:
    worker = Worker(tmp_path, lanes=1, engine_type=Counted)
    got = worker.turn(PROMPT)
    worker.settle()
    assert isinstance(worker.loop.engine, Counted)
    assert worker.loop.engine.exports == 1
    assert len(files_of(tmp_path)) == 1
    worker.turn(words(2, 400), session=8)
    assert worker.loop.engine.exports == 1, "the lane was given away for nothing"
    for path in files_of(tmp_path):
        path.unlink()
    assert worker.turn(next_turn(PROMPT, got.tokens)).warm_tokens == [len(PROMPT) + 11]


def test_turn_is_copied_where_nothing_is_kept_on_the_disk() -> None:
    loop = SteppedLoop(settings=make_settings(1))
    job = make_job(PROMPT, max_tokens=12, sampling=SAMPLED)
    first = loop.submit(job)
    loop.run()
    assert not loop.loop.park_one()
    loop.clock.now += SETTLE_SECONDS
    assert loop.loop.park_one()
    assert not loop.loop.park_one()
    loop.tick()
    assert loop.records[-1].host_cache_entries == 1, "monitors see it at once"
    loop.submit(make_job(words(2, 400)))
    loop.run()
    assert (loop.records[-1].host_saves_total, loop.records[-1].host_cache_entries) == (1, 1)
    tokens = next_turn(PROMPT, first.tokens)
    again = make_job(tokens, max_tokens=12, sampling=SAMPLED)
    received = loop.submit(again)
    loop.run()
    assert received.warm_tokens == [len(PROMPT) + 11]
    assert received.tokens == cold_reply(again)


def test_copy_that_memory_pressure_took_is_not_made_again_and_its_lane_stays_warm() -> None:
    levels = [PressureLevel.NONE]
    loop = SteppedLoop(settings=make_settings(1), read_pressure=lambda: levels[-1])
    first = loop.submit(make_job(PROMPT, max_tokens=12, sampling=SAMPLED))
    loop.run()
    loop.clock.now += SETTLE_SECONDS
    assert loop.loop.park_one()
    levels.append(PressureLevel.WARNING)
    loop.clock.now += 1.1
    loop.tick()
    assert loop.records[-1].host_cache_entries == 0
    levels.append(PressureLevel.NONE)
    loop.clock.now += 1.1
    loop.tick()
    assert not loop.loop.park_one()
    again = loop.submit(make_job(next_turn(PROMPT, first.tokens), max_tokens=2, sampling=SAMPLED))
    loop.run()
    assert again.warm_tokens == [len(PROMPT) + 11]


def test_copy_that_the_engine_does_not_give_leaves_no_entry(tmp_path: Path) -> None:
    worker = Worker(tmp_path, lanes=1)

    def export(lane: int) -> State:
        raise EngineFaultError("no export today")

    worker.loop.engine.export_lane = export  # type: ignore[method-assign]
    worker.turn(PROMPT)
    worker.settle()
    assert worker.loop.loop._scheduler.statistics().host_cache_entries == 0
    assert worker.totals.parks_total == 0
    assert files_of(tmp_path) == []


def test_forget_takes_the_copy_along(tmp_path: Path) -> None:
    worker = Worker(tmp_path, lanes=1)
    worker.turn(PROMPT)
    worker.settle()
    worker.turn(words(2, 400), session=8)
    worker.loop.loop.take(Forget(5, [SESSION]))
    worker.settle()
    statistics = worker.loop.loop._scheduler.statistics()
    assert statistics.host_cache_entries == 1
    assert worker.turn(PROMPT, session=9).warm_tokens == [0]


def test_lane_of_an_adapter_that_is_unloaded_is_no_leftover(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter.gguf"
    adapter.write_bytes(b"GGUF")
    loop = SteppedLoop(settings=make_settings(1))
    loop.loop.take(LoadAdapter(1, str(adapter)))
    loop.submit(make_job(PROMPT, max_tokens=2, adapter=1))
    loop.run()
    loop.loop.take(UnloadAdapter(1))
    loop.loop.check_integrity()
    loop.clock.now += SETTLE_SECONDS
    assert not loop.loop.park_one()
