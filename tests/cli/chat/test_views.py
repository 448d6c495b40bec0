import io
import re

import pytest
from rich.console import Console
from tests.fixtures.terminal import ScreenTerminal

from superfluid.cli.chat.live_region import LiveRegion
from superfluid.cli.chat.views import MarkdownView, PlainView
from superfluid.domain.reply import Channel

TEXT, REASONING, CALL = Channel.TEXT, Channel.REASONING, Channel.TOOL_CALL


class Ticking:
    """A clock that goes on by a second whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def terminal() -> ScreenTerminal:
    return ScreenTerminal(columns=40, rows=12)


@pytest.fixture
def view(terminal: ScreenTerminal) -> MarkdownView:
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, markup=False, highlight=False)
    region = LiveRegion(terminal, lambda: terminal.size)
    return MarkdownView(console, region, is_unicode=True, clock=Ticking())


def feed(view: MarkdownView, text: str, channel: Channel = TEXT) -> None:
    """As a model writes: a few letters at a time."""
    for piece in re.findall(r"(?s).{1,3}", text):
        view.write(channel, piece)


REPLY = (
    "A line\nand another.\n\n# Head\n\n```py\nx = 1\n\ny = 2\n```\n\n- one\n- **two**\n\n> quote\n\n"
    "See <b>this</b> and [that](http://x).\n\n[1]: http://source"
)
SHOWN = """A line
and another.

Head

x = 1

y = 2

 • one
 • two

▌ quote

See <b>this</b> and that (http://x).

[1]: http://source
"""


def test_markdown_ends_as_it_would_have_been_shown_at_once(view: MarkdownView, terminal: ScreenTerminal) -> None:
    feed(view, REPLY)
    view.end()
    assert terminal.text == SHOWN


def test_markdown_shown_at_once_is_the_same(view: MarkdownView, terminal: ScreenTerminal) -> None:
    view.write(TEXT, REPLY)
    view.end()
    assert terminal.text == SHOWN


def test_unfinished_block_is_shown_as_far_as_it_is(view: MarkdownView, terminal: ScreenTerminal) -> None:
    feed(view, "Done.\n\n```py\nx = 1\ny =")
    assert terminal.text == "Done.\n\nx = 1\ny ="


def test_block_longer_than_the_screen_is_whole_in_the_end(view: MarkdownView, terminal: ScreenTerminal) -> None:
    lines = [f"line_{number}" for number in range(40)]
    feed(view, "```\n" + "\n".join(lines))
    assert terminal.text.splitlines() == lines[-11:]
    feed(view, "\n```\n\nend")
    view.end()
    assert terminal.text.splitlines() == [*lines, "", "end"]


def test_reasoning_has_a_bar_and_the_reply_stands_apart(view: MarkdownView, terminal: ScreenTerminal) -> None:
    feed(view, "Let me *think* about rivers, and about how they flow.", REASONING)
    feed(view, "They flow.")
    view.end()
    assert terminal.text == ("│ Let me *think* about rivers, and\n│ about how they flow.\n\nThey flow.\n")


def test_tool_call_is_a_line_and_its_text_is_not_shown(view: MarkdownView, terminal: ScreenTerminal) -> None:
    feed(view, "Let me see.")
    feed(view, '{"name": "f"}', CALL)
    assert terminal.text.splitlines()[-1].endswith(" s")
    assert "writing a tool call" in terminal.text
    view.call(7, "get\x1b[2J", '{"city":\n"Paris"}')
    view.end()
    assert terminal.text == 'Let me see.\n\ncall 7: get[2J {"city": "Paris"}\n'


def test_waiting_is_shown_and_leaves_no_trace(view: MarkdownView, terminal: ScreenTerminal) -> None:
    view.tick()
    assert re.fullmatch(r"\S reading(?: \d+ s)?", terminal.text)
    view.tick("the model is loading")
    assert "the model is loading" in terminal.text
    feed(view, "Here.")
    view.end()
    assert terminal.text == "Here.\n"


def test_waiting_inside_a_reply_is_shown_below_it(view: MarkdownView, terminal: ScreenTerminal) -> None:
    feed(view, "Half a")
    view.tick("the server went away")
    assert terminal.text.startswith("Half a\n\n")
    assert "the server went away" in terminal.text
    feed(view, " word")
    assert terminal.text == "Half a word"


def test_reply_that_goes_on_shows_its_unfinished_block_again(view: MarkdownView, terminal: ScreenTerminal) -> None:
    view.resume(TEXT, "Done.\n\n```py\nx = 1\n")
    feed(view, "y = 2\n```\n")
    view.end()
    assert terminal.text == "x = 1\ny = 2\n"


def test_text_cannot_steer_the_terminal(view: MarkdownView, terminal: ScreenTerminal) -> None:
    feed(view, "a\x1b[2J\x1b]0;title\x07b\x9bc\u202ed")
    view.end()
    assert terminal.text == "a[2J]0;titlebcd\n"


def test_reply_of_nothing_shows_nothing(view: MarkdownView, terminal: ScreenTerminal) -> None:
    view.tick()
    view.end()
    assert terminal.text == ""


def plain(*, is_terminal: bool = False, has_reasoning: bool = False) -> tuple[PlainView, io.StringIO]:
    stream = io.StringIO()
    return PlainView(stream, is_terminal=is_terminal, has_reasoning=has_reasoning), stream


def test_plain_view_has_the_text_as_it_is_and_one_line_break_at_the_end() -> None:
    view, stream = plain()
    view.write(REASONING, "hm")
    view.write(TEXT, "a **b**\x1b[1m")
    view.write(TEXT, " c")
    view.tick("waiting")
    view.end()
    assert stream.getvalue() == "a **b**\x1b[1m c\n"


def test_plain_view_on_a_terminal_shows_reasoning_apart_and_no_escape_sequences() -> None:
    view, stream = plain(is_terminal=True, has_reasoning=True)
    view.write(REASONING, "hm\x1b[2J")
    view.write(TEXT, "\n\nso")
    view.write(CALL, "{}")
    view.call(4, "f", "{}")
    view.end()
    assert stream.getvalue() == "hm[2J\n\nso\ncall 4: f {}\n"
