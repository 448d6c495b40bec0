"""The nodes that ``superfluid top`` looks at: what each page said, and the rates between two of them. No terminal."""

import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from superfluid.domain.request import QOS_LABELS
from superfluid.tui.exposition import host_of, parse_exposition

HISTORY_POINTS: Final = 160

_QUEUES = tuple(f'superfluid_queue_depth{{class="{name}"}}' for name in QOS_LABELS.values())


class NodeState(enum.Enum):
    WAITING = "..."
    UP = "up"
    LOCKED = "401"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one poll brought: an HTTP status and a page, or ``None`` and nothing. ``at`` is monotonic seconds."""

    at: float
    status: int | None
    text: str = ""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A row of the table. ``kv_share`` is ``None`` where there is no pool to speak of."""

    address: str
    host: str | None
    state: NodeState
    kv_share: float | None = None
    tokens_per_second: float = 0.0
    lanes: int = 0
    queued: int = 0


class Node:
    """One address. ``take`` is given every answer in turn."""

    def __init__(self, address: str) -> None:
        self.view = NodeView(address, None, NodeState.WAITING)
        self._counted: tuple[float, float] | None = None

    def take(self, answer: Answer) -> NodeView:
        address, host = self.view.address, self.view.host
        if answer.status == 401:
            self.view = NodeView(address, host, NodeState.LOCKED)
            return self.view
        try:
            series = parse_exposition(answer.text) if answer.status == 200 else {}
        except ValueError:
            series = {}
        if "superfluid_decode_tokens_total" not in series:
            self.view = NodeView(address, host, NodeState.DOWN)
            return self.view
        total = series.get("superfluid_pool_blocks_total", 0.0)
        self.view = NodeView(
            address,
            host_of(series) or host,
            NodeState.UP,
            series.get("superfluid_pool_blocks_used", 0.0) / total if total > 0 else None,
            self._rate(answer.at, series["superfluid_decode_tokens_total"]),
            int(series.get("superfluid_lanes_active", 0)),
            int(sum(series.get(queue, 0.0) for queue in _QUEUES)),
        )
        return self.view

    def _rate(self, at: float, tokens: float) -> float:
        """Tokens a second since the last page. A node that started again begins at 0."""
        before, self._counted = self._counted, (at, tokens)
        if before is None or at <= before[0] or tokens < before[1]:
            return 0.0
        return (tokens - before[1]) / (at - before[0])


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """``reachable`` nodes answered, ``locked`` of them with 401."""

    nodes: int
    reachable: int
    locked: int
    tokens_per_second: float


class Fleet:
    """All nodes, and the summed rate over time."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.nodes = [Node(address) for address in dict.fromkeys(addresses)]
        self.history: deque[float] = deque(maxlen=HISTORY_POINTS)

    def summary(self) -> FleetSummary:
        views = [node.view for node in self.nodes]
        locked = sum(view.state is NodeState.LOCKED for view in views)
        up = sum(view.state is NodeState.UP for view in views)
        return FleetSummary(len(views), up + locked, locked, sum(view.tokens_per_second for view in views))

    def sample(self) -> None:
        """Adds the present rate to the history."""
        self.history.append(self.summary().tokens_per_second)


SORTS: Final = ("order", "node", "tok/s", "lanes", "queue", "kv")


def ordered(views: Sequence[NodeView], by: str, text: str) -> list[NodeView]:
    """The rows that hold ``text`` in their host or address, as ``by`` (one of ``SORTS``) wants them: busiest first."""
    shown = [view for view in views if text.lower() in f"{view.host or ''} {view.address}".lower()]
    match by:
        case "node":
            return sorted(shown, key=lambda view: (view.host or view.address, view.address))
        case "tok/s":
            return sorted(shown, key=lambda view: -view.tokens_per_second)
        case "lanes":
            return sorted(shown, key=lambda view: -view.lanes)
        case "queue":
            return sorted(shown, key=lambda view: -view.queued)
        case "kv":
            return sorted(shown, key=lambda view: -(view.kv_share or 0.0))
        case _:
            return shown
