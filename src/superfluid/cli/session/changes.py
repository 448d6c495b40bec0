"""What ``superfluid session fork``, ``rename``, ``archive`` and ``purge`` do."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from msgspec import structs

from superfluid.cli.commands import say_note
from superfluid.cli.session.catalog import Row, fetch_rows, fetch_summary, row_of, with_details
from superfluid.cli.session.forest import Forest
from superfluid.cli.session.table import title_text
from superfluid.cli.socket_flag import connect, print_json
from superfluid.cli.terminal import is_terminal
from superfluid.domain.events import GenParams, PurgeMode
from superfluid.errors import UsageError
from superfluid.native import requests, responses
from superfluid.native.client import SessionClient
from superfluid.native.responses import SessionSummary

MAX_NAMED = 20
"""So many of the sessions that a purge takes are named before it asks."""


def fork_session(
    session: int,
    *,
    at_event: int | None,
    seed: int | None,
    title: str | None,
    is_json: bool,
    socket_path: Path | None,
) -> None:
    """Prints the new session's id. ``at_event`` ``None`` is behind the last event."""
    with connect(socket_path) as client:
        at_event = fetch_summary(client, session).events if at_event is None else at_event
        params = None if seed is None else _params_with_seed(client, session, seed)
        child = client.ask(requests.Fork(session, at_event, params), responses.Created).session
        if title is not None:
            client.ask(requests.SetMeta(child, 0, title, None), responses.Meta)
    if is_json:
        print_json({"session": child, "parent": session, "at_event": at_event})
        return
    click.echo(child)
    say_note(f"session {child} has the first {at_event} events of session {session}")


def _params_with_seed(client: SessionClient, session: int, seed: int) -> GenParams:
    inspection = client.ask(requests.Inspect(session), responses.Inspected).inspection
    return structs.replace(inspection.params, seed=seed)


def rename_session(session: int, title: str, *, is_json: bool, socket_path: Path | None) -> None:
    with connect(socket_path) as client:
        version = _set_meta(client, fetch_summary(client, session), title=title)
    if is_json:
        print_json({"session": session, "title": title, "meta_version": version})


def archive_sessions(sessions: Sequence[int], *, is_undone: bool, is_json: bool, socket_path: Path | None) -> None:
    """All of them must be there, else nothing is changed."""
    with connect(socket_path) as client:
        summaries = [fetch_summary(client, session) for session in sessions]
        for summary in summaries:
            if summary.archived is is_undone:
                _set_meta(client, summary, is_archived=not is_undone)
    if is_json:
        print_json([{"session": session, "archived": not is_undone} for session in sessions])


def _set_meta(
    client: SessionClient, summary: SessionSummary, *, title: str | None = None, is_archived: bool | None = None
) -> int:
    change = requests.SetMeta(summary.id, summary.meta_version, title, is_archived)
    return client.ask(change, responses.Meta).version


def purge_session(
    session: int, mode: PurgeMode | None, *, is_confirmed: bool, is_json: bool, socket_path: Path | None
) -> None:
    """Shows what will go and asks, unless ``is_confirmed``. Raises UsageError where it cannot ask, or where there are
    descendants and nobody said what becomes of them."""
    if not is_confirmed and not is_terminal(sys.stdin):
        raise UsageError("purge asks before it deletes, and here it cannot: give --yes")
    with connect(socket_path) as client:
        summary = fetch_summary(client, session)
        forest = Forest(fetch_rows(client, include_archived=True))
        descendants = [forest.rows[child] for child in forest.descendants(session)]
        if descendants and mode is None:
            raise UsageError(
                f"session {session} has {_counted(len(descendants), 'descendant')}: say --cascade to delete them too, "
                "or --reroot to keep them, with copies of what they inherit"
            )
        mode = mode or PurgeMode.CASCADE
        if not is_confirmed:
            row, *shown = with_details(client, [row_of(summary), *descendants[:MAX_NAMED]])
            click.echo(purge_text(row, [*shown, *descendants[MAX_NAMED:]], mode), err=True)
            click.confirm("Delete for good?", abort=True, err=True)
        purged = client.ask(requests.Purge(session, summary.generation, mode), responses.Purged).sessions
    if is_json:
        print_json({"purged": list(purged)})
    else:
        click.echo(f"purged {_counted(len(purged), 'session')}: {', '.join(map(str, purged))}")


def purge_text(row: Row, descendants: Sequence[Row], mode: PurgeMode) -> str:
    """What a purge is about to do. Pure."""
    lines = [f"This deletes session {_named(row)}"]
    if descendants and mode is PurgeMode.CASCADE:
        lines[0] += f" and {_counted(len(descendants), 'descendant')}:"
        lines += [f"  {_named(child)}" for child in descendants[:MAX_NAMED]]
        if len(descendants) > MAX_NAMED:
            lines.append(f"  and {len(descendants) - MAX_NAMED:,} more")
    elif descendants:
        children = [child for child in descendants if child.parent == row.id]
        lines[0] += "."
        lines.append(f"Kept, with copies of what they inherit: {', '.join(_named(child) for child in children)}")
    else:
        lines[0] += "."
    return "\n".join(lines)


def _named(row: Row) -> str:
    title = f" {title_text(row)}" if row.title or row.opening else ""
    return f"{row.id}{title} ({_counted(row.tokens, 'token')}{', archived' if row.is_archived else ''})"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
