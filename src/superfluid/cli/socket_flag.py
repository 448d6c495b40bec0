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


class IdType(click.ParamType):
    """A number of the log: a session's, which begin at 1, or an event's, which begin at 0."""

    name = "id"

    def __init__(self, noun: str, first: int) -> None:
        self._noun = noun
        self._first = first

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not (text.isascii() and text.isdecimal() and len(text) <= 20 and self._first <= int(text) < 2**64):
            self.fail(f"{text!r} is no {self._noun} id; those are numbers from {self._first} on", param, ctx)
        return int(text)


SESSION_ID = IdType("session", 1)
EVENT_ID = IdType("event", 0)


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
    return click.Argument([name], type=SESSION_ID, metavar=name.upper())


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
