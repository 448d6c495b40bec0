"""``superfluid top``: its arguments, and the way from them to the monitor of several nodes."""

import os
import sys

import click

from superfluid.cli.commands import Command, Flag
from superfluid.config import environment_value
from superfluid.errors import EnvironmentFaultError, UsageError

_PANEL = "Nodes"


def top_command() -> click.Command:
    """The command, built anew."""
    return Command(
        "top",
        callback=_top,
        params=[
            click.Argument(["addresses"], nargs=-1, metavar="HOST:PORT..."),
            Flag(
                ["--api-key"],
                panel=_PANEL,
                metavar="KEY",
                default_text="$SUPERFLUID_API_KEY",
                help="The key of nodes that want one.",
            ),
        ],
        options_metavar="[FLAGS]",
        short_help="Watch several servers at once.",
        help=(
            "Watch several servers at once: one row for each, once a second.\n\n"
            "Keys: q or Esc leaves, s sorts by another column, / shows only the nodes whose name or address has a text."
        ),
    )


def _top(addresses: tuple[str, ...], api_key: str | None) -> int:
    if not addresses:
        raise UsageError("name at least one server, such as: superfluid top 127.0.0.1:8453")
    from superfluid.tui.poller import parse_address

    try:
        parsed = [parse_address(address) for address in addresses]
    except ValueError as error:
        raise UsageError(f"{str(error)!r} is no HOST:PORT, such as 127.0.0.1:8453") from error
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise EnvironmentFaultError("superfluid top draws on a terminal, and there is none here")
    try:
        from superfluid.tui.top import run_top
    except ModuleNotFoundError as error:
        raise EnvironmentFaultError(f"superfluid top needs {error.name}: pip install 'superfluid-llm[tui]'") from error
    run_top(parsed, api_key or environment_value(os.environ, "SUPERFLUID_API_KEY"))
    return 0
