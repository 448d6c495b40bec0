"""The fake engine's own promises, beyond the contract it shares with llama.cpp."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from superfluid.engine.fake import FakeEngine
from superfluid.engine.fake_script import FakeScript
from superfluid.engine.interface import Row
from superfluid.errors import EngineFaultError, ModelLoadError


def _row(lane: int, position: int, *tokens: int) -> Row:
    return Row(lane, position, np.array(tokens, np.int32))


def test_logits_any_change_in_the_past_changes_the_next_token() -> None:
    engine = FakeEngine(lanes=2)
    first = engine.step([_row(0, 0, 1, 2, 3, 4)]).logits.copy()
    assert not np.array_equal(first, engine.step([_row(1, 0, 9, 2, 3, 4)]).logits)


def test_step_fault_step_clears_the_named_lanes_only() -> None:
    engine = FakeEngine(FakeScript(fault_steps=(2,)), lanes=2)
    engine.step([_row(0, 0, 1), _row(1, 0, 1)])
    with pytest.raises(EngineFaultError):
        engine.step([_row(1, 1, 2)])
    assert [engine.length(0), engine.length(1)] == [1, 0]
    engine.step([_row(1, 0, 1)])


def test_abort_in_the_middle_keeps_whole_micro_batches() -> None:
    engine = FakeEngine(FakeScript(token_seconds=0.0002), lanes=2)
    threading.Timer(0.05, engine.abort).start()
    result = engine.step([_row(0, 0, 1), _row(1, 0, *([7] * 4000))])
    assert result.completed[0] == 1
    assert 0 < result.completed[1] < 4000
    assert sum(result.completed) % 64 == 0
    assert engine.length(1) == result.completed[1]
    assert len(result.logits) == 1


def test_truncate_refused_by_a_script_clears_the_lane() -> None:
    engine = FakeEngine(FakeScript(can_truncate=False), lanes=1)
    engine.step([_row(0, 0, 1, 2, 3)])
    assert engine.truncate(0, 3)
    assert not engine.truncate(0, 2)
    assert engine.length(0) == 0


def test_load_error_of_the_script_is_raised() -> None:
    with pytest.raises(ModelLoadError, match="no memory"):
        FakeEngine(FakeScript(load_error="no memory"), lanes=1)


_CRASH = """
import numpy as np, sys
from superfluid.engine.fake import FakeEngine
from superfluid.engine.fake_script import FakeScript
from superfluid.engine.interface import Row
engine = FakeEngine(FakeScript(crash_token=7, crash_marker=sys.argv[1]), lanes=1)
engine.step([Row(0, 0, np.array([1, 2], np.int32))])
engine.step([Row(0, 2, np.array([7], np.int32))])
"""


def test_crash_token_kills_the_process_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CRASH, str(tmp_path / "crashed")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run(command, check=False, capture_output=True, env=environment).returncode < 0
    assert subprocess.run(command, check=False, capture_output=True, env=environment).returncode == 0
