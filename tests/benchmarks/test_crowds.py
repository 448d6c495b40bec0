"""How the crowded scenarios count, on streams whose times are made up."""

from pathlib import Path

import pytest
from benchmarks.client import StreamRecord
from benchmarks.crowds import longest_gap_of, seconds_until_all_ended
from benchmarks.scenarios import SCENARIOS
from benchmarks.settings import BenchSettings, settings_for


def _stream(sent: float, times: list[float]) -> StreamRecord:
    return StreamRecord(sent=sent, status=200, text_times=times, events=[])


@pytest.mark.parametrize(("times", "gap"), [([], 0.0), ([1.0], 0.0), ([1.0, 1.5, 3.5, 4.0], 2.0)])
def test_longest_gap_is_between_neighbours(times: list[float], gap: float) -> None:
    assert longest_gap_of(times) == gap


def test_end_of_all_is_counted_from_the_first_request() -> None:
    assert seconds_until_all_ended([_stream(1.0, [5.0, 6.0]), _stream(2.0, [3.0, 9.0])]) == 8.0


def test_scenarios_share_the_settings_but_for_two_that_need_a_smaller_server() -> None:
    settings = BenchSettings(model=Path("m.gguf"))
    changed = {name for name in SCENARIOS if settings_for(name, settings) != settings}
    assert changed == {"returning", "overcommit"}
    crowd = settings_for("overcommit", settings)
    assert crowd.crowd_clients * crowd.window_tokens == 4 * crowd.lanes * crowd.window_tokens
