"""The page for those who know other servers promises flags that exist, and hints for those that do not."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from superfluid.cli.foreign_words import FLAGS
from superfluid.cli.main import root_command

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text(encoding="utf-8")


def rows() -> Iterator[list[str]]:
    for line in PAGE.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def own_flags() -> set[str]:
    commands = [command for command in root_command().commands.values() if not isinstance(command, click.Group)]
    options = [each for command in commands for each in command.params if isinstance(each, click.Option)]
    return {flag for option in options for flag in (*option.opts, *option.secondary_opts)}


def test_page_for_newcomers_names_flags_that_exist() -> None:
    named = {flag for row in rows() for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", row[-1])}
    assert len(named) > 15
    assert named <= own_flags()


def test_page_for_newcomers_names_foreign_flags_that_the_command_line_knows() -> None:
    foreign = {flag for row in rows() for cell in row[:-1] for flag in re.findall(r"(?<![\w-])--?[a-z][\w-]*", cell)}
    assert len(foreign) > 30
    unknown = foreign - FLAGS.keys()
    assert [flag for flag in unknown if not any(own.startswith(flag) for own in own_flags())] == []
