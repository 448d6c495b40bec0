"""What the daemon answers on the session API. Used as ``responses.Created`` and so on: requests share some names.

The order of the fields, of ``Response`` and of ``Tier`` is the binary format; new replies go at the end.
"""

import enum
from typing import Annotated

from msgspec import Struct

from superfluid.domain.events import Event, GenParams
from superfluid.domain.wire_types import U8, U32, U64, Bytes16, MayBeMissing


class ParkEncoding(enum.IntEnum):
    """How precisely a parked state is kept."""

    LOSSLESS = 0
    Q8 = 1
    Q4 = 2


class SubEndedReason(enum.StrEnum):
    """Why a subscription ended."""

    UNSUBSCRIBED = "unsubscribed"
    LAGGED = "lagged"
    PUBLISHER_CLOSED = "publisher closed"
    PURGED = "purged"


class SessionSummary(Struct, frozen=True, gc=False):
    """A session in a listing. ``events`` counts inherited ones too, so it is the next event id; ``tokens`` is the
    length of the model's input. ``meta_version`` and ``generation`` are what ``SetMeta`` and ``Purge`` expect."""

    id: U64
    parent: U64 | None
    fork_at: U64
    title: str | None
    archived: bool
    meta_version: U64
    generation: U64
    events: U64
    tokens: U64
    open_tool_calls: U64


class Resident(Struct, frozen=True, gc=False):
    """A generation is in flight."""


class Parked(Struct, frozen=True, gc=False):
    """The state of ``covered`` tokens is on disk; ``encoding`` is a ``ParkEncoding``."""

    covered: U64
    encoding: U8


class Cold(Struct, frozen=True, gc=False):
    """Nothing is kept but the log."""


Tier = Resident | Parked | Cold


class Inspection(Struct, frozen=True, gc=False):
    """A whole session. ``open_tool_calls`` are (call id, name, arguments); ``pin_deadline_unix_ms`` 0 is no pin."""

    summary: SessionSummary
    params: GenParams
    epoch: U64
    last_finish: U32
    qos_class: U8
    batch_invariant: bool
    pin_deadline_unix_ms: U64
    behavior_fingerprint: U64 | None
    open_tool_calls: tuple[tuple[U64, str, str], ...]
    tier: Tier
    tokens: tuple[U32, ...]
    events: tuple[Event, ...]
    wal_version: U8
    store_id: Annotated[Bytes16 | None, MayBeMissing()]


class LedgerEntry(Struct, frozen=True, gc=False):
    """A tool call's standing. ``state`` is a ``domain.state.CallState``; ``cancel_requested`` stays true once set."""

    name: str
    arguments: str
    state: U8
    cancel_requested: bool
    lease_deadline_unix_ms: U64 | None
    late_effects: U32


class Created(Struct, frozen=True, gc=False):
    session: U64


class Delta(Struct, frozen=True, gc=False):
    event: Event


class Cancelling(Struct, frozen=True, gc=False):
    """The cancel is on its way; it has not happened yet."""


class Committed(Struct, frozen=True, gc=False):
    event: Event


class Generated(Struct, frozen=True, gc=False):
    """The end of a ``Generate``: the events sent as ``Delta`` again. ``warm_prefix`` counts tokens not prefilled."""

    events: tuple[Event, ...]
    tokens_generated: U32
    finish: U32
    warm_prefix: U64


class Events(Struct, frozen=True, gc=False):
    events: tuple[Event, ...]


class Sessions(Struct, frozen=True, gc=False):
    ids: tuple[U64, ...]


class ToolCalls(Struct, frozen=True, gc=False):
    """(call id, name, arguments)."""

    calls: tuple[tuple[U64, str, str], ...]


class Subscribed(Struct, frozen=True, gc=False):
    sub: U64


class SubEvent(Struct, frozen=True, gc=False):
    sub: U64
    event: Event


class SubProvisional(Struct, frozen=True, gc=False):
    """Text ahead of its commit."""

    sub: U64
    channel: U32
    text: str


class SubEnded(Struct, frozen=True, gc=False):
    """A subscription's last frame; ``reason`` is a ``SubEndedReason``."""

    sub: U64
    reason: str


class Unsubscribed(Struct, frozen=True, gc=False):
    """The subscription is gone."""


class Err(Struct, frozen=True, gc=False):
    message: str


class Tree(Struct, frozen=True, gc=False):
    """(id, parent, fork_at)."""

    nodes: tuple[tuple[U64, U64 | None, U64], ...]


class SessionList(Struct, frozen=True, gc=False):
    sessions: tuple[SessionSummary, ...]


class Meta(Struct, frozen=True, gc=False):
    version: U64


class Purged(Struct, frozen=True, gc=False):
    sessions: tuple[U64, ...]


class Ack(Struct, frozen=True, gc=False):
    """Done, and there is nothing to say about it."""


class Inspected(Struct, frozen=True, gc=False, tag="Inspection"):
    """On the wire it has the name of what it holds."""

    inspection: Inspection


class Text(Struct, frozen=True, gc=False):
    text: str


class Ledger(Struct, frozen=True, gc=False):
    """(call id, entry)."""

    entries: tuple[tuple[U64, LedgerEntry], ...]


class Media(Struct, frozen=True, gc=False):
    hash: str


class Gc(Struct, frozen=True, gc=False):
    kept: U64
    removed: U64


class Completion(Struct, frozen=True, gc=False):
    text: str
    tokens: tuple[U32, ...]
    cached: bool
    expired: bool


class Pinned(Struct, frozen=True, gc=False):
    deadline_unix_ms: U64


class Throttled(Struct, frozen=True, gc=False):
    retry_after_ms: U64


class Warmth(Struct, frozen=True, gc=False):
    """How many tokens of a session's input lie computed in a lane, in host memory, on the disk."""

    lane: U64
    memory: U64
    disk: U64


Response = (
    Created
    | Delta
    | Cancelling
    | Committed
    | Generated
    | Events
    | Sessions
    | ToolCalls
    | Subscribed
    | SubEvent
    | SubProvisional
    | SubEnded
    | Unsubscribed
    | Err
    | Tree
    | SessionList
    | Meta
    | Purged
    | Ack
    | Inspected
    | Text
    | Ledger
    | Media
    | Gc
    | Completion
    | Pinned
    | Throttled
    | Warmth
)
