"""``superfluid session``: its commands and their flags. What they do is imported when one of them runs."""

from pathlib import Path
from typing import Any

import click

from superfluid.cli.commands import Flag, Group
from superfluid.cli.socket_flag import ClientCommand, json_flag, session_argument, socket_flag

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
    for command in (_inspect_command(), _export_command()):
        group.add_command(command)
    return group


def show_overview() -> None:
    """For a group that was called without a command: its help on stderr, and exit code 2."""
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


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
