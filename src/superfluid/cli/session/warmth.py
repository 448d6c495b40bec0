"""Where the computed state of sessions lies: in a lane, in host memory, on the disk. Asked for apart from all else."""

from collections.abc import Sequence
from typing import Any

from superfluid.errors import ConnectionLostError
from superfluid.native import requests, responses
from superfluid.native.client import SessionClient
from superfluid.native.responses import Warmth


def fetch_warmths(client: SessionClient, sessions: Sequence[int]) -> list[Warmth | None]:
    """Of each session. ``None`` where the server cannot say; one of before this request ends the connection over it,
    so that nothing can be asked after this."""
    try:
        replies = client.ask_all([requests.Warmth(session) for session in sessions])
    except ConnectionLostError:
        return [None] * len(sessions)
    return [reply if isinstance(reply, responses.Warmth) else None for reply in replies]


def warm_text(warmth: Warmth | None) -> str:
    """The tier that holds most, the fastest of equals, and how many tokens; ``-`` for none, ``?`` if nobody knows."""
    if warmth is None:
        return "?"
    tiers = (("lane", warmth.lane), ("memory", warmth.memory), ("disk", warmth.disk))
    name, tokens = max(tiers, key=lambda tier: tier[1])
    return f"{name} {tokens:,}" if tokens else "-"


def warmth_line(warmth: Warmth) -> str:
    """For people and scripts, as ``key=value``."""
    return f"warm_lane={warmth.lane} warm_memory={warmth.memory} warm_disk={warmth.disk}"


def warmth_plain(warmth: Warmth | None) -> dict[str, Any] | None:
    """For ``--json``."""
    return None if warmth is None else {"lane": warmth.lane, "memory": warmth.memory, "disk": warmth.disk}
