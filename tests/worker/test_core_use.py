"""What is read from the files of ``/proc``."""

import os
from pathlib import Path

import pytest

from superfluid.worker.core_use import CoreUse, WaitedTime, parse_busy, parse_waited
from superfluid.worker.threads import CoreReading

STAT = """\
cpu  1000 0 0 0 0 0 0 0 0 0
cpu0 100 10 20 5000 7 1 2 3 50 5
cpu1 200 0 0 6000 0 0 0 0 0 0
cpu7 900 0 0 0 0 0 0 0 0 0
intr 12345
"""


class _Proc:
    """A directory of tasks and a stat file, to be changed."""

    def __init__(self, directory: Path) -> None:
        self.tasks = directory / "task"
        self.stat = directory / "stat"
        self.tasks.mkdir()
        self.wall = self.own = 0.0

    def waits(self, **seconds: float) -> None:
        for name, waited in seconds.items():
            task = self.tasks / name
            task.mkdir(exist_ok=True)
            (task / "schedstat").write_text(f"123 {round(waited * 1e9)} 7\n")

    def ends(self, name: str) -> None:
        (self.tasks / name / "schedstat").unlink()
        (self.tasks / name).rmdir()

    def is_busy(self, *seconds: float) -> None:
        self.stat.write_text("cpu 0\n" + "".join(f"cpu{i} {round(s * 100)} 0 0 9\n" for i, s in enumerate(seconds)))

    def core_use(self) -> CoreUse:
        return CoreUse(
            {0, 1}, tasks=self.tasks, stat=self.stat, wall_seconds=lambda: self.wall, own_seconds=lambda: self.own
        )


@pytest.fixture
def proc(tmp_path: Path) -> _Proc:
    return _Proc(tmp_path)


def test_busy_time_is_that_of_the_process_own_cpus_without_idle_and_what_is_counted_twice() -> None:
    assert parse_busy(STAT.splitlines(), {0, 1}, 100) == pytest.approx((100 + 10 + 20 + 1 + 2 + 3 + 200) / 100)


@pytest.mark.parametrize("text", ["", "intr 1\n", "cpu 1 2 3\n", "cpu5 1 2 3\n", "cpu0 one\n", "cpux 1\n"])
def test_stat_without_these_cpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no line|invalid literal"):
        parse_busy(text.splitlines(), {0, 1}, 100)


def test_waited_time_is_the_second_number_in_nanoseconds() -> None:
    assert parse_waited(b"8000000000 1500000000 12\n") == 1.5


def test_waited_time_adds_up_threads_and_forgets_those_that_end(proc: _Proc) -> None:
    waited = WaitedTime(proc.tasks)
    proc.waits(a=1.0, b=2.0)
    assert waited.read() == pytest.approx(3.0)
    proc.waits(a=1.5, b=2.0, c=0.25)
    assert waited.read() == pytest.approx(0.75)
    proc.ends("b")
    assert waited.read() == pytest.approx(0.0)


def test_waited_time_of_a_thread_that_got_the_number_of_an_earlier_one_is_its_own(proc: _Proc) -> None:
    waited = WaitedTime(proc.tasks)
    proc.waits(a=1.0, b=2.0)
    assert waited.read() == pytest.approx(3.0)
    proc.ends("b")
    assert waited.read() == pytest.approx(0.0)
    proc.waits(b=0.5)
    assert waited.read() == pytest.approx(0.5)


def test_files_of_threads_that_have_ended_are_closed(proc: _Proc) -> None:
    waited = WaitedTime(proc.tasks)
    descriptors = len(os.listdir("/proc/self/fd"))
    proc.waits(a=1.0, b=2.0, c=3.0)
    waited.read()
    assert len(os.listdir("/proc/self/fd")) == descriptors + 3
    proc.ends("b")
    waited.read()
    assert len(os.listdir("/proc/self/fd")) == descriptors + 2
    waited.close(["a", "c"])
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_waited_time_is_unknown_without_the_file(proc: _Proc, tmp_path: Path) -> None:
    assert WaitedTime(tmp_path / "none").read() is None
    assert WaitedTime(proc.tasks).read() is None
    (proc.tasks / "a").mkdir()
    (proc.tasks / "a" / "schedstat").write_text("\n")
    assert WaitedTime(proc.tasks).read() is None


def test_reading_is_what_happened_since_the_one_before(proc: _Proc) -> None:
    use = proc.core_use()
    proc.waits(a=1.0)
    proc.is_busy(10.0, 20.0)
    proc.own = 5.0
    assert use.read() is None
    proc.wall, proc.own = 0.5, 5.4
    proc.waits(a=1.2)
    proc.is_busy(10.5, 20.3)
    reading = use.read()
    assert reading is not None
    assert reading == pytest.approx((0.5, 0.2, 0.8))
    proc.wall, proc.own = 1.0, 5.9
    assert use.read() == CoreReading(0.5, 0.0, 0.0), "what we used is not finer than the file's clock"


def test_no_reading_where_the_system_does_not_tell(proc: _Proc, tmp_path: Path) -> None:
    use = proc.core_use()
    proc.waits(a=1.0)
    assert (use.read(), use.read()) == (None, None)
    proc.stat.write_text("something else\n")
    assert (use.read(), use.read()) == (None, None)
    proc.is_busy(1.0, 1.0)
    proc.ends("a")
    proc.wall = 3.0
    assert (use.read(), use.read()) == (None, None)


def test_this_machine_tells() -> None:
    assert WaitedTime().read() is not None
