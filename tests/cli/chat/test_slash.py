import pytest

from superfluid.cli.chat.slash import COMMANDS, Typed, completions, help_rows, number_of, parse_line
from superfluid.errors import UsageError


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        ("hello", Typed(None, "hello")),
        ("  hello /quit", Typed(None, "  hello /quit")),
        ("a\n/quit", Typed(None, "a\n/quit")),
        ("//etc/hosts is what?", Typed(None, "/etc/hosts is what?")),
        ("/quit", Typed("quit", "")),
        ("/exit", Typed("quit", "")),
        ("/edit 3  new text ", Typed("edit", "3  new text")),
        ("/undo", Typed("trim", "")),
    ],
)
def test_line_is_a_message_or_a_command(line: str, typed: Typed) -> None:
    assert parse_line(line) == typed


@pytest.mark.parametrize(
    ("line", "hint"), [("/retri", "do you mean /retry?"), ("/frobnicate", "/help lists them."), ("/", "/help lists")]
)
def test_unknown_command_is_refused_with_a_hint(line: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_line(line)
    assert hint in raised.value.message
    assert "type two" in raised.value.message


def test_help_has_a_row_for_every_command() -> None:
    rows = help_rows()
    assert [left.split()[0] for left, _ in rows] == [f"/{command.name}" for command in COMMANDS]
    assert max(len(left) for left, _ in rows) + 2 + max(len(right) for _, right in rows) < 100


def test_number_is_read_or_refused_with_the_usage() -> None:
    assert number_of("12", "/edit N") == 12
    assert number_of("", "/trim [N]", 3) == 3
    for wrong in ("", "x", "-1", "²", "9" * 30):
        with pytest.raises(UsageError, match=r"^That needs a number: /edit N$"):
            number_of(wrong, "/edit N")


def test_completion_offers_the_commands_that_begin_so() -> None:
    assert completions("/t") == ["/trim ", "/tree ", "/title ", "/tools "]
    assert completions("t") == []
    assert len(completions("/")) == len(COMMANDS)
