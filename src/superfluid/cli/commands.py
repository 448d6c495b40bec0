"""What superfluid's commands have beyond click's: flags in panels, and errors that name the nearest flag."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from superfluid.cli.foreign_words import known_elsewhere
from superfluid.cli.nearest import nearest
from superfluid.errors import UsageError

_PAGE_WIDTH = 100
_FLAG_COLUMN = 23


class Flag(click.Option):
    """A flag that belongs to a ``panel`` of the help page.

    ``default_text`` is the default as a person reads it, shown unless the panel's heading says it for all flags.
    ``rule`` is what else the settings page says. Of several long names the help page shows the first.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        panel: str,
        default_text: str = "",
        is_default_shown: bool = True,
        rule: str = "",
        **rest: Any,
    ) -> None:
        super().__init__(names, **rest)
        self.panel = panel
        self.default_text = default_text
        self.is_default_shown = is_default_shown
        self.rule = rule

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        if self.hidden:
            return None
        default = f" (default: {self.default_text})" if self.default_text and self.is_default_shown else ""
        return self.written_as(), f"{self.help}{default}"

    def written_as(self) -> str:
        """The flag as one writes it, with its value: ``-v, --verbose``, ``--port PORT``."""
        short = [name for name in self.opts if not name.startswith("--")]
        long = [name for name in self.opts if name.startswith("--")]
        names = ", ".join([*short, *long[:1], *self.secondary_opts])
        return f"{names} {self.metavar}" if self.metavar else names


class HelpFormatter(click.HelpFormatter):
    """Bold headings; the terminal's width up to what is comfortable to read."""

    def __init__(self, *_: object, **__: object) -> None:
        import shutil

        super().__init__(width=max(50, min(shutil.get_terminal_size().columns, _PAGE_WIDTH) - 1))

    def write_heading(self, heading: str) -> None:
        self.write(click.style(f"{'':>{self.current_indent}}{heading}:", bold=True) + "\n")


class Context(click.Context):
    formatter_class = HelpFormatter


class Command(click.Command):
    """A command whose help shows its flags panel by panel and whose unknown flags are met with the nearest."""

    context_class = Context

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, _with_short_values_apart(given, ctx))
        except click.NoSuchOption as error:
            raise UsageError(unknown_flag(error.option_name, given, ctx)) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                panel = parameter.panel if isinstance(parameter, Flag) else "Other"
                panels.setdefault(panel, []).append((record[0].ljust(_FLAG_COLUMN), record[1]))
        for panel, records in sorted(panels.items(), key=lambda item: item[0] == "Other"):
            with formatter.section(panel):
                formatter.write_dl(records, col_max=_FLAG_COLUMN)


class Group(click.Group):
    """The command that holds the commands."""

    context_class = Context
    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise UsageError(unknown_flag(error.option_name, given, ctx)) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            raise UsageError(unknown_command(args[0], self.visible_commands(), below=ctx.command_path))
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order they were added: the first is what most people want."""
        return list(self.commands)

    def visible_commands(self) -> list[str]:
        return [name for name, command in self.commands.items() if not command.hidden]


def unknown_flag(name: str, given: Sequence[str], ctx: click.Context) -> str:
    """The message for a flag that ``ctx``'s command lacks, with the nearest that it has."""
    written = _as_written(name, given)
    hint = known_elsewhere(written, below=ctx.command_path)
    if hint is None:
        suggestion = _nearest_flag(written, ctx)
        hint = f"the nearest is {suggestion}" if suggestion is not None else "it has none like it"
    return f"{ctx.command_path} has no flag {written}; {hint} (`{ctx.command_path} --help` lists them)"


def _nearest_flag(written: str, ctx: click.Context, *, is_long: bool = False) -> str | None:
    known = [flag for option in _options(ctx) for flag in (*option.opts, *option.secondary_opts)]
    bare = {flag.lstrip("-"): flag for flag in known if not is_long or flag.startswith("--")}
    suggestion = nearest(written.lstrip("-"), bare)
    return None if suggestion is None else bare[suggestion]


def _options(ctx: click.Context) -> list[click.Option]:
    parameters = ctx.command.get_params(ctx)
    return [each for each in parameters if isinstance(each, click.Option) and not each.hidden]


def _with_short_values_apart(args: Sequence[str], ctx: click.Context) -> list[str]:
    """``-m=FILE`` as two words. click would read ``-max-batch`` as ``-m`` with a value: it is an unknown flag."""
    short = {name for option in _options(ctx) if not option.is_flag for name in option.opts if len(name) == 2}
    result: list[str] = []
    for index, word in enumerate(args):
        if word == "--":
            return [*result, *args[index:]]
        if word[:2] not in short or len(word) == 2:
            result.append(word)
            continue
        if word[2] == "=":
            result.extend([word[:2], word[3:]])
            continue
        written = word.partition("=")[0]
        is_foreign = known_elsewhere(written, below=ctx.command_path) is not None
        if is_foreign or _nearest_flag(written, ctx, is_long=True) is not None:
            raise UsageError(unknown_flag(written, args, ctx))
        result.append(word)
    return result


def _as_written(name: str, given: Sequence[str]) -> str:
    """The word that click complains of: it splits -max-batch into letters and names the first that it does not know."""
    words = [word.partition("=")[0] for word in given]
    whole = next((word for word in words if word.startswith(name)), None)
    if whole is None and not name.startswith("--"):
        whole = next((word for word in words if word[:1] == "-" != word[1:2] and name[1:] in word), None)
    return name if whole is None else whole


def unknown_command(name: str, known: Sequence[str], *, below: str = "superfluid") -> str:
    """The message for a command that does not exist; ``below`` is the command whose it would be."""
    hint = known_elsewhere(name, below=below)
    if hint is not None:
        return f"there is no command {name!r}; {hint}"
    suggestion = nearest(name, known)
    if suggestion is not None:
        return f"there is no command {name!r}; the nearest is `{below} {suggestion}`"
    if below == "superfluid" and ("/" in name or name.lower().endswith(".gguf")):
        return f"there is no command {name!r}; to serve that model: superfluid serve {name}"
    return f"there is no command {name!r}; there are: {', '.join(known)}"


def say_note(text: str) -> None:
    """One line on stderr that is no error."""
    click.echo(f"note: {text}", err=True)


def say_error(text: str) -> None:
    """The one line on stderr that a failed command ends with."""
    sys.stdout.flush()
    click.echo(f"{click.style('error:', fg='red', bold=True)} {text}", err=True)
