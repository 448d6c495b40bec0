"""What all clients of the session API's socket share on the command line: ``--socket``, ``--json``, connecting."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from superfluid.cli.commands import Command, Flag
from superfluid.errors import UsageError

if TYPE_CHECKING:
    from superfluid.native.client import SessionClient


def session_id(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """A parameter's callback: the number of a session. They begin at 1."""
    return _id(context, parameter, value, "session", 1)


def event_id(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """A parameter's callback: the number of an event. They begin at 0."""
    return _id(context, parameter, value, "event", 0)


def _id(context: click.Context, parameter: click.Parameter, text: str | None, noun: str, first: int) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and first <= int(text) < 2**64):
        problem = f"{text!r} is no {noun} id; those are numbers from {first} on"
        raise click.BadParameter(problem, ctx=context, param=parameter)
    return int(text)


class ClientCommand(Command):
    """A command that talks to a server. Wrong usage is met with its help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except (UsageError, click.UsageError):
            click.echo(self.get_help(ctx) + "\n", err=True)
            raise


def socket_flag() -> Flag:
    """``--socket PATH``, handed over as ``socket_path``."""
    return Flag(
        ["--socket", "socket_path"],
        panel="Flags",
        metavar="PATH",
        type=click.Path(path_type=Path),
        default_text="where serve puts it",
        help="The server's socket.",
    )


def json_flag() -> Flag:
    """``--json``, handed over as ``is_json``."""
    return Flag(["--json", "is_json"], panel="Flags", is_flag=True, help="Print JSON.")


def session_argument(name: str = "session") -> click.Argument:
    return click.Argument([name], callback=session_id, metavar=name.upper())


def resolve_socket(given: Path | None) -> Path:
    """The socket to connect to: ``given``, else where ``serve`` puts it."""
    from superfluid.config import default_socket_path, home_directory

    return given.expanduser() if given is not None else default_socket_path(home_directory(os.environ), os.environ)


def connect(given: Path | None) -> "SessionClient":
    """Raises ServerUnreachableError."""
    from superfluid.native.client import SessionClient

    return SessionClient(resolve_socket(given))


def print_json(value: Any) -> None:
    """Indented, on stdout; whatever the terminal's encoding cannot show is escaped."""
    import json

    is_unicode = "utf" in (getattr(sys.stdout, "encoding", None) or "").lower()
    click.echo(json.dumps(value, indent=2, ensure_ascii=not is_unicode))
