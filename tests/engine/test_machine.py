"""Cores and memory as the kernel's files tell them."""

from pathlib import Path

from superfluid.engine.machine import available_memory_bytes, usable_cores, usable_cpus


def _topology(root: Path, cores: dict[int, tuple[int, int]]) -> Path:
    for cpu, (package, core) in cores.items():
        directory = root / f"cpu{cpu}" / "topology"
        directory.mkdir(parents=True)
        (directory / "physical_package_id").write_text(f"{package}\n")
        (directory / "core_id").write_text(f"{core}\n")
    return root


def test_usable_cores_siblings_count_once(tmp_path: Path) -> None:
    root = _topology(tmp_path, {0: (0, 0), 1: (0, 0), 2: (0, 1), 3: (1, 0)})
    assert usable_cores(frozenset({0, 1, 2, 3}), root) == 3


def test_usable_cores_only_those_this_process_may_use_count(tmp_path: Path) -> None:
    root = _topology(tmp_path, {0: (0, 0), 1: (0, 1), 2: (0, 2)})
    assert usable_cores(frozenset({1}), root) == 1


def test_usable_cores_without_a_topology_every_cpu_counts(tmp_path: Path) -> None:
    assert usable_cores(frozenset({0, 1, 5}), tmp_path / "absent") == 3


def test_usable_cpus_are_at_least_one() -> None:
    assert len(usable_cpus()) >= 1


def test_available_memory_is_the_lesser_of_machine_and_control_group(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    2000 kB\n")
    assert available_memory_bytes(meminfo, tmp_path) == 2_048_000
    (tmp_path / "memory.current").write_text("400\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory_bytes(meminfo, tmp_path) == 2_048_000
    (tmp_path / "memory.max").write_text("1000\n")
    assert available_memory_bytes(meminfo, tmp_path) == 600


def test_available_memory_unknown_is_none(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path / "absent", tmp_path / "absent") is None
