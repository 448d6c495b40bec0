"""Rows as people read them: a table with Rich on a terminal, plain columns elsewhere. One line a session."""

import sys
from collections.abc import Sequence

import click
from msgspec import Struct

from superfluid.cli.printable import one_line
from superfluid.cli.session.catalog import Row
from superfluid.cli.session.warmth import warm_text
from superfluid.cli.terminal import age_text, is_terminal
from superfluid.native import responses

MAX_OPENING = 60
WHOLLY_PARKED_PERCENT = 90
_NUMBERS = ("TOKENS", "EVENTS")


class _Columns(Struct, frozen=True):
    """Which there are. ``has_warmth``: where the computed state lies, as far as a server tells that; else the tier."""

    has_details: bool
    has_parents: bool
    has_warmth: bool

    def header(self) -> list[str]:
        return [
            "ID",
            *(["FROM"] if self.has_parents else []),
            "TITLE",
            "TOKENS",
            "EVENTS",
            *(["WARM" if self.has_warmth else "TIER", "LAST USED"] if self.has_details else []),
            "",
        ]


class Line(Struct, frozen=True):
    """A row of the table. ``prefix`` is a tree's drawing. Without ``row``, ``text`` is all there is."""

    prefix: str
    row: Row | None
    text: str = ""


def print_table(lines: Sequence[Line], *, now_unix_ms: int, has_details: bool, has_parents: bool) -> None:
    """``has_parents`` shows where a fork came from, which a tree shows by itself."""
    has_warmth = any(line.row is not None and line.row.warmth is not None for line in lines)
    columns = _Columns(has_details, has_parents, has_warmth)
    if is_terminal(sys.stdout):
        _print_rich(lines, now_unix_ms, columns)
    else:
        click.echo(plain_columns([columns.header(), *(_cells(line, now_unix_ms, columns) for line in lines)]))


def plain_columns(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two blanks apart, numbers to the right. The first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    is_number = [name in _NUMBERS for name in rows[0]]
    layout = list(zip(widths, is_number, strict=True))
    padded = (
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width) for cell, (width, right) in zip(row, layout, strict=True)
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in padded)


def title_text(row: Row) -> str:
    """The title, or, of a session without one, how it opened, in quotes."""
    if row.title:
        return one_line(row.title)
    if row.opening is None:
        return "-"
    opening = one_line(row.opening).strip()
    return f'"{opening if len(opening) <= MAX_OPENING else opening[: MAX_OPENING - 1].rstrip() + "…"}"'


def tier_word(row: Row) -> str:
    """The tier; of a session that went on a good deal since it was parked, with the share that is parked."""
    match row.tier:
        case None:
            return "-"
        case responses.Resident():
            return "resident"
        case responses.Parked(covered):
            # What was drawn last is never in a parked state.
            percent = 100 * covered // max(row.tokens, 1)
            return "parked" if percent >= WHOLLY_PARKED_PERCENT else f"parked {percent}%"
        case responses.Cold():
            return "cold"


def _cells(line: Line, now_unix_ms: int, columns: _Columns) -> list[str]:
    row = line.row
    if row is None:
        return [line.prefix, *[""] * columns.has_parents, line.text, *[""] * (3 + 2 * columns.has_details)]
    tier = warm_text(row.warmth) if columns.has_warmth else tier_word(row)
    return [
        f"{line.prefix}{row.id}",
        *([from_text(row)] if columns.has_parents else []),
        title_text(row),
        f"{row.tokens:,}",
        f"{row.events:,}",
        *([tier, age_text(now_unix_ms, row.last_unix_ms)] if columns.has_details else []),
        _marks(row, is_generating=columns.has_warmth and isinstance(row.tier, responses.Resident)),
    ]


def from_text(row: Row) -> str:
    """Where a fork left its parent: the parent's id, and the first event that they do not share."""
    if row.parent is None:
        return "-"
    return f"{row.parent}:{row.fork_at}" if row.fork_at else f"{row.parent}"


def _marks(row: Row, *, is_generating: bool) -> str:
    calls = f"{row.open_tool_calls} open call{'s' * (row.open_tool_calls != 1)}" if row.open_tool_calls else ""
    marks = ("generating" if is_generating else "", "archived" if row.is_archived else "", calls)
    return ", ".join(mark for mark in marks if mark)


def _print_rich(lines: Sequence[Line], now_unix_ms: int, columns: _Columns) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    header = columns.header()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", expand=False)
    for name in header:
        is_number = name in _NUMBERS
        is_title = name == "TITLE"
        table.add_column(
            name,
            justify="right" if is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=12 if is_title else len(name),
            ratio=None,
        )
    for line in lines:
        cells = _cells(line, now_unix_ms, columns)
        styled = [Text(cell, style=_style(name, cell, line.row)) for name, cell in zip(header, cells, strict=True)]
        table.add_row(*styled, style="dim" if line.row is None or line.row.is_archived else "")
    Console(highlight=False).print(table)


def _style(name: str, cell: str, row: Row | None) -> str:
    if row is None:
        return ""
    match name:
        case "ID":
            return "bold cyan" if not row.is_archived else "cyan"
        case "TITLE":
            return "" if row.title else "italic dim"
        case "TIER":
            return {"resident": "green", "cold": "dim"}.get(cell, "yellow" if cell.startswith("parked") else "")
        case "WARM":
            return {"lane": "green", "memory": "cyan", "disk": "yellow"}.get(cell.partition(" ")[0], "dim")
        case "FROM" | "LAST USED" | "EVENTS":
            return "dim"
        case _:
            return "yellow" if name == "" else ""
