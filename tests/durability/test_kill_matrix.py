"""SIGKILL at random moments under busy clients: all that was acknowledged is there. Long runs: make torture."""

import json
from pathlib import Path

import pytest
from tests.fixtures.kill_matrix import SCRIPT, KillMatrix
from tests.fixtures.tiny_gguf import write_tiny_model


@pytest.mark.parametrize("worker_share", [0.0, 0.6])
def test_killed_daemon_or_worker_loses_nothing_acknowledged(tmp_path: Path, worker_share: float) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SCRIPT))
    matrix = KillMatrix(tmp_path, script, seed=7)
    matrix.run(4, worker_share=worker_share)
    assert matrix.told.count > 20


def test_killed_llama_loses_nothing_acknowledged(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    matrix = KillMatrix(tmp_path, model, "--max-batch", "4", "--max-context", "1024", seed=3)
    matrix.run(3, worker_share=0.4)
    assert matrix.told.count > 15
