"""What the scheduler makes of the disk: which states are worth a file, and which jobs wait for one."""

import numpy as np
import pytest
from tests.fixtures.scheduling import Shadow, make_job, make_settings, text

from superfluid.domain.job import Job, ParkKind
from superfluid.scheduling.kv_index import KvFile
from superfluid.scheduling.parks import MAX_READS, MIN_PARK_TOKENS, Parkable, Parks
from superfluid.scheduling.token_tree import Tokens

STATE_BYTES = 5000


def array_of(tokens: list[int]) -> Tokens:
    return np.array(tokens, np.int32)


def parkable(tokens: list[int], kind: ParkKind = ParkKind.SESSION) -> Parkable:
    return Parkable(array_of(tokens), kind, 1)


class Disk:
    """A scheduler with files on the disk, which a test has read when it likes."""

    def __init__(self, *, lanes: int = 2, can_truncate: bool = True) -> None:
        self.shadow = Shadow(make_settings(lanes=lanes, can_truncate=can_truncate))
        self.parks: Parks = self.shadow.scheduler.parks
        self._next_id = 0

    def put(self, tokens: list[int], owner: int | None = None) -> int:
        self._next_id += 1
        self.parks.index.add(KvFile(self._next_id, array_of(tokens), ParkKind.SESSION, owner, STATE_BYTES))
        return self._next_id

    def submit(self, tokens: list[int]) -> int:
        return self.shadow.submit(make_job(tokens))

    def wanted(self) -> list[int]:
        return [file.file_id for file in self.parks.wanted_reads()]

    def came(self, file_id: int) -> None:
        file = self.parks.index.file(file_id)
        entry_id = self.parks.file_came(file_id, STATE_BYTES, 0.01)
        if entry_id is not None:
            self.shadow.host[entry_id] = file.tokens.tolist()
        self.shadow.scheduler.check_integrity()


# ---- what is worth a file


@pytest.mark.parametrize(
    ("length", "kind", "is_worth"),
    [
        (MIN_PARK_TOKENS, ParkKind.SESSION, True),
        (MIN_PARK_TOKENS, ParkKind.REQUEST, True),
        (MIN_PARK_TOKENS - 1, ParkKind.SESSION, False),
        (1000, ParkKind.NONE, False),
    ],
)
def test_state_is_worth_a_file_if_it_is_long_enough_and_may_be_kept(
    length: int, kind: ParkKind, is_worth: bool
) -> None:
    assert Disk().parks.is_worth_parking(parkable(text(1, length), kind), is_busy=False) is is_worth


@pytest.mark.parametrize(("fresh", "is_worth"), [(0, False), (15, False), (16, True), (300, True)])
def test_state_is_worth_a_file_for_what_the_disk_does_not_have_yet(fresh: int, is_worth: bool) -> None:
    disk = Disk()
    disk.put(text(1, 1000))
    left = parkable([*text(1, 1000), *text(2, fresh)] if fresh else text(1, 1000))
    assert disk.parks.is_worth_parking(left, is_busy=False) is is_worth


def test_state_that_is_being_written_is_not_written_twice() -> None:
    parks = Disk().parks
    left = parkable(text(1, 1000))
    parks.begin_write(1, left)
    assert not parks.is_worth_parking(left, is_busy=False)
    assert not parks.is_worth_parking(parkable(text(1, 600)), is_busy=False)
    parks.abandon_write(1)
    assert parks.is_worth_parking(left, is_busy=False)


def test_states_that_cannot_be_cut_are_covered_by_whole_files_only() -> None:
    parks = Disk(can_truncate=False).parks
    parks.begin_write(1, parkable(text(1, 1000)))
    assert parks.is_worth_parking(parkable(text(1, 600)), is_busy=False)
    assert not parks.is_worth_parking(parkable(text(1, 1000)), is_busy=False)


@pytest.mark.parametrize(
    ("write_seconds_per_token", "is_worth_idle", "is_worth_busy"),
    [(0.00001, True, True), (0.0002, True, False), (0.01, False, False)],
)
def test_few_new_tokens_are_worth_what_writing_the_whole_state_costs(
    write_seconds_per_token: float, is_worth_idle: bool, is_worth_busy: bool
) -> None:
    disk = Disk()
    disk.put(text(1, 1000))
    disk.parks.observe_save(1000, 0.0)
    disk.parks.observe_write(1000, 1000 * write_seconds_per_token)
    left = parkable([*text(1, 1000), *text(2, 40)])
    assert disk.parks.is_worth_parking(left, is_busy=False) is is_worth_idle
    assert disk.parks.is_worth_parking(left, is_busy=True) is is_worth_busy


# ---- who waits for one


def test_job_waits_for_its_file_and_begins_with_it() -> None:
    disk = Disk()
    stream = text(1, 1000)
    file_id = disk.put(stream)
    job = disk.submit([*stream, *text(2, 20)])
    assert disk.wanted() == [file_id]
    assert disk.shadow.step().is_empty
    assert disk.wanted() == []
    disk.came(file_id)
    disk.shadow.run()
    assert disk.shadow.warm[job] == 1000
    assert disk.shadow.host == {} or disk.shadow.step().drops


def test_others_go_on_while_a_job_waits_and_get_no_lane_less() -> None:
    disk = Disk(lanes=1)
    file_id = disk.put(text(1, 1000))
    waiting = disk.submit([*text(1, 1000), *text(2, 20)])
    other = disk.submit(text(3, 100))
    assert disk.wanted() == [file_id]
    while not disk.shadow.is_over(other):
        disk.shadow.step()
    assert waiting not in disk.shadow.warm
    disk.came(file_id)
    disk.shadow.run()
    assert disk.shadow.warm[waiting] == 1000


def test_job_does_not_wait_where_a_lane_has_as_much() -> None:
    disk = Disk()
    disk.submit(text(1, 1000))
    disk.shadow.run()
    disk.put(text(1, 1000))
    disk.submit([*text(1, 1000), *text(2, 20)])
    assert disk.wanted() == []


@pytest.mark.parametrize("prompt", [text(1, 20), text(2, 900), [*text(1, 12), *text(2, 900)]])
def test_job_that_has_too_little_in_common_does_not_wait(prompt: list[int]) -> None:
    disk = Disk()
    disk.put(text(1, 1000))
    disk.submit(prompt if len(prompt) > 20 else text(9, 20))
    assert disk.wanted() == []


def test_job_does_not_wait_for_a_file_that_takes_longer_to_read_than_its_tokens_to_compute() -> None:
    disk = Disk()
    file_id = disk.put([*text(1, 1000), *text(2, 300_000)])
    disk.submit([*text(1, 1000), *text(3, 20)])
    assert disk.wanted() == []
    disk.parks.index.discard(file_id)
    disk.put([*text(1, 1000), *text(2, 2000)])
    disk.submit([*text(1, 1000), *text(4, 20)])
    assert len(disk.wanted()) == 1


@pytest.mark.parametrize(("held", "is_used"), [(1000, True), (1030, False)])
def test_state_that_cannot_be_cut_is_used_at_its_own_length_only(held: int, is_used: bool) -> None:
    disk = Disk(can_truncate=False)
    stream = text(1, 1030)
    disk.put(stream[:held])
    disk.submit([*stream[:1000], *text(2, 20)])
    assert len(disk.wanted()) == is_used


def test_job_goes_on_without_a_file_that_cannot_be_read() -> None:
    disk = Disk()
    file_id = disk.put(text(1, 1000))
    job = disk.submit([*text(1, 1000), *text(2, 20)])
    disk.wanted()
    disk.parks.file_failed(file_id)
    disk.shadow.run()
    assert disk.shadow.warm[job] == 0


def test_jobs_that_want_the_same_file_have_it_read_once() -> None:
    disk = Disk(lanes=4)
    file_id = disk.put(text(1, 1000))
    jobs = [disk.submit([*text(1, 1000), *text(seed, 20)]) for seed in (2, 3, 4)]
    assert disk.wanted() == [file_id]
    disk.came(file_id)
    disk.shadow.run()
    assert [disk.shadow.warm[job] for job in jobs] == [1000] * 3
    assert disk.shadow.prefilled == 60


def test_cancelled_job_waits_no_more_and_its_file_is_not_kept() -> None:
    disk = Disk()
    file_id = disk.put(text(1, 1000))
    job = disk.submit([*text(1, 1000), *text(2, 20)])
    disk.wanted()
    disk.shadow.cancel(job)
    disk.came(file_id)
    assert disk.shadow.host == {}
    job = disk.submit([*text(1, 1000), *text(2, 20)])
    assert disk.wanted() == [file_id]
    disk.came(file_id)
    disk.shadow.cancel(job)
    disk.submit(text(5, 20))
    disk.shadow.run()
    assert disk.shadow.host == {}


def test_few_files_are_read_ahead_however_long_the_queue_is() -> None:
    disk = Disk(lanes=8)
    files = [disk.put(text(seed, 1000)) for seed in range(1, 9)]
    jobs = [disk.submit([*text(seed, 1000), *text(50, 20)]) for seed in range(1, 9)]
    pending = disk.wanted()
    assert pending == files[:MAX_READS]
    while not all(disk.shadow.is_over(job) for job in jobs):
        for file_id in pending:
            disk.came(file_id)
        disk.shadow.step()
        pending = disk.wanted()
    assert [disk.shadow.warm[job] for job in jobs] == [1000] * 8


def test_prefix_that_a_job_holds_survives_a_host_cache_that_is_full() -> None:
    disk = Disk(lanes=1)
    disk.shadow.settings = make_settings(lanes=1, host_cache_bytes=0)
    disk.shadow = Shadow(make_settings(lanes=1, host_cache_bytes=0))
    disk.parks = disk.shadow.scheduler.parks
    busy = disk.submit(text(3, 500))
    disk.shadow.step()
    file_id = disk.put(text(1, 1000))
    job = disk.submit([*text(1, 1000), *text(2, 20)])
    disk.wanted()
    disk.came(file_id)
    disk.shadow.run()
    assert disk.shadow.is_over(busy)
    assert disk.shadow.warm[job] == 1000


# ---- erasing


def owned_job(tokens: list[int], session: int) -> Job:
    job = make_job(tokens)
    return Job(
        job_id=job.job_id,
        tokens=job.tokens,
        prompt_tokens=job.prompt_tokens,
        max_tokens=job.max_tokens,
        sampling=job.sampling,
        session=session,
        park=ParkKind.SESSION,
    )


def test_forget_drops_what_belongs_to_the_session_wherever_it_is_and_nothing_else() -> None:
    disk = Disk(lanes=1)
    for seed, session in ((1, 11), (2, 12), (3, 11)):
        disk.shadow.submit(owned_job(text(seed, 500), session))
        disk.shadow.run()
    mine, others = disk.put(text(4, 500), owner=11), disk.put(text(5, 500), owner=12)
    assert len(disk.parks.free_lanes_of({11})) == 1
    assert disk.parks.free_lanes_of({12}) == []
    entries, files = disk.parks.forget({11})
    assert len(entries) == 1
    for entry_id in entries:
        assert disk.shadow.host.pop(entry_id)[:500] == text(1, 500)
    assert [file.file_id for file in files] == [mine]
    assert others in disk.parks.index
    assert [tokens[:500] for tokens in disk.shadow.host.values()] == [text(2, 500)]
    disk.shadow.scheduler.check_integrity()


def test_forget_while_a_job_of_another_session_waits_lets_it_go_on() -> None:
    disk = Disk()
    disk.put(text(1, 1000), owner=11)
    job = disk.submit([*text(1, 1000), *text(2, 20)])
    assert len(disk.wanted()) == 1
    disk.parks.forget({11})
    disk.shadow.run()
    assert disk.shadow.warm[job] == 0


def test_lane_belongs_to_the_session_of_its_last_job() -> None:
    disk = Disk(lanes=1)
    for session in (11, 12):
        disk.shadow.submit(owned_job(text(1, 500), session))
        disk.shadow.run()
    (lane,) = disk.parks.unsettled_lanes()
    assert (lane.owner, lane.park) == (12, ParkKind.SESSION)
    assert disk.parks.free_lanes_of({11}) == []
