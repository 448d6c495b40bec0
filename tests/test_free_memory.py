"""Free memory as the kernel's files tell it: of the machine, and within control groups of both versions."""

from pathlib import Path

import pytest

from superfluid.free_memory import available_memory_bytes

V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


def _machine(root: Path, kib: int = 2000, cgroup: str = "0::/\n") -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:    {kib} kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    return root


def _group(directory: Path, bound: str, used: int, files: int = 0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.max").write_text(f"{bound}\n")
    (directory / "memory.current").write_text(f"{used}\n")
    (directory / "memory.stat").write_text(f"anon 5\nactive_file {files}\ninactive_file {files}\nkernel 9\n")


def test_available_memory_is_the_machines_where_no_group_binds(tmp_path: Path) -> None:
    root = _machine(tmp_path)
    assert available_memory_bytes(root) == 2_048_000
    _group(root / V2, "max", 400)
    assert available_memory_bytes(root) == 2_048_000


def test_available_memory_is_what_the_group_leaves_if_that_is_less(tmp_path: Path) -> None:
    root = _machine(tmp_path)
    _group(root / V2, "1000", 400)
    assert available_memory_bytes(root) == 600
    _group(root / V2, "1000", 1400)
    assert available_memory_bytes(root) == 0


def test_files_that_were_read_do_not_count_as_used(tmp_path: Path) -> None:
    """The model itself is one: a server that is started again must not find the memory taken by it."""
    root = _machine(tmp_path)
    _group(root / V2, "1000", 900, files=350)
    assert available_memory_bytes(root) == 800


@pytest.mark.parametrize(
    ("inner", "outer", "expected"), [("500", "max", 400), ("max", "700", 600), ("900", "700", 600)]
)
def test_every_group_on_the_way_up_binds(tmp_path: Path, inner: str, outer: str, expected: int) -> None:
    root = _machine(tmp_path, cgroup="0::/system.slice/superfluid.service\n")
    _group(root / V2 / "system.slice/superfluid.service", inner, 100)
    _group(root / V2 / "system.slice", outer, 100)
    assert available_memory_bytes(root) == expected


def test_group_whose_path_is_that_on_the_host_is_the_outermost_one(tmp_path: Path) -> None:
    root = _machine(tmp_path, cgroup="0::/docker/0123abc\n")
    _group(root / V2, "1000", 400)
    assert available_memory_bytes(root) == 600


def test_groups_of_the_first_version_bind_too(tmp_path: Path) -> None:
    root = _machine(tmp_path, cgroup="5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n")
    for directory, bound in ((root / V1 / "a/b", 9223372036854771712), (root / V1 / "a", 1000)):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "memory.limit_in_bytes").write_text(f"{bound}\n")
        (directory / "memory.usage_in_bytes").write_text("700\n")
        (directory / "memory.stat").write_text("active_file 1\ntotal_active_file 100\ntotal_inactive_file 50\n")
    assert available_memory_bytes(root) == 450


@pytest.mark.parametrize("text", ["", "garbage\n", "0:\n", "::::\n", "0::\n", "\x00\xff"])
def test_groups_that_cannot_be_read_bind_nothing(tmp_path: Path, text: str) -> None:
    assert available_memory_bytes(_machine(tmp_path, cgroup=text)) == 2_048_000


def test_available_memory_unknown_is_none(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path / "absent") is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: lots kB\n")
    assert available_memory_bytes(tmp_path) is None
