"""The series of a model of its own that fills in the middle."""

import msgspec

from superfluid.telemetry.metrics import MetricsPage
from superfluid.worker.statistics import no_statistics


def page(*, has_satellite: bool) -> list[str]:
    own = msgspec.structs.replace(
        no_statistics(), decode_tokens_total=7, lanes_active=1, pool_blocks_used=3, pool_blocks_total=9
    )
    satellite = ("small", own) if has_satellite else None
    return MetricsPage(no_statistics, lambda: 0, "box", satellite=lambda: satellite)()[0].decode().splitlines()


def test_satellite_has_series_of_its_own_beside_those_of_the_served_model() -> None:
    lines = page(has_satellite=True)
    assert [line for line in lines if line.startswith("superfluid_fim_satellite")] == [
        'superfluid_fim_satellite_info{model="small"} 1',
        "superfluid_fim_satellite_decode_tokens_total 7",
        "superfluid_fim_satellite_lanes_active 1",
        "superfluid_fim_satellite_pool_blocks_used 3",
        "superfluid_fim_satellite_pool_blocks_total 9",
    ]
    assert "superfluid_decode_tokens_total 0" in lines
    assert "# TYPE superfluid_fim_satellite_decode_tokens_total counter" in lines


def test_without_a_satellite_there_are_none() -> None:
    assert not [line for line in page(has_satellite=False) if "satellite" in line]
