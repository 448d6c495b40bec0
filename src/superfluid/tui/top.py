"""``superfluid top``: one row for each node, and what the fleet generates together. A process of its own."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Input, Sparkline, Static

from superfluid.tui.fleet import SORTS, Answer, Fleet, NodeState, NodeView, ordered

Poll = Callable[[], Answer]

_BAR_CELLS: Final = 14
_STATE_STYLES = {
    NodeState.WAITING: "dim",
    NodeState.UP: "green",
    NodeState.LOCKED: "yellow",
    NodeState.DOWN: "bold red",
}
_COLUMNS = ("NODE", "STATE", "KV POOL", "TOK/S", "LANES", "QUEUE")


class TopApp(App[None]):
    """``polls`` has an entry for each node of ``fleet``; each may block, and runs in a thread once a second."""

    CSS = """
    Screen { layout: vertical; }
    #summary { height: 1; background: $panel; padding: 0 1; }
    #nodes { height: 1fr; }
    #chart-title { height: 1; padding: 0 1; color: $text-muted; }
    #chart { height: 3; margin: 0 1; }
    #filter { display: none; height: 3; }
    #filter.is-open { display: block; }
    #keys { height: 1; background: $panel; padding: 0 1; color: $text-muted; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "quit", priority=True),
        Binding("escape", "leave", "quit"),
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter"),
    ]

    def __init__(self, fleet: Fleet, polls: Sequence[Poll], *, interval_seconds: float = 1.0) -> None:
        super().__init__()
        self._fleet = fleet
        self._polls = polls
        self._interval_seconds = interval_seconds
        self._started = time.monotonic()
        self._sort = SORTS[0]
        self._filter = ""
        self._threads = ThreadPoolExecutor(max(1, min(32, len(polls))), thread_name_prefix="poll")
        self._is_waiting = [False] * len(polls)
        self._rows: list[NodeView] = []
        # Held rather than looked up: a timer may still fire while the screen is being taken down.
        self._summary_line = Static(id="summary")
        self._table: DataTable[Text] = DataTable(id="nodes", cursor_type="none", zebra_stripes=True)
        self._chart_title = Static(id="chart-title")
        self._chart = Sparkline([], id="chart")
        self._filter_box = Input(placeholder="part of a node's name or address; Esc shows all again", id="filter")
        self._key_line = Static(id="keys")

    def compose(self) -> ComposeResult:
        yield self._summary_line
        yield self._table
        yield self._chart_title
        yield self._chart
        yield self._filter_box
        yield self._key_line

    def on_mount(self) -> None:
        for name in _COLUMNS:
            self._table.add_column(name, key=name)
        self._poll_all()
        self.set_interval(self._interval_seconds, self._tick)
        self._draw()

    def on_unmount(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- polling

    def _tick(self) -> None:
        self._fleet.sample()
        self._draw()
        self._poll_all()

    def _poll_all(self) -> None:
        """A node that has not answered yet is not asked again."""
        for index, poll in enumerate(self._polls):
            if not self._is_waiting[index]:
                self._is_waiting[index] = True
                self._threads.submit(poll).add_done_callback(partial(self._answered, index))

    def _answered(self, index: int, future: "Future[Answer]") -> None:
        """In the poll's thread."""
        self.call_later(self._take, index, future)

    def _take(self, index: int, future: "Future[Answer]") -> None:
        self._is_waiting[index] = False
        if not future.cancelled():
            self._fleet.nodes[index].take(future.result())

    # ---- drawing

    def _draw(self) -> None:
        self._summary_line.update(self._summary())
        self._key_line.update(self._keys())
        views = ordered([node.view for node in self._fleet.nodes], self._sort, self._filter)
        if views != self._rows:
            self._rows = views
            self._fill(views)
        history = list(self._fleet.history)
        self._chart.data = history
        peak = max(history, default=0.0)
        self._chart_title.update(f"tokens a second, all nodes; peak {peak:.0f}")

    def _fill(self, views: Sequence[NodeView]) -> None:
        self._table.clear()
        for view in views:
            self._table.add_row(*_cells(view))

    def _summary(self) -> Text:
        summary = self._fleet.summary()
        seconds = int(time.monotonic() - self._started)
        return Text.assemble(
            ("superfluid top", "bold"),
            f"   {summary.reachable}/{summary.nodes} nodes reachable",
            (f"   {summary.locked} need a key" if summary.locked else "", "yellow"),
            f"   {summary.tokens_per_second:.0f} tok/s",
            f"   {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}",
        )

    def _keys(self) -> Text:
        text = Text("q quit   s sort")
        if self._sort != SORTS[0]:
            text.append(f": {self._sort}", "cyan")
        text.append("   / filter")
        if self._filter:
            text.append(f": {self._filter}", "cyan")
        return text

    # ---- keys

    def action_sort(self) -> None:
        self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        self._draw()

    def action_filter(self) -> None:
        box = self._filter_box
        box.add_class("is-open")
        box.focus()

    async def action_leave(self) -> None:
        """Esc closes the filter first, and then the program."""
        box = self._filter_box
        if box.has_class("is-open") or self._filter:
            box.value = ""
            self._apply("")
        else:
            await self.action_quit()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value.strip()
        self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._apply(event.value.strip())

    def _apply(self, text: str) -> None:
        self._filter = text
        self._filter_box.remove_class("is-open")
        self.set_focus(None)
        self._draw()


def _cells(view: NodeView) -> list[Text]:
    is_up = view.state is NodeState.UP
    name = Text(view.host or view.address, "bold" if view.host else "")
    if view.host:
        name.append(f"  {view.address}", "dim")
    return [
        name,
        Text(view.state.value, _STATE_STYLES[view.state]),
        _pool(view) if is_up else Text("-", "dim"),
        Text(f"{view.tokens_per_second:.1f}" if is_up else "-", justify="right"),
        Text(f"{view.lanes}" if is_up else "-", justify="right"),
        Text(f"{view.queued}" if is_up else "-", "yellow" if view.queued else "", justify="right"),
    ]


def _pool(view: NodeView) -> Text:
    share = view.kv_share
    if share is None:
        return Text("n/a", "dim")
    share = min(1.0, max(0.0, share))
    filled = round(share * _BAR_CELLS)
    style = "green" if share <= 0.6 else "yellow" if share <= 0.85 else "red"
    return Text.assemble(("█" * filled, style), ("░" * (_BAR_CELLS - filled), "dim"), f" {share:4.0%}")


def run_top(addresses: Sequence[str], api_key: str | None) -> None:
    """Until the user leaves. Raises OSError if there is no terminal to draw on."""
    from superfluid.tui.poller import Poller

    fleet = Fleet(addresses)
    pollers = [Poller(node.view.address, api_key) for node in fleet.nodes]
    TopApp(fleet, [poller.poll for poller in pollers]).run()
