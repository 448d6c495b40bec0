import pytest

from superfluid.tui.drawing import bar, chart, clock, duration, load_style, nice_ceiling, printable


@pytest.mark.parametrize(
    ("part", "text"),
    [(0.0, "░░░░"), (0.5, "██░░"), (1.0, "████"), (2.0, "████"), (-1.0, "░░░░"), (None, "····")],
)
def test_bar_is_filled_to_its_part(part: float | None, text: str) -> None:
    assert bar(part, 4).plain == text


@pytest.mark.parametrize(("part", "style"), [(0.6, "green"), (0.61, "yellow"), (0.85, "yellow"), (0.86, "red")])
def test_load_is_green_yellow_and_red(part: float, style: str) -> None:
    assert load_style(part) == style


def test_chart_shows_the_newest_values_at_the_right_under_its_ceiling() -> None:
    rows = [row.plain for row in chart([9.0, 0.0, 10.0, 20.0, 5.0], 9, 2, 20.0)]
    assert rows == ["  20│  █ ", "   0│ ██▄"]


def test_chart_of_nothing_is_empty() -> None:
    assert [row.plain for row in chart([], 8, 2, 10.0)] == ["  10│   ", "   0│   "]


@pytest.mark.parametrize(
    ("value", "ceiling"), [(0, 10), (10, 10), (11, 20), (21, 50), (51, 100), (100, 100), (101, 200), (4999, 5000)]
)
def test_ceiling_is_one_two_or_five_times_a_power_of_ten(value: float, ceiling: float) -> None:
    assert nice_ceiling(value) == ceiling


def test_times_are_written_for_people() -> None:
    assert [duration(0.0123), duration(1.25)] == ["12 ms", "1.2 s"]
    assert clock(3 * 3600 + 62) == "3:01:02"


def test_text_from_elsewhere_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[2Jb\n") == "a\ufffd[2Jb\ufffd"
