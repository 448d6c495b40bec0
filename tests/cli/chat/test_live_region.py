from tests.fixtures.terminal import ScreenTerminal

from superfluid.cli.chat.live_region import LiveRegion


def region_on(terminal: ScreenTerminal) -> LiveRegion:
    return LiveRegion(terminal, lambda: terminal.size)


def test_lines_are_drawn_in_the_place_of_the_old_ones() -> None:
    terminal = ScreenTerminal()
    region = region_on(terminal)
    region.draw(["one", "two"])
    region.draw(["one", "two and a half", "three"])
    region.draw(["one"])
    assert terminal.text == "one"
    region.draw(["other", "lines"])
    assert terminal.text == "other\nlines"


def test_lines_above_stay_for_good() -> None:
    terminal = ScreenTerminal()
    region = region_on(terminal)
    region.draw(["growing"])
    region.draw(["next"], above=["grown", ""])
    region.draw([], above=["all"])
    assert terminal.text == "grown\n\nall\n"
    terminal.write("prompt")
    assert terminal.text == "grown\n\nall\nprompt"


def test_cleared_region_leaves_nothing() -> None:
    terminal = ScreenTerminal()
    terminal.write("before\n")
    region = region_on(terminal)
    region.draw(["a", "b", "c"])
    region.clear()
    terminal.write("after")
    assert terminal.text == "before\nafter"


def test_only_what_changed_is_written() -> None:
    terminal = ScreenTerminal()
    region = region_on(terminal)
    region.draw(["a long line that stays", "last"])
    count = len(terminal.writes)
    region.draw(["a long line that stays", "last"])
    assert len(terminal.writes) == count
    region.draw(["a long line that stays", "last one"])
    assert "stays" not in terminal.writes[-1]
    assert terminal.text == "a long line that stays\nlast one"


def test_each_drawing_is_one_write_that_shows_at_once() -> None:
    terminal = ScreenTerminal()
    region = region_on(terminal)
    region.draw(["a"])
    region.draw(["b", "c"], above=["x"])
    assert len(terminal.writes) == 2
    assert all(text.startswith("\x1b[?2026h") and text.endswith("\x1b[?2026l") for text in terminal.writes)


def test_more_lines_than_fit_show_the_last_and_are_whole_when_they_are_final() -> None:
    terminal = ScreenTerminal(rows=6)
    region = region_on(terminal)
    lines = [f"line {number}" for number in range(20)]
    for count in range(1, 21):
        region.draw(lines[:count])
    assert terminal.text == "\n".join(lines[-5:])
    region.draw([], above=lines)
    assert terminal.text == "\n".join(lines) + "\n"


def test_terminal_that_became_narrower_is_drawn_without_leftovers() -> None:
    terminal = ScreenTerminal(columns=40)
    terminal.write("before\n")
    region = region_on(terminal)
    region.draw(["x" * 39, "y" * 30, "\x1b[1mz\x1b[0m"])
    terminal.resize(15)
    region.draw(["short", "lines"])
    assert terminal.text == "before\nshort\nlines"


def test_terminal_that_became_wider_is_drawn_without_leftovers() -> None:
    terminal = ScreenTerminal(columns=20)
    region = region_on(terminal)
    region.draw(["x" * 19, "y"])
    terminal.resize(60)
    region.draw(["x" * 19 + "y"])
    assert terminal.text == "x" * 19 + "y"
