"""What all clients of the session API's socket share on the command line: ``--socket``, ``--json``, connecting."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from superfluid.cli.commands import Command, Flag
from superfluid.cli.terminal import is_unicode, survive_any_text
from superfluid.errors import UsageError

if TYPE_CHECKING:
    from superfluid.native.client import SessionClient


def session_id(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """A parameter's callback: the number of a session. They begin at 1."""
    return _id(context, parameter, value, "session", 1)


def session_ids(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[int]:
    """As ``session_id``, of a parameter that takes several; each is taken once."""
    numbers = [_id(context, parameter, value, "session", 1) for value in values]
    return list(dict.fromkeys(number for number in numbers if number is not None))


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
    """A command that talks to a server. Wrong usage is met with its help; a command with many flags says
    ``is_help_short``, and shows the line of its usage alone."""

    def __init__(self, *arguments: Any, is_help_short: bool = False, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._is_help_short = is_help_short

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except (UsageError, click.UsageError):
            click.echo(self.get_usage(ctx) if self._is_help_short else self.get_help(ctx) + "\n", err=True)
            raise

    def invoke(self, ctx: click.Context) -> Any:
        survive_any_text()
        return super().invoke(ctx)


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


def session_argument(*, is_required: bool = True) -> click.Argument:
    metavar = "SESSION" if is_required else "[SESSION]"
    return click.Argument(["session"], callback=session_id, required=is_required, metavar=metavar)


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

    click.echo(json.dumps(value, indent=2, ensure_ascii=not is_unicode(sys.stdout)))
