"""The entry point: ``superfluid`` and its commands, and what becomes of an error that reaches the top."""

import errno
import os
import sys
from collections.abc import Sequence

import click

from superfluid.cli.chat.command import chat_command
from superfluid.cli.commands import Command, Group, say_error, unknown_command
from superfluid.cli.media import media_command
from superfluid.cli.pull import pull_command
from superfluid.cli.serve import serve_command
from superfluid.cli.session.command import session_command, show_overview
from superfluid.cli.terminal import open_standard_streams
from superfluid.cli.top import top_command
from superfluid.errors import SuperfluidError, UsageError
from superfluid.version import __version__

EXIT_OK, EXIT_FAILURE, EXIT_USAGE = 0, 1, 2

# What writing to a redirected stdout runs into. A reader that went away is click's to deal with.
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

_EXAMPLES = """\b
Examples:
  superfluid serve                            the embedded model
  superfluid serve ./model.gguf --port 9000   a file
  superfluid serve org/model:Q4_K_M           from the hub
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line (``sys.argv`` if None) and returns its exit code: 0, 1 or 2."""
    open_standard_streams()
    try:
        result = root_command().main(
            args=None if arguments is None else list(arguments), prog_name="superfluid", standalone_mode=False
        )
    except UsageError as error:
        return _fail(error.message, EXIT_USAGE)
    except SuperfluidError as error:
        return _fail(error.message, EXIT_FAILURE)
    except click.Abort:
        return _fail("interrupted", EXIT_FAILURE)
    except click.ClickException as error:
        return _fail(_plain_message(error), EXIT_USAGE)
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        _drop_output()
        return _fail(f"the output cannot be written: {error.strerror}", EXIT_FAILURE)
    return result if isinstance(result, int) else EXIT_OK


def root_command() -> Group:
    """The command tree, built anew."""
    root = Group(
        "superfluid",
        callback=show_overview,
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        params=[
            click.Option(
                ["-V", "--version"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                callback=_show_version,
                help="Show the version and exit.",
            )
        ],
        subcommand_metavar="COMMAND",
        options_metavar="",
        help="superfluid serves a local language model to many clients at once.",
        epilog=_EXAMPLES,
    )
    root.add_command(serve_command())
    root.add_command(chat_command())
    root.add_command(session_command())
    root.add_command(media_command())
    root.add_command(top_command())
    root.add_command(pull_command())
    root.add_command(_help_command())
    root.add_command(_version_command())
    return root


def _show_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        click.echo(f"superfluid {__version__}")
        context.exit(EXIT_OK)


def _help_command() -> click.Command:
    def show_help(command: tuple[str, ...]) -> None:
        context = click.get_current_context().parent
        assert context is not None
        for name in command:
            group = context.command
            found = group.get_command(context, name) if isinstance(group, Group) else None
            if found is None:
                known = group.visible_commands() if isinstance(group, Group) else ()
                raise UsageError(unknown_command(name, known, below=context.command_path))
            context = found.context_class(found, info_name=name, parent=context, **found.context_settings)
        click.echo(context.get_help())

    return Command(
        "help",
        callback=show_help,
        params=[click.Argument(["command"], nargs=-1)],
        options_metavar="",
        help="Show the help of a command, or of superfluid.",
    )


def _version_command() -> click.Command:
    def show_version() -> None:
        click.echo(f"superfluid {__version__}")

    return Command("version", callback=show_version, options_metavar="", help="Show the version.")


def _fail(message: str, code: int) -> int:
    say_error(message)
    return code


def _drop_output() -> None:
    """What is left in stdout's buffer would be tried once more at exit, and complained of."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _plain_message(error: click.ClickException) -> str:
    """click's complaint in the form of ours: ``--port: 'x' is not a valid integer``."""
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Argument):
        return f"{error.param.make_metavar(error.ctx or click.get_current_context())} is missing"
    if isinstance(error, click.BadParameter) and error.param is not None:
        flags = [name for name in error.param.opts if name.startswith("--")] or error.param.opts
        # click names its types as it has them.
        problem = error.message.rstrip(".").replace("float range", "number").replace("integer range", "integer")
        return f"{flags[0]}: {problem}"
    message = error.format_message().rstrip(".").replace("Option '", "flag '").replace("\n", " ")
    if message.startswith("Got unexpected extra argument") and _command_of(error) == "superfluid chat":
        return "superfluid chat asks for the message, or reads it from a pipe: echo Hello | superfluid chat"
    return message


def _command_of(error: click.ClickException) -> str:
    return error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else ""


if __name__ == "__main__":
    sys.exit(main())
