"""The daemon's own limit of open files, raised in processes that may have few."""

import subprocess
import sys
from pathlib import Path

import pytest

import superfluid

PROGRAM = """
import resource, sys
from superfluid.descriptors import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
print(raise_descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("soft", "hard", "expected"), [(64, 512, 512), (256, 256, 256)])
def test_limit_when_raised_is_as_high_as_the_system_lets_it(soft: int, hard: int, expected: int) -> None:
    source = Path(superfluid.__file__).parents[1]
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(source)})
    assert done.stdout.split() == [str(expected)] * 2
