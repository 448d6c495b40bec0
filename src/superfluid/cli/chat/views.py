"""How a reply is shown while it comes: ``PlainView`` only appends, ``MarkdownView`` draws the unfinished part anew."""

import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from superfluid.cli.chat.blocks import split_blocks
from superfluid.cli.chat.live_region import LiveRegion
from superfluid.cli.chat.markdown import ChatMarkdown
from superfluid.cli.printable import one_line, printable
from superfluid.domain.reply import Channel

MAX_WIDTH = 100
"""Longer lines are hard to read."""
REDRAW_SECONDS = 0.07

# Rich fills lines up; copied text would have the blanks, and narrower terminals wrap them.
_PADDING = re.compile(r" +((?:\x1b\[[\d;]*m)*)$")
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_SPINNER = "|/-\\"


class ReplyView(Protocol):
    """One reply: ``write`` and ``call`` as it comes, ``tick`` several times a second, ``end`` once in any case.

    ``resume`` first, if it goes on with a reply that was shown: ``text`` is the last run of that.
    """

    def resume(self, channel: Channel, text: str) -> None: ...

    def write(self, channel: Channel, text: str) -> None: ...

    def call(self, call_id: int, name: str, arguments: str) -> None: ...

    def tick(self, status: str = "") -> None:
        """Time passes; ``status`` says what is waited for, if it is worth a line."""
        ...

    def end(self) -> None: ...


class PlainView:
    """Text as it comes, for pipes and simple terminals. Reasoning is shown only if ``has_reasoning``."""

    def __init__(self, stream: TextIO, *, is_terminal: bool, has_reasoning: bool = True) -> None:
        self._stream = stream
        self._clean = printable if is_terminal else str
        self._has_reasoning = has_reasoning
        self._channel: Channel | None = None
        self._ends_line = True

    def resume(self, channel: Channel, text: str) -> None:
        self._channel = channel

    def write(self, channel: Channel, text: str) -> None:
        is_shown = channel is Channel.TEXT or (channel is Channel.REASONING and self._has_reasoning)
        if not text or not is_shown:
            return
        if self._channel is not None and channel is not self._channel:
            self._put("\n\n")
            text = text.lstrip("\n")
        self._channel = channel
        self._put(self._clean(text))

    def call(self, call_id: int, name: str, arguments: str) -> None:
        if not self._ends_line:
            self._put("\n")
        self._put(f"{call_text(call_id, name, arguments)}\n")

    def tick(self, status: str = "") -> None:
        """There is nothing that could be drawn again."""

    def end(self) -> None:
        if not self._ends_line:
            self._put("\n")

    def _put(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._stream.flush()
            self._ends_line = text.endswith("\n")


class MarkdownView:
    """Whole blocks go to the scrollback, once and for good; the last one, still growing, is drawn in place below."""

    def __init__(
        self, console: Console, region: LiveRegion, *, is_unicode: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._region = region
        self._clock = clock
        self._spinner = _SPINNER if is_unicode else _ASCII_SPINNER
        self._bar = "│" if is_unicode else "|"
        self._began = clock()
        self._drawn_at = 0.0
        self._channel = Channel.TEXT
        self._open = ""
        self._status = ""
        self._is_first = True
        self._done: list[str] = []

    def resume(self, channel: Channel, text: str) -> None:
        """Shows the block again that was not finished: a half of one would be read as something else."""
        self._channel, self._open = channel, printable(text)
        self._open = self._pieces()[-1]

    def write(self, channel: Channel, text: str) -> None:
        if channel is not self._channel:
            self._finish_run()
            self._channel = channel
        if channel is not Channel.TOOL_CALL:
            self._open += printable(text)
        self._status = "writing a tool call" if channel is Channel.TOOL_CALL else ""
        self._redraw()

    def call(self, call_id: int, name: str, arguments: str) -> None:
        self._finish_run()
        self._keep(self._lines(Text(call_text(call_id, name, arguments), style="magenta")))
        self._status = ""
        self._redraw()

    def tick(self, status: str = "") -> None:
        self._status = status or self._status
        self._redraw()

    def end(self) -> None:
        self._finish_run()
        self._region.draw([], above=self._take_done())

    # ----

    def _finish_run(self) -> None:
        """What was open is whole now."""
        for piece in self._pieces():
            self._keep_block(piece)
        self._open = ""

    def _keep_block(self, text: str) -> None:
        if text.strip():
            self._keep(self._block(text))

    def _keep(self, lines: Sequence[str]) -> None:
        self._done += self._spaced(lines)
        self._is_first = False

    def _spaced(self, lines: Sequence[str]) -> list[str]:
        return [*lines] if self._is_first else ["", *lines]

    def _take_done(self) -> list[str]:
        done, self._done = self._done, []
        return done

    def _redraw(self) -> None:
        now = self._clock()
        if now - self._drawn_at < REDRAW_SECONDS:
            return
        self._drawn_at = now
        *finished, self._open = self._pieces()
        for piece in finished:
            self._keep_block(piece)
        tail: list[str] = []
        if self._open.strip():
            tail = self._spaced(self._block(self._open))
        if self._status or (self._is_first and not tail):
            tail += ["", *self._status_line(now)] if tail else self._spaced(self._status_line(now))
        self._region.draw(tail, above=self._take_done())

    def _pieces(self) -> list[str]:
        """What is open, in blocks, of which only the last can still change."""
        if self._channel is Channel.REASONING:
            return [piece + "\n\n" for piece in self._open.split("\n\n")[:-1]] + self._open.split("\n\n")[-1:]
        return split_blocks(self._open)

    def _block(self, text: str) -> list[str]:
        """The lines of what is open, or of a part of it."""
        if self._channel is not Channel.REASONING:
            return self._lines(ChatMarkdown(text))
        lines = self._lines(Text(text.strip("\n"), style="dim italic"), less=len(self._bar) + 1)
        (bar,) = self._lines(Text(self._bar, style="dim"))
        return [f"{bar} {line}" for line in lines]

    def _status_line(self, now: float) -> list[str]:
        elapsed = now - self._began
        frame = self._spinner[int(now * 10) % len(self._spinner)]
        seconds = f" {elapsed:.0f} s" if elapsed >= 2 else ""
        return self._lines(Text(f"{frame} {self._status or 'reading'}{seconds}", style="dim"))[:1]

    def _lines(self, renderable: RenderableType, less: int = 0) -> list[str]:
        """Never as wide as the terminal: behind a line that is, cursors of different terminals stand differently."""
        width = max(10, min(self._region.columns - 1, MAX_WIDTH) - less)
        with self._console.capture() as capture:
            self._console.print(renderable, width=width, end="")
        lines = [_PADDING.sub(r"\1", line) for line in capture.get().split("\n")]
        # Some blocks bring blank lines around them; how far blocks stand apart is decided here.
        while len(lines) > 1 and _is_blank(lines[0]):
            lines.pop(0)
        while len(lines) > 1 and _is_blank(lines[-1]):
            lines.pop()
        return lines


def _is_blank(line: str) -> bool:
    return not Text.from_ansi(line).plain.strip()


def call_text(call_id: int, name: str, arguments: str) -> str:
    """A tool call in a line."""
    return f"call {call_id}: {one_line(name)} {one_line(arguments)}"
