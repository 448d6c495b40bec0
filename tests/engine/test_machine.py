"""Cores as the kernel's files tell them."""

from pathlib import Path

from superfluid.engine.machine import usable_cores, usable_cpus


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
