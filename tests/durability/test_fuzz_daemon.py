"""A short attack on all doors of a whole daemon. ``make fuzz`` makes long ones."""

from pathlib import Path

from tests.fixtures.fuzzing.daemon import attack

FRAMES = 4000


def test_daemon_under_wrong_frames_on_all_doors_serves_a_client_beside_them_as_if_it_were_alone(tmp_path: Path) -> None:
    figures = attack(tmp_path, FRAMES, seed=11)
    assert figures.frames >= FRAMES
    assert figures.replies > 0
    assert figures.songs > 3
    assert figures.peak_megabytes < 400
