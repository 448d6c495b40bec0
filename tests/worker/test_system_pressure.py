"""The system's own memory pressure, from files as Linux writes them."""

from pathlib import Path

import pytest

from superfluid.scheduling.pressure import PressureLevel
from superfluid.worker.system_pressure import SystemPressure, parse_pressure


def pressure_text(some: float, full: float) -> str:
    return (
        f"some avg10={some:.2f} avg60=99.00 avg300=99.00 total=123456\n"
        f"full avg10={full:.2f} avg60=99.00 avg300=99.00 total=123\n"
    )


@pytest.mark.parametrize(
    ("some", "full", "level"),
    [
        (0.0, 0.0, PressureLevel.NONE),
        (9.99, 4.99, PressureLevel.NONE),
        (10.0, 0.0, PressureLevel.WARNING),
        (99.0, 4.99, PressureLevel.WARNING),
        (5.0, 5.0, PressureLevel.CRITICAL),
        (99.0, 80.0, PressureLevel.CRITICAL),
    ],
)
def test_parse_pressure_compares_the_last_ten_seconds(some: float, full: float, level: PressureLevel) -> None:
    assert parse_pressure(pressure_text(some, full)) is level


def test_read_follows_the_file(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    pressure = SystemPressure(file)
    for some, full, level in [
        (50, 0, PressureLevel.WARNING),
        (50, 9, PressureLevel.CRITICAL),
        (0, 0, PressureLevel.NONE),
    ]:
        file.write_text(pressure_text(some, full))
        assert pressure.read() is level


def test_read_where_there_is_no_file_is_no_pressure_for_good(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    pressure = SystemPressure(file)
    assert pressure.read() is PressureLevel.NONE
    file.write_text(pressure_text(99, 99))
    assert pressure.read() is PressureLevel.NONE


@pytest.mark.parametrize("content", ["", "nonsense", "some avg10=abc", "some avg10", "full avg10=9.00", "\xff\xfe"])
def test_read_of_a_file_that_does_not_tell_is_no_pressure_until_it_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    file = tmp_path / "memory"
    pressure = SystemPressure(file)
    file.write_text(pressure_text(99, 99))
    assert pressure.read() is PressureLevel.CRITICAL
    file.write_text(content)
    for _ in range(3):
        assert pressure.read() is PressureLevel.NONE
    assert len(caplog.records) == 1
    file.write_text(pressure_text(99, 0))
    assert pressure.read() is PressureLevel.WARNING
