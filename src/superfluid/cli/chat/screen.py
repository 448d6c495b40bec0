"""Where the chat writes: replies on stdout, what it says itself beside them; views and waiting lines made to fit."""

import os
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from superfluid.cli.chat.live_region import LiveRegion
from superfluid.cli.chat.views import MarkdownView, PlainView, ReplyView
from superfluid.cli.printable import printable
from superfluid.cli.terminal import is_unicode


class Screen:
    """On a terminal that can move its cursor everything is on stdout; else stdout has the replies and nothing more."""

    def __init__(self, *, is_plain: bool) -> None:
        self.is_terminal = sys.stdout.isatty()
        self.is_unicode = is_unicode(sys.stdout)
        self.is_rich = self.is_terminal and not is_plain and os.environ.get("TERM", "dumb") != "dumb"
        self._aside = Console(
            file=sys.stdout if self.is_terminal else sys.stderr,
            highlight=False,
            soft_wrap=not self.is_terminal,
            markup=False,
        )
        self._console = Console(file=sys.stdout, highlight=False, markup=False)

    def view(self) -> ReplyView:
        """For one reply."""
        if not self.is_rich:
            return PlainView(sys.stdout, is_terminal=self.is_terminal, has_reasoning=self.is_terminal)
        return MarkdownView(self._console, self.region(), is_unicode=self.is_unicode)

    def region(self) -> LiveRegion:
        return LiveRegion(sys.stdout, _size)

    def say(self, text: str, style: str = "dim") -> None:
        """A line of the chat's own."""
        self._aside.print(Text(printable(text), style=style))

    def blank(self) -> None:
        self._aside.print()

    def columns(self, rows: Iterable[Sequence[str]], style: str = "") -> None:
        """Rows of two cells, the second ones in line."""
        listed = [(printable(left), printable(right)) for left, right in rows]
        width = max((len(left) for left, _ in listed), default=0)
        for left, right in listed:
            self._aside.print(Text.assemble((left.ljust(width), "cyan"), "  ", (right, style)))

    def message(self, number: int, text: str) -> None:
        """A message of the user's, as it was typed."""
        mark = "›" if self.is_unicode else ">"
        indent = " " * (len(str(number)) + 3)
        body = printable(text).replace("\n", f"\n{indent}")
        self._aside.print(Text.assemble((f"{number} ", "dim"), (f"{mark} ", "bold cyan"), body))


def _size() -> tuple[int, int]:
    """Of the terminal itself: the variables that say it do not change with it."""
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return 80, 24
    return columns or 80, rows or 24
