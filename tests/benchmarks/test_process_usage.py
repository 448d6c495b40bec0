"""Reading a process's CPU time and memory."""

import os
import time

import pytest
from benchmarks.process_usage import cpu_seconds, parse_cpu_time, resident_bytes


def test_cpu_seconds_of_this_process_is_what_python_counts() -> None:
    assert cpu_seconds(os.getpid()) == pytest.approx(time.process_time(), abs=0.5)


def test_resident_bytes_of_this_process_is_plausible() -> None:
    assert 5e6 < resident_bytes(os.getpid()) < 5e9


@pytest.mark.parametrize(
    ("text", "seconds"), [("0:01.50", 1.5), ("01:02", 62.0), ("1:00:00", 3600.0), ("2-00:00:01", 172_801.0)]
)
def test_cpu_time_of_ps_is_read_in_all_its_forms(text: str, seconds: float) -> None:
    assert parse_cpu_time(text) == seconds
