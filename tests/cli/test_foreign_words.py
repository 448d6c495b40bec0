import re
from collections.abc import Iterator

import click
import pytest

from superfluid.cli.foreign_words import BELOW, FLAGS, known_elsewhere
from superfluid.cli.main import main, root_command


def flags_of(command: click.Command) -> set[str]:
    context = click.Context(command)
    options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    return {flag for option in options for flag in (*option.opts, *option.secondary_opts)}


def command_at(path: str) -> click.Command:
    command: click.Command = root_command()
    for name in path.split()[1:]:
        if isinstance(command, click.Group):
            command = command.commands[name]
    return command


def hints() -> Iterator[str]:
    yield from FLAGS.values()
    for commands in BELOW.values():
        yield from commands.values()


def test_foreign_flags_are_none_of_ours_and_their_hints_name_flags_that_exist() -> None:
    ours = flags_of(command_at("superfluid serve"))
    assert not ours & FLAGS.keys()
    named = {flag for hint in FLAGS.values() for flag in re.findall(r"--[a-z-]+", hint)}
    assert len(named) > 10
    assert named <= ours


def test_foreign_commands_are_none_of_ours_and_their_hints_name_commands_that_exist() -> None:
    for path, foreign in BELOW.items():
        group = command_at(path)
        assert isinstance(group, click.Group)
        assert not group.commands.keys() & foreign.keys()
    for hint in hints():
        for named in re.findall(r"`(superfluid [a-z ]+)", hint):
            command_at(named.strip())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "-c", "4096"], "no flag -c; here it is --max-context"),
        (["serve", "--ctx_size=4096"], "no flag --ctx_size; here it is --max-context"),
        (["serve", "m.gguf", "-ngl", "99"], "no flag -ngl; here it is --gpu-layers"),
        (["serve", "-np", "4"], "no flag -np; here it is --max-batch"),
        (["serve", "-hf", "org/model"], "no flag -hf; the hub's id stands alone"),
        (["serve", "-md", "small.gguf"], "no flag -md; here it is --speculate draft-model:"),
        (["serve", "--embedding"], "no flag --embedding; this server generates text only"),
        (["chat", "--ctx-size", "4096"], "no flag --ctx-size; it has none like it"),
        (["chat", "-max-tokens", "5"], "no flag -max-tokens; the nearest is --max-tokens"),
        (["run", "llama3"], "no command 'run'; `superfluid serve MODEL` serves one"),
        (["ps"], "no command 'ps'; `superfluid top HOST:PORT` watches servers"),
        (["session", "ls"], "no command 'ls'; here it is `superfluid session list`"),
        (["help", "session", "rm"], "no command 'rm'; here it is `superfluid session purge`"),
    ],
)
def test_word_of_another_server_is_met_with_what_it_is_called_here(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last


@pytest.mark.parametrize("word", ["--max-context", "-m", "--frobnicate", "x"])
def test_word_that_no_server_has_gets_no_hint(word: str) -> None:
    assert known_elsewhere(word, below="superfluid serve") is None
