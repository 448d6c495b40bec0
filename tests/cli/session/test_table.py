import re

import pytest

from superfluid.cli.session.catalog import Row, last_used_unix_ms
from superfluid.cli.session.table import Line, from_text, plain_columns, print_table, tier_word, title_text
from superfluid.domain.events import EpochBump, Event, Message
from superfluid.native.responses import Cold, Parked, Resident, Tier, Warmth


def row(
    title: str | None = None,
    opening: str | None = None,
    tier: Tier | None = None,
    warmth: Warmth | None = None,
    **changes: int | None,
) -> Row:
    return Row(
        id=12, parent=changes.get("parent"), fork_at=changes.get("fork_at") or 0, title=title, is_archived=True,
        events=9, tokens=1000, open_tool_calls=1, tier=tier, last_unix_ms=60_000, opening=opening,
        warmth=warmth,
    )  # fmt: skip


def test_plain_columns_line_up_with_numbers_to_the_right() -> None:
    assert plain_columns([["ID", "TOKENS", "X"], ["1", "7", "long"], ["100", "1,000", ""]]) == (
        "ID   TOKENS  X\n1         7  long\n100   1,000"
    )


def test_title_is_one_line_that_cannot_steer_the_terminal() -> None:
    assert title_text(row("a\x1b[2Jb\r\nc\td\x9b\u202e")) == "a[2Jb c d"


def test_session_without_a_title_shows_how_it_began() -> None:
    assert title_text(row(opening="  Name\nthree rivers. ")) == '"Name three rivers."'
    assert title_text(row("", opening="x")) == '"x"'
    assert title_text(row()) == "-"


def test_long_opening_is_cut() -> None:
    assert re.fullmatch(r'"x{59}…"', title_text(row(opening="x" * 100)))


@pytest.mark.parametrize(
    ("tier", "word"),
    [
        (None, "-"),
        (Resident(), "resident"),
        (Parked(1000, 0), "parked"),
        (Parked(900, 0), "parked"),
        (Parked(890, 0), "parked 89%"),
        (Parked(0, 0), "parked 0%"),
        (Cold(), "cold"),
    ],
)
def test_tier_is_a_word(tier: Tier | None, word: str) -> None:
    assert tier_word(row(tier=tier)) == word


def test_fork_names_its_parent_and_the_event_where_they_part() -> None:
    assert from_text(row()) == "-"
    assert from_text(row(parent=3, fork_at=7)) == "3:7"
    assert from_text(row(parent=3)) == "3"


def test_last_use_is_the_last_event_that_is_no_restart() -> None:
    said, restart = Message(1, "", ()), EpochBump()
    assert last_used_unix_ms([Event(0, 1, 5, said), Event(1, 2, 9, restart), Event(2, 3, 10, restart)]) == 5
    assert last_used_unix_ms([Event(1, 2, 9, restart), Event(2, 3, 10, restart)]) == 9
    assert last_used_unix_ms([Event(0, 1, 0, said)]) is None
    assert last_used_unix_ms([]) is None


def test_table_without_a_terminal_is_plain_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [Line("", row("A title")), Line(":", None, "3 forks"), Line("`- ", row("x" * 200, tier=Cold()))]
    print_table(lines, now_unix_ms=240_000, has_details=True, has_parents=False)
    header, first, fold, last = capsys.readouterr().out.splitlines()
    assert header.split() == ["ID", "TITLE", "TOKENS", "EVENTS", "TIER", "LAST", "USED"]
    assert first.split() == ["12", "A", "title", "1,000", "9", "-", "3", "min", "ago", "archived,", "1", "open", "call"]
    assert fold.split() == [":", "3", "forks"]
    assert "x" * 200 in last


def test_table_of_a_server_that_tells_warmth_has_that_for_the_tier(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [Line("", row("A", tier=Resident(), warmth=Warmth(812, 0, 0))), Line("", row("B", tier=Cold()))]
    print_table(lines, now_unix_ms=60_000, has_details=True, has_parents=False)
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["ID", "TITLE", "TOKENS", "EVENTS", "WARM", "LAST", "USED"]
    assert "  lane 812  just now   generating, archived, 1 open call" in first
    assert "  ?         just now   archived, 1 open call" in second


def test_table_without_details_has_no_columns_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([Line("", row("A title", parent=3))], now_unix_ms=0, has_details=False, has_parents=True)
    assert capsys.readouterr().out.splitlines()[0].split() == ["ID", "FROM", "TITLE", "TOKENS", "EVENTS"]
