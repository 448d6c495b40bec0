"""The chat's commands: which there are, and what a line that was typed means. Pure."""

from typing import NamedTuple

from msgspec import Struct

from superfluid.cli.nearest import nearest
from superfluid.errors import UsageError


class SlashCommand(NamedTuple):
    """``usage`` is what follows the name; ``meaning`` fits a line."""

    name: str
    usage: str
    meaning: str


COMMANDS = (
    SlashCommand("help", "", "show this"),
    SlashCommand("retry", "", "have the last message answered anew, with another seed"),
    SlashCommand("continue", "", "go on with a reply that was cut"),
    SlashCommand("edit", "N [TEXT]", "change message N, drop what followed, have it answered"),
    SlashCommand("trim", "[N]", "go back to before message N, by default the last one"),
    SlashCommand("fork", "[N]", "branch off here, or behind the reply to message N"),
    SlashCommand("tree", "", "draw this session's family"),
    SlashCommand("switch", "ID", "go to another session"),
    SlashCommand("new", "", "begin another session"),
    SlashCommand("history", "[N]", "show the last N messages again, by default all"),
    SlashCommand("title", "TEXT", "give the session a title"),
    SlashCommand("system", "TEXT", "set the system message, before anything is said"),
    SlashCommand("tools", "[FILE]", "show open calls, or declare the functions in a JSON file"),
    SlashCommand("answer", "[ID] TEXT", "answer an open call; when none is left, the model goes on"),
    SlashCommand("fail", "[ID] [NOTE]", "say that an open call failed"),
    SlashCommand("image", "FILE", "show the model an image; then write about it"),
    SlashCommand("quit", "", "leave; Ctrl-D does the same"),
)

_ALIASES = {"exit": "quit", "q": "quit", "?": "help", "h": "help", "resume": "continue", "undo": "trim"}
_NAMES = {command.name: command for command in COMMANDS}


class Typed(Struct, frozen=True):
    """A message if ``command`` is ``None``, else a command and what follows its name."""

    command: str | None
    text: str


def parse_line(line: str) -> Typed:
    """What was meant. Two slashes begin a message that begins with one. Raises UsageError on an unknown command."""
    if not line.startswith("/"):
        return Typed(None, line)
    if line.startswith("//"):
        return Typed(None, line[1:])
    name, _, rest = line[1:].partition(" ")
    name = name.strip()
    known = _ALIASES.get(name, name)
    if known in _NAMES:
        return Typed(known, rest.strip())
    suggestion = nearest(name, _NAMES) if name else None
    hint = f"do you mean /{suggestion}?" if suggestion is not None else "/help lists them."
    raise UsageError(f"There is no /{name}; {hint} To send a message that begins with a slash, type two.")


def help_rows() -> list[tuple[str, str]]:
    """How a command is written, and what it does."""
    return [(f"/{command.name} {command.usage}".rstrip(), command.meaning) for command in COMMANDS]


def number_of(text: str, usage: str, default: int | None = None) -> int:
    """The number in ``text``. Raises UsageError, with the ``usage``, if there is none and no default."""
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise UsageError(f"That needs a number: {usage}")
    return int(text)


def completions(text: str) -> list[str]:
    """The commands that ``text`` may become."""
    return [f"/{command.name} " for command in COMMANDS if text.startswith("/") and command.name.startswith(text[1:])]
