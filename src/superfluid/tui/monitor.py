"""The monitor of ``superfluid serve``: a process of its own on the server's terminal, fed over a socket pair."""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from typing import ClassVar, Final

from rich.console import Group
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from superfluid.tui import panes
from superfluid.tui.protocol import (
    FrameError,
    FrameReader,
    Hello,
    LogLine,
    Quit,
    Sample,
    ToMonitor,
    decode_to_monitor,
    encode_frame,
)
from superfluid.tui.state import MonitorState

EXIT_LEFT_BY_SERVER: Final = 0
DRAW_SECONDS: Final = 0.5
"""The engine computes on the same cores: a picture twice a second is plenty."""
NICENESS: Final = 10
_TALL: Final = 38
_WIDE: Final = 100
_READ_BYTES: Final = 1 << 16


class HelpScreen(ModalScreen[None]):
    """The keys, until any of them is pressed."""

    CSS = """
    HelpScreen { align: center middle; }
    #help { width: auto; height: auto; max-width: 100%; border: round; padding: 0 2; }
    """

    def compose(self) -> ComposeResult:
        yield Static(Text(panes.HELP), id="help")

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss()


class MonitorApp(App[None]):
    """Draws ``state``. ``connection`` is the server's end of the feed; ``None`` draws what the state has."""

    CSS = """
    Screen { layout: vertical; overflow: hidden; }
    Static { text-wrap: nowrap; text-overflow: clip; }
    #header { height: 2; dock: top; }
    #top { height: 5; }
    #gauges { width: 1fr; }
    #rates-box { width: 41; }
    #middle { height: 14; display: none; }
    #charts { width: 2fr; }
    #side { width: 1fr; padding: 0 0 0 2; }
    #lanes { height: auto; max-height: 10; }
    #counters { height: auto; max-height: 3; }
    #log-title { height: 1; }
    #log { height: 1fr; }
    #keys { height: 1; dock: bottom; }
    Screen.is-tall #middle { display: block; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape,ctrl+c", "stop_server", "stop", priority=True),
        Binding("p", "pause", "pause"),
        Binding("up", "scroll_log(1)", "back"),
        Binding("down", "scroll_log(-1)", "forward"),
        Binding("pageup", "scroll_log(10)", "back"),
        Binding("pagedown", "scroll_log(-10)", "forward"),
        Binding("g", "oldest", "oldest"),
        Binding("end", "follow", "follow"),
        Binding("question_mark", "help", "help"),
    ]

    def __init__(self, state: MonitorState, connection: socket.socket | None) -> None:
        super().__init__(ansi_color=True)
        self.state = state
        self._connection = connection
        self._frame = 0
        # Held rather than looked up: a timer may still fire while the screen is being taken down.
        self._header_pane = Static(id="header")
        self._gauges = Static(id="gauges")
        self._rates = Static(id="rates")
        self._charts = Static(id="charts")
        self._side = Static(id="side")
        self._lanes = Static(id="lanes")
        self._counters = Static(id="counters")
        self._log_title = Static(id="log-title")
        self._log_pane = Static(id="log")
        self._keys = Static(id="keys")
        self._middle = Horizontal(self._charts, self._side, id="middle")
        self._feeding: asyncio.Task[None] | None = None

    def compose(self) -> ComposeResult:
        yield self._header_pane
        yield Horizontal(Vertical(self._gauges), Container(self._rates, id="rates-box"), id="top")
        yield self._middle
        yield self._lanes
        yield self._counters
        yield self._log_title
        yield self._log_pane
        yield self._keys

    def on_mount(self) -> None:
        if self._connection is not None:
            self._feeding = asyncio.create_task(self._feed(self._connection))
        self.set_interval(DRAW_SECONDS, self.draw)
        self.call_after_refresh(self.draw)

    # ---- the feed

    async def _feed(self, connection: socket.socket) -> None:
        """Until the server hangs up, which ends the monitor."""
        loop = asyncio.get_running_loop()
        reader = FrameReader()
        try:
            while data := await loop.sock_recv(connection, _READ_BYTES):
                for payload in reader.feed(data):
                    self.take(decode_to_monitor(payload))
        except (OSError, FrameError) as error:
            self.exit(message=f"the monitor lost its server: {error}")
            return
        self.exit()

    def take(self, message: ToMonitor) -> None:
        match message:
            case Hello():
                self.state.take_hello(message)
            case Sample():
                self.state.take_sample(message)
            case LogLine():
                self.state.take_log(message)

    # ---- drawing

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Everything anew; what did not change costs nothing on the terminal."""
        self._frame += 1
        width, height = self.size
        state = self.state
        self.screen_stack[0].set_class(height >= _TALL, "is-tall")
        self._header_pane.update(_group(panes.header(state, width, self._frame)))
        gauge_width = max(20, width - 43)
        queue_lines = panes.queues(state, gauge_width)
        self._gauges.update(_group([*panes.gauges(state, gauge_width), *_two_columns(queue_lines, gauge_width)]))
        self._rates.update(_group(panes.rates(state)))
        if height >= _TALL:
            chart_width = width * 2 // 3
            self._charts.update(_group(panes.charts(state, chart_width, 14)))
            self._side.update(_group(panes.pool_chart(state, max(12, width - chart_width - 3), 12)))
        rows = 4 if height < _TALL else 10
        self._lanes.update(_group(panes.lane_table(state, width, rows)))
        self._counters.update(_group(panes.counters(state, width)[: 2 if height < _TALL else 3]))
        self._log_title.update(panes.log_title(state, width))
        self._log_pane.update(_group(panes.log_lines(state, width, max(1, self._log_pane.size.height))))
        self._keys.update(Text("q stop   p pause   ↑↓ PgUp PgDn g End log   ? help"[:width], "bright_black"))

    # ---- keys

    def action_stop_server(self) -> None:
        """The server ends the monitor when it has finished. One that is gone cannot."""
        if len(self.screen_stack) > 1:
            self.pop_screen()
            return
        if self._connection is None:
            self.exit()
            return
        try:
            self._connection.send(encode_frame(Quit()))
        except OSError:
            self.exit()

    def action_pause(self) -> None:
        self.state.is_paused = not self.state.is_paused
        self.draw()

    def action_scroll_log(self, lines: int) -> None:
        self.state.scroll(lines, max(1, self._log_pane.size.height))
        self.draw()

    def action_oldest(self) -> None:
        self.action_scroll_log(len(self.state.log))

    def action_follow(self) -> None:
        self.state.lines_back = 0
        self.draw()

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def on_mouse_scroll_up(self) -> None:
        self.action_scroll_log(3)

    def on_mouse_scroll_down(self) -> None:
        self.action_scroll_log(-3)


def _group(lines: Sequence[Text]) -> Group:
    """One below the other; a line that is too long ends at the edge."""
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _two_columns(lines: Sequence[Text], width: int) -> list[Text]:
    """Four short lines as two."""
    if len(lines) != 4:
        return list(lines)
    half = width // 2
    rows: list[Text] = []
    for left, right in ((lines[0], lines[2]), (lines[1], lines[3])):
        row = left.copy()
        row.truncate(half - 1, pad=True)
        row.append_text(right)
        rows.append(row)
    return rows


def main(arguments: Sequence[str]) -> int:
    """Run by the server with the number of an inherited socket. The terminal is on descriptors 0 to 2."""
    if len(arguments) != 1 or not arguments[0].isdecimal():
        print("the monitor is started by `superfluid serve`, not by hand", file=sys.stderr)
        return 2
    connection = socket.socket(fileno=int(arguments[0]))
    connection.setblocking(False)
    connection.set_inheritable(False)
    os.nice(NICENESS)
    app = MonitorApp(MonitorState(), connection)
    app.run()
    return app.return_code or EXIT_LEFT_BY_SERVER


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
