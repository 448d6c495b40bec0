"""A short soak: everybody at once, dying workers, and nothing is said otherwise or left behind. Long: make soak."""

from pathlib import Path

from tests.fixtures.soak import Soak


def test_soak_changes_no_text_and_leaves_nothing_behind(tmp_path: Path) -> None:
    soak = Soak(tmp_path, seed=3, clients=4)
    soak.run(5, kill_pause=(1.0, 2.0), least_actions=11)
    assert soak.kills
    assert sum(soak.notes.counts.values()) > 10
