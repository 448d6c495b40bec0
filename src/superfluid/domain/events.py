"""The records a session is made of, and their envelope. They are stored and sent in this form.

The order of the fields and of the members of ``Body`` and ``RebaseEdit`` is the binary format: new fields are
impossible, new members go at the end. A list is a tuple here, because records are immutable.
"""

import enum

from msgspec import Struct, field

from superfluid.domain.wire_types import F32, U8, U32, U64

VISIBILITY_VERSION = 2


class TurnRole(enum.IntEnum):
    """Who speaks, as a number."""

    SYSTEM = 0
    USER = 1
    ASSISTANT = 2
    TOOL = 3


class BlockKind(enum.IntEnum):
    """What a ``Block`` holds."""

    FILE_DIFF = 1
    ARTIFACT = 2
    CITATION = 3
    PROGRESS = 4
    DIAGNOSTIC = 5
    WORKSPACE_REF = 6
    IMAGE = 7


class ToolOutcomeCode(enum.IntEnum):
    """How a call ended that has no result."""

    FAILED = 1
    CANCELLED = 2


class ToolExpiredReason(enum.StrEnum):
    """Why an open call was given up."""

    LEASE_EXPIRED = "lease expired"
    LEASE_ELAPSED = "lease elapsed"
    PURGED = "purged"


class PurgeMode(enum.Enum):
    """What becomes of a purged session's descendants. The values are the wire names, their order the wire numbers."""

    CASCADE = "Cascade"
    REROOT = "Reroot"


class GenParams(Struct, frozen=True, gc=False):
    """How a session's next tokens are drawn. Nothing is range-checked here; temperature 0 or less is greedy."""

    temperature: F32
    top_p: F32
    min_p: F32
    top_k: U32
    seed: U64


class Drop(Struct, frozen=True, gc=False):
    """Leave out the events ``start`` up to, but without, ``end``."""

    start: U64 = field(name="from")
    end: U64 = field(name="to")


class Replace(Struct, frozen=True, gc=False):
    """Put one message in the place of the events ``start`` up to, but without, ``end``."""

    start: U64 = field(name="from")
    end: U64 = field(name="to")
    role: U32
    text: str


RebaseEdit = Drop | Replace


class Created(Struct, frozen=True, gc=False):
    """Event 0 of a session that is nobody's fork. ``parent`` is lineage only."""

    parent: U64 | None
    params: GenParams


class Appended(Struct, frozen=True, gc=False):
    """Tokens put on the input as they are. ``text`` is what they were made from, if it is known."""

    text: str | None
    span: tuple[U32, ...]


class Message(Struct, frozen=True, gc=False):
    """A rendered turn."""

    role: U32
    text: str
    span: tuple[U32, ...]


class GenerationPrompt(Struct, frozen=True, gc=False):
    """The header that opened an assistant turn."""

    span: tuple[U32, ...]


class Generated(Struct, frozen=True, gc=False):
    """A run of drawn tokens in one channel; ``text`` is without markers. ``finish`` is 0 in all but the last."""

    span: tuple[U32, ...]
    text: str
    channel: U32
    finish: U32


class ToolUse(Struct, frozen=True, gc=False):
    """A call the model made; its event id is the call's id. ``arguments`` is JSON text."""

    name: str
    arguments: str


class ToolResult(Struct, frozen=True, gc=False):
    """A call's answer, rendered."""

    call_id: U64
    content: str
    span: tuple[U32, ...]


class EpochBump(Struct, frozen=True, gc=False):
    """The daemon was started anew."""


class GenerationFingerprint(Struct, frozen=True, gc=False):
    """What the following tokens depend on besides the input changed."""

    digest: U64


class ToolParseFailure(Struct, frozen=True, gc=False):
    """A call the model wrote that is not one."""

    raw: str


class Forked(Struct, frozen=True, gc=False):
    """The first ``fork_at`` events are the parent's."""

    parent: U64
    fork_at: U64
    params: GenParams


class MetaUpdated(Struct, frozen=True, gc=False):
    """``None`` left it as it was."""

    version: U64
    title: str | None
    archived: bool | None


class Rebased(Struct, frozen=True, gc=False):
    """The first ``fork_at`` events are the parent's; what follows is the edited rest of its log."""

    parent: U64
    fork_at: U64
    params: GenParams
    edits: tuple[RebaseEdit, ...]


class ToolExpired(Struct, frozen=True, gc=False):
    """An open call was given up."""

    call_id: U64
    reason: str


class Purged(Struct, frozen=True, gc=False):
    """The session's last event."""

    generation: U64
    descendants: PurgeMode


class Rerooted(Struct, frozen=True, gc=False):
    """The parent was purged: ``prefix`` holds what was inherited from it, as (event id, body)."""

    purged_parent: U64
    prefix: tuple[tuple[U64, "Body"], ...]


class QosSet(Struct, frozen=True, gc=False):
    """Another scheduling class, a ``domain.request.QosClass``."""

    qos_class: U8 = field(name="class")
    batch_invariant: bool


class Block(Struct, frozen=True, gc=False):
    """Structured content. ``payload`` is JSON text; ``span`` what the model is shown of it, possibly nothing."""

    role: U32
    kind: U32
    payload: str
    span: tuple[U32, ...]
    visibility_version: U32


class PermissionRequest(Struct, frozen=True, gc=False):
    """Somebody is to allow a call; its event id is the request's id."""

    call_id: U64
    text: str


class PermissionResponse(Struct, frozen=True, gc=False):
    """The answer to a ``PermissionRequest``."""

    request_id: U64
    granted: bool


class ToolCancelRequested(Struct, frozen=True, gc=False):
    """Whoever runs the call is asked to stop it."""

    call_id: U64


class ToolOutcome(Struct, frozen=True, gc=False):
    """A call ended without a result; ``outcome`` is a ``ToolOutcomeCode``."""

    call_id: U64
    outcome: U8
    note: str


class ToolReconciliation(Struct, frozen=True, gc=False):
    """Something arrived for a call that had ended."""

    call_id: U64
    note: str


class ToolLease(Struct, frozen=True, gc=False):
    """How long the call may stay open."""

    call_id: U64
    deadline_unix_ms: U64


class Pinned(Struct, frozen=True, gc=False):
    """How long the prefix should stay cached; 0 lets it go."""

    deadline_unix_ms: U64


SpanBody = Appended | Message | GenerationPrompt | Generated | ToolResult | Block
"""The bodies that put tokens on the model's input."""

NeutralBody = EpochBump | GenerationFingerprint | MetaUpdated | QosSet | Pinned
"""The bodies that say nothing about the conversation."""

Body = (
    Created
    | Appended
    | Message
    | GenerationPrompt
    | Generated
    | ToolUse
    | ToolResult
    | EpochBump
    | GenerationFingerprint
    | ToolParseFailure
    | Forked
    | MetaUpdated
    | Rebased
    | ToolExpired
    | Purged
    | Rerooted
    | QosSet
    | Block
    | PermissionRequest
    | PermissionResponse
    | ToolCancelRequested
    | ToolOutcome
    | ToolReconciliation
    | ToolLease
    | Pinned
)


class Event(Struct, frozen=True, gc=False):
    """One committed record. Ids count up from 0 within a session; ``ts_unix_ms`` is the wall clock at the commit."""

    event_id: U64
    epoch: U64
    ts_unix_ms: U64
    body: Body
