"""The command line's page names every command and every flag of the clients, and every command of the chat."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from superfluid.cli.chat.slash import COMMANDS
from superfluid.cli.main import root_command

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")


def client_commands() -> Iterator[tuple[str, click.Command]]:
    root = root_command()
    for name in ("chat", "session", "media"):
        command = root.commands[name]
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", found) for below, found in command.commands.items())
        else:
            yield name, command


@pytest.mark.parametrize("name", root_command().commands)
def test_page_names_the_command(name: str) -> None:
    assert f"`superfluid {name}`" in PAGE


@pytest.mark.parametrize(("name", "command"), list(client_commands()), ids=str)
def test_page_shows_the_command_and_names_its_flags(name: str, command: click.Command) -> None:
    assert re.search(rf"\b{name}\b", PAGE) or f"`{name.split()[1]}`" in PAGE
    flags = [flag for option in command.params if isinstance(option, click.Option) for flag in option.opts]
    missing = [flag for flag in flags if flag.startswith("--") and not re.search(rf"{flag}\b", PAGE)]
    assert missing == []


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_page_names_the_chats_command(name: str) -> None:
    assert re.search(rf"`/{name}\b", PAGE)


def test_page_shows_a_service_that_starts_with_flags_there_are() -> None:
    found = re.search(r"^ExecStart=\S+/superfluid serve (.+)$", PAGE, re.MULTILINE)
    assert found is not None
    context = root_command().commands["serve"].make_context("serve", found[1].split())
    assert context.params["models"] == ("/srv/models/model.gguf",)
