"""``superfluid session``: its commands and their flags. What they do is imported when one of them runs."""

from pathlib import Path
from typing import Any

import click

from superfluid.cli.commands import Flag, Group
from superfluid.cli.socket_flag import (
    ClientCommand,
    event_id,
    json_flag,
    session_argument,
    session_ids,
    socket_flag,
)
from superfluid.errors import UsageError

_PANEL = "Flags"


def session_command() -> Group:
    """The group, built anew."""
    group = Group(
        "session",
        subcommand_metavar="COMMAND",
        options_metavar="",
        invoke_without_command=True,
        callback=show_overview,
        short_help="List, show, fork, rename, archive and delete sessions.",
        help="Work on the sessions that a running server keeps.",
    )
    for command in (
        _list_command(),
        _tree_command(),
        _inspect_command(),
        _export_command(),
        _fork_command(),
        _rename_command(),
        _archive_command(),
        _purge_command(),
    ):
        group.add_command(command)
    return group


def show_overview() -> None:
    """For a group that was called without a command: its help on stderr, and exit code 2."""
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


def _list_command() -> click.Command:
    def run(limit: int, is_all: bool, socket_path: Path | None, **settings: Any) -> None:
        from superfluid.cli.session.listing import ListSettings, list_sessions

        list_sessions(ListSettings(limit=None if is_all else limit, **settings), socket_path)

    sort_keys = click.Choice(["id", "tokens", "events", "title"])
    return ClientCommand(
        "list",
        callback=run,
        params=[
            *_limit_flags("sessions"),
            Flag(
                ["--sort", "sort"], panel=_PANEL, metavar="KEY", type=sort_keys, default="id",
                default_text="id", help="id, tokens, events or title. Ids rise with time.",
            ),
            Flag(["--reverse", "is_reversed"], panel=_PANEL, is_flag=True, help="The other way round."),
            Flag(["--archived", "has_archived"], panel=_PANEL, is_flag=True, help="Archived sessions too."),
            json_flag(),
            socket_flag(),
        ],
        options_metavar="[FLAGS]",
        short_help="List sessions, the newest first.",
        help="List sessions, the newest first. One without a title shows how it opened.",
    )  # fmt: skip


def _tree_command() -> click.Command:
    def run(session: int | None, limit: int, is_all: bool, is_json: bool, socket_path: Path | None) -> None:
        from superfluid.cli.session.listing import show_tree

        show_tree(session, limit=None if is_all else limit, is_json=is_json, socket_path=socket_path)

    return ClientCommand(
        "tree",
        callback=run,
        params=[session_argument(is_required=False), *_limit_flags("families"), json_flag(), socket_flag()],
        options_metavar="[FLAGS]",
        short_help="Draw which session was forked from which.",
        help=(
            "Draw which session was forked from which: the newest families, or the one of SESSION.\n\n"
            "A long row of forks without a branch is folded into one line, unless --all is given."
        ),
    )


def _limit_flags(noun: str) -> list[click.Parameter]:
    return [
        Flag(
            ["-n", "--limit", "limit"], panel=_PANEL, metavar="N", type=click.IntRange(min=1), default=20,
            default_text="20", help=f"Show so many {noun}.",
        ),
        Flag(["--all", "is_all"], panel=_PANEL, is_flag=True, help=f"Show all {noun}."),
    ]  # fmt: skip


def _inspect_command() -> click.Command:
    def run(session: int, is_json: bool, socket_path: Path | None) -> None:
        from superfluid.cli.session.inspection import inspect_session

        inspect_session(session, is_json=is_json, socket_path=socket_path)

    return ClientCommand(
        "inspect",
        callback=run,
        params=[session_argument(), json_flag(), socket_flag()],
        options_metavar="[FLAGS]",
        short_help="Show a session's state and the records of its log.",
        help=(
            "Show what SESSION holds: its state, its open tool calls, and each record of its log by name.\n\n"
            "The texts themselves are in the JSON form (and in `superfluid session export --include-content`)."
        ),
    )


def _export_command() -> click.Command:
    def run(session: int, socket_path: Path | None, **settings: Any) -> None:
        from superfluid.cli.session.export import ExportSettings, export_session

        export_session(session, ExportSettings(**settings), socket_path)

    return ClientCommand(
        "export",
        callback=run,
        params=[session_argument(), *_export_flags(), socket_flag()],
        options_metavar="[FLAGS]",
        short_help="Write a session's records, or its trace, to a file or a collector.",
        help=(
            "Write SESSION's records as JSON lines, or as an OTLP trace.\n\n"
            "Texts are counted and not shown unless --include-content is given; then what looks like a credential is "
            "replaced, and long texts are cut. A trace never holds text."
        ),
    )


def _export_flags() -> list[click.Parameter]:
    formats = click.Choice(["jsonl", "otlp-jsonl"])
    return [
        Flag(
            ["--format", "format"], panel=_PANEL, metavar="FORMAT", type=formats, default="jsonl",
            default_text="jsonl", help="jsonl, a record a line; or otlp-jsonl, the trace in a line.",
        ),
        Flag(
            ["--out", "directory"], panel=_PANEL, metavar="DIR", type=click.Path(path_type=Path),
            default_text="stdout", help="Write into a file there, readable by you alone.",
        ),
        Flag(["--include-content", "has_content"], panel=_PANEL, is_flag=True, help="Texts instead of byte counts."),
        Flag(["--model", "model"], panel=_PANEL, metavar="NAME", default="", help="The model's name, for the trace."),
        Flag(
            ["--endpoint", "endpoint"], panel=_PANEL, metavar="URL",
            help="Also send the trace to the collector at URL/v1/traces.",
        ),
        Flag(
            ["--allow-content-egress", "may_send_content"], panel=_PANEL, is_flag=True,
            help="Let --endpoint and --include-content go together.",
        ),
    ]  # fmt: skip


def _fork_command() -> click.Command:
    def run(**values: Any) -> None:
        from superfluid.cli.session.changes import fork_session

        fork_session(**values)

    return ClientCommand(
        "fork",
        callback=run,
        params=[
            session_argument(),
            Flag(
                ["--at", "at_event"], panel=_PANEL, metavar="EVENT", callback=event_id,
                default_text="behind the last", help="Share only the events before this one.",
            ),
            Flag(
                ["--seed", "seed"], panel=_PANEL, metavar="N", type=click.IntRange(0, 2**64 - 1),
                default_text="the parent's", help="Draw other tokens than the parent would.",
            ),
            Flag(["--title", "title"], panel=_PANEL, metavar="TEXT", help="The fork's title."),
            json_flag(),
            socket_flag(),
        ],
        options_metavar="[FLAGS]",
        short_help="Make a session that begins as another one does.",
        help="Make a session that has SESSION's events, all or the first ones, and print its id.",
    )  # fmt: skip


def _rename_command() -> click.Command:
    def run(session: int, title: str, is_json: bool, socket_path: Path | None) -> None:
        from superfluid.cli.session.changes import rename_session

        rename_session(session, title, is_json=is_json, socket_path=socket_path)

    return ClientCommand(
        "rename",
        callback=run,
        params=[session_argument(), click.Argument(["title"], metavar="TITLE"), json_flag(), socket_flag()],
        options_metavar="[FLAGS]",
        short_help="Give a session a title.",
        help="Give SESSION the title TITLE; an empty one takes the title away.",
    )


def _archive_command() -> click.Command:
    def run(sessions: tuple[int, ...], is_undone: bool, is_json: bool, socket_path: Path | None) -> None:
        from superfluid.cli.session.changes import archive_sessions

        archive_sessions(sessions, is_undone=is_undone, is_json=is_json, socket_path=socket_path)

    return ClientCommand(
        "archive",
        callback=run,
        params=[
            click.Argument(["sessions"], nargs=-1, required=True, callback=session_ids, metavar="SESSION..."),
            Flag(["--undo", "is_undone"], panel=_PANEL, is_flag=True, help="Bring archived sessions back."),
            json_flag(),
            socket_flag(),
        ],
        options_metavar="[FLAGS]",
        short_help="Hide sessions from listings; they stay usable.",
        help="Hide each SESSION from listings. An archived session stays usable, and keeps its id.",
    )


def _purge_command() -> click.Command:
    def run(session: int, is_cascading: bool, is_rerooting: bool, **rest: Any) -> None:
        from superfluid.cli.session.changes import purge_session
        from superfluid.domain.events import PurgeMode

        if is_cascading and is_rerooting:
            raise UsageError("--cascade and --reroot contradict each other", param="--cascade")
        mode = PurgeMode.CASCADE if is_cascading else PurgeMode.REROOT if is_rerooting else None
        purge_session(session, mode, **rest)

    return ClientCommand(
        "purge",
        callback=run,
        params=[
            session_argument(),
            Flag(["--cascade", "is_cascading"], panel=_PANEL, is_flag=True, help="Delete its descendants too."),
            Flag(
                ["--reroot", "is_rerooting"], panel=_PANEL, is_flag=True,
                help="Keep its forks, with copies of what they inherit.",
            ),
            Flag(["-y", "--yes", "is_confirmed"], panel=_PANEL, is_flag=True, help="Do not ask."),
            json_flag(),
            socket_flag(),
        ],
        options_metavar="[FLAGS]",
        short_help="Delete a session for good.",
        help="Delete SESSION for good. It shows what will go, and asks.",
    )  # fmt: skip
