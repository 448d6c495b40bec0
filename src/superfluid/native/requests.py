"""What a client of the session API can ask. Used as ``requests.Create`` and so on: replies share some names.

The order of the fields and of ``Request`` is the binary format; new requests go at the end.
"""

import enum

from msgspec import Struct, field

from superfluid.domain.events import GenParams, PurgeMode, RebaseEdit
from superfluid.domain.wire_types import U8, U32, U64


class FimMode(enum.IntEnum):
    """Where ``Complete`` puts the suffix: after the prefix, or before it."""

    PSM = 0
    SPM = 1


class Create(Struct, frozen=True, gc=False):
    parent: U64 | None
    params: GenParams


class Append(Struct, frozen=True, gc=False):
    session: U64
    text: str | None
    span: tuple[U32, ...]


class AppendMessage(Struct, frozen=True, gc=False):
    session: U64
    role: U32
    text: str


class Generate(Struct, frozen=True, gc=False):
    session: U64
    max_tokens: U32


class Read(Struct, frozen=True, gc=False):
    session: U64
    cursor: U64


class AppendToolResult(Struct, frozen=True, gc=False):
    session: U64
    call_id: U64
    content: str


class OpenToolCalls(Struct, frozen=True, gc=False):
    session: U64


class List(Struct, frozen=True, gc=False):
    """Ids of all live sessions."""


class Cancel(Struct, frozen=True, gc=False):
    session: U64


class Subscribe(Struct, frozen=True, gc=False):
    session: U64
    cursor: U64
    provisional: bool


class Unsubscribe(Struct, frozen=True, gc=False):
    sub: U64


class Fork(Struct, frozen=True, gc=False):
    """``params`` ``None`` keeps the parent's."""

    session: U64
    at_event: U64
    params: GenParams | None


class Tree(Struct, frozen=True, gc=False):
    """Lineage of the sessions that are not archived."""


class Sessions(Struct, frozen=True, gc=False):
    include_archived: bool


class SetMeta(Struct, frozen=True, gc=False):
    """``None`` leaves it as it is."""

    session: U64
    expected_version: U64
    title: str | None
    archived: bool | None


class Rebase(Struct, frozen=True, gc=False):
    session: U64
    edits: tuple[RebaseEdit, ...]
    params: GenParams | None


class Purge(Struct, frozen=True, gc=False):
    session: U64
    expected_generation: U64
    mode: PurgeMode


class SetQos(Struct, frozen=True, gc=False):
    session: U64
    qos_class: U8 = field(name="class")
    batch_invariant: bool


class SetBackgroundRate(Struct, frozen=True, gc=False):
    divisor: U32


class Inspect(Struct, frozen=True, gc=False):
    session: U64


class SetLogLevel(Struct, frozen=True, gc=False):
    directive: str


class Metrics(Struct, frozen=True, gc=False):
    """The Prometheus page."""


class AppendBlock(Struct, frozen=True, gc=False):
    session: U64
    role: U32
    kind: U32
    payload: str


class RequestPermission(Struct, frozen=True, gc=False):
    session: U64
    call_id: U64
    text: str


class RespondPermission(Struct, frozen=True, gc=False):
    session: U64
    request_id: U64
    granted: bool


class RequestToolCancel(Struct, frozen=True, gc=False):
    session: U64
    call_id: U64


class AppendToolOutcome(Struct, frozen=True, gc=False):
    session: U64
    call_id: U64
    outcome: U8
    note: str


class Ledger(Struct, frozen=True, gc=False):
    session: U64


class PutMedia(Struct, frozen=True, gc=False):
    content: bytes = field(name="bytes")
    mime: str


class AppendImage(Struct, frozen=True, gc=False):
    session: U64
    role: U32
    blob: str
    pre_text: str
    post_text: str


class GcMedia(Struct, frozen=True, gc=False):
    """Deletes media that no session shows."""


class Complete(Struct, frozen=True, gc=False):
    prefix: str
    suffix: str
    mode: U8
    max_tokens: U32


class Trim(Struct, frozen=True, gc=False):
    session: U64
    to_event: U64


class Pin(Struct, frozen=True, gc=False):
    session: U64
    ttl_ms: U64


class AppendSystem(Struct, frozen=True, gc=False):
    """``tools`` are JSON texts."""

    session: U64
    text: str | None
    tools: tuple[str, ...]


class Warmth(Struct, frozen=True, gc=False):
    """Where the session's computed state lies."""

    session: U64


Request = (
    Create
    | Append
    | AppendMessage
    | Generate
    | Read
    | AppendToolResult
    | OpenToolCalls
    | List
    | Cancel
    | Subscribe
    | Unsubscribe
    | Fork
    | Tree
    | Sessions
    | SetMeta
    | Rebase
    | Purge
    | SetQos
    | SetBackgroundRate
    | Inspect
    | SetLogLevel
    | Metrics
    | AppendBlock
    | RequestPermission
    | RespondPermission
    | RequestToolCancel
    | AppendToolOutcome
    | Ledger
    | PutMedia
    | AppendImage
    | GcMedia
    | Complete
    | Trim
    | Pin
    | AppendSystem
    | Warmth
)
