"""What ``superfluid session list`` and ``tree`` do."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from superfluid.cli.commands import say_note
from superfluid.cli.session.catalog import MAX_DETAILED, Row, fetch_rows, with_details, with_warmth
from superfluid.cli.session.forest import ASCII_GLYPHS, Forest, Glyphs, drawn_lines
from superfluid.cli.session.table import Line, print_table
from superfluid.cli.socket_flag import connect, print_json
from superfluid.cli.terminal import is_unicode
from superfluid.errors import RequestRefusedError
from superfluid.native.client import SessionClient

SORT_KEYS: dict[str, Callable[[Row], Any]] = {
    "id": lambda row: row.id,
    "tokens": lambda row: (row.tokens, row.id),
    "events": lambda row: (row.events, row.id),
    "title": lambda row: ((row.title or "").casefold(), row.id),
}


class ListSettings(Struct, frozen=True, kw_only=True):
    """The flags. The largest come first (titles: from A), ``is_reversed`` the other way; ``limit`` ``None`` is all."""

    limit: int | None = 20
    sort: str = "id"
    is_reversed: bool = False
    has_archived: bool = False
    is_json: bool = False


def list_sessions(settings: ListSettings, socket_path: Path | None) -> None:
    with connect(socket_path) as client:
        every = fetch_rows(client, include_archived=settings.has_archived)
        rows, has_details = _detailed(client, chosen_rows(every, settings))
    if settings.is_json:
        print_json([row.to_plain() for row in rows])
    elif rows:
        _print([Line("", row) for row in rows], has_details=has_details, has_parents=True)
    _say_rest(len(rows), len(every), "session")


def chosen_rows(rows: Sequence[Row], settings: ListSettings) -> list[Row]:
    """Sorted, and not more than asked for. Pure."""
    is_descending = (settings.sort != "title") != settings.is_reversed
    ordered = sorted(rows, key=SORT_KEYS[settings.sort], reverse=is_descending)
    return ordered[: settings.limit]


def show_tree(session: int | None, *, limit: int | None, is_json: bool, socket_path: Path | None) -> None:
    """Families, the newest first, or the one of ``session``. ``limit`` ``None`` draws all, and folds nothing."""
    with connect(socket_path) as client:
        forest = Forest(fetch_rows(client, include_archived=True))
        roots = forest.newest_roots()
        families = len(roots)
        if session is not None:
            if session not in forest.rows:
                raise RequestRefusedError(f"unknown session {session}")
            roots, families = [forest.root_of(session)], 1
        glyphs = Glyphs() if is_unicode(sys.stdout) else ASCII_GLYPHS
        kept = () if session is None else (session,)
        lines = [
            line
            for root in roots[:limit]
            for line in drawn_lines(forest, root, glyphs, is_folded=limit is not None and not is_json, kept=kept)
        ]
        rows, has_details = _detailed(client, [line.row for line in lines if line.row is not None])
    known = {row.id: row for row in rows}
    if is_json:
        print_json([row.to_plain() for row in rows])
    elif lines:
        shown = [line if line.row is None else Line(line.prefix, known[line.row.id]) for line in lines]
        _print(shown, has_details=has_details, has_parents=False)
    _say_rest(min(families, len(roots[:limit])), families, "family", "families")


def _detailed(client: SessionClient, rows: list[Row]) -> tuple[list[Row], bool]:
    if len(rows) > MAX_DETAILED:
        say_note(f"tiers and ages are left out of listings of more than {MAX_DETAILED} sessions")
        return rows, False
    return with_warmth(client, with_details(client, rows)), True


def _print(lines: Sequence[Line], *, has_details: bool, has_parents: bool) -> None:
    print_table(lines, now_unix_ms=time.time_ns() // 1_000_000, has_details=has_details, has_parents=has_parents)


def _say_rest(shown: int, there_are: int, noun: str, plural: str = "sessions") -> None:
    if not there_are:
        say_note("there are no sessions yet")
    elif shown < there_are:
        click.echo(err=True)
        say_note(f"{shown:,} of {there_are:,} {plural}; --all shows the rest")
