"""What the session API hands out: events, replies and listings, as frozen records. Pure.

The ``from_json`` constructors read the documented JSON and ignore keys they do not know; anything that does not fit
surfaces as KeyError, TypeError or ValueError, which the client turns into UnexpectedReply.
"""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from superfluid_client.parameters import QosClass, Sampling


class Finish(enum.IntEnum):
    """Why a reply ended. ``NONE`` and ``LENGTH`` leave it open: the next generation goes on in the same reply."""

    NONE = 0
    END_OF_TURN = 1
    LENGTH = 2
    GRAMMAR = 3
    CANCELLED = 4
    ERROR = 5

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")

    def __format__(self, specification: str) -> str:
        return format(str(self), specification)


class Channel(enum.IntEnum):
    """Where a run of the model's tokens belongs."""

    TEXT = 0
    REASONING = 1
    TOOL_CALL = 2


class CallState(enum.IntEnum):
    """How a tool call stands. ``OPEN`` and ``CANCEL_REQUESTED`` wait for a result; the last one was cancelled, and had
    an effect all the same."""

    OPEN = 0
    CANCEL_REQUESTED = 1
    SUCCEEDED = 2
    FAILED = 3
    CANCELLED = 4
    EXPIRED = 5
    CANCELLED_WITH_EFFECT = 6

    @property
    def is_open(self) -> bool:
        return self in (CallState.OPEN, CallState.CANCEL_REQUESTED)


ChunkKind = Literal["text", "reasoning"]
SHOWN_CHANNELS: Final[Mapping[int, ChunkKind]] = {Channel.TEXT: "text", Channel.REASONING: "reasoning"}
"""The channels whose text is a reply's; a tool call is not."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next piece of a reply; never empty."""

    kind: ChunkKind
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model made. ``arguments`` is the JSON text as it wrote it."""

    id: int
    name: str
    arguments: str

    def json(self) -> dict[str, Any]:
        """The arguments as keywords. Raises ValueError if the model wrote something else than an object."""
        value = json.loads(self.arguments or "{}")
        if not isinstance(value, dict):
            # What the model wrote is wrong, not what the caller passed.
            raise ValueError(  # noqa: TRY004
                f"the arguments of {self.name} are no JSON object: {self.arguments}"
            )
        return value


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A tool call, and how it stands.

    ``is_cancel_requested`` stays true. A call with a lease must be answered before ``lease_deadline_unix_ms``.
    ``late_effects`` counts results that came when the call had ended; the model never saw them.
    """

    call: ToolCall
    state: CallState
    is_cancel_requested: bool
    lease_deadline_unix_ms: int | None
    late_effects: int

    @classmethod
    def from_json(cls, call_id: int, entry: Mapping[str, Any]) -> Self:
        return cls(
            call=ToolCall(call_id, entry["name"], entry["arguments"]),
            state=CallState(entry["state"]),
            is_cancel_requested=entry["cancel_requested"],
            lease_deadline_unix_ms=entry.get("lease_deadline_unix_ms"),
            late_effects=entry["late_effects"],
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model would put between a prefix and a suffix.

    ``is_cached``: the same was asked before. ``is_expired``: it took too long, and there is no text.
    """

    text: str
    tokens: tuple[int, ...]
    is_cached: bool
    is_expired: bool

    @classmethod
    def from_json(cls, completion: Mapping[str, Any]) -> Self:
        return cls(
            text=completion["text"],
            tokens=tuple(completion["tokens"]),
            is_cached=completion["cached"],
            is_expired=completion["expired"],
        )


@dataclass(frozen=True, slots=True)
class MediaSweep:
    """How many files of the pool are shown by some session, and how many were deleted because they are not."""

    kept: int
    removed: int


@dataclass(frozen=True, slots=True)
class Event:
    """A committed record of a session's log. ``kind`` is its name, such as ``Generated``, ``fields`` what it holds."""

    event_id: int
    epoch: int
    ts_unix_ms: int
    kind: str
    fields: Mapping[str, Any]

    @property
    def id(self) -> int:
        return self.event_id

    @property
    def text(self) -> str:
        """What it says, if it says something."""
        return self.fields.get("text") or self.fields.get("content") or ""

    @property
    def span(self) -> list[int]:
        """The token ids it put on the model's input."""
        return list(self.fields.get("span", ()))

    @classmethod
    def from_json(cls, event: Mapping[str, Any]) -> Self:
        kind, fields = split_variant(event["body"])
        return cls(event["event_id"], event["epoch"], event["ts_unix_ms"], kind, fields or {})


def split_variant(value: Any) -> tuple[str, Any]:
    """``{"Name": fields}`` or a bare ``"Name"`` as (name, fields or None). Raises ValueError for anything else."""
    if isinstance(value, str):
        return value, None
    if isinstance(value, dict) and len(value) == 1:
        ((name, fields),) = value.items()
        return name, fields
    raise ValueError(f"neither a name nor an object with one key: {str(value)[:80]}")


@dataclass(frozen=True, slots=True)
class Reply:
    """One generation's outcome.

    ``tokens`` counts what it drew; ``warm_prefix`` the prompt tokens it found in the cache.
    ``events`` are the committed records it consists of. A reply that broke off has what came before, and ``NONE``.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish: Finish
    tokens: int
    warm_prefix: int
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """A turn of the conversation, folded from the events ``event_id`` to ``last_event_id``.

    ``raw`` is text that was appended outside of any turn. ``call_id`` is the call that a ``tool`` message answers.
    ``finish`` is how an assistant's turn stands; written ones have none.
    """

    role: Literal["system", "user", "assistant", "tool", "raw"]
    text: str
    event_id: int
    last_event_id: int
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: int | None = None
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A session's place in the tree; it shares its parent's first ``fork_at`` events."""

    id: int
    parent: int | None
    fork_at: int


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A line of the listing. ``events`` and ``tokens`` count inherited ones too."""

    id: int
    parent: int | None
    fork_at: int
    title: str | None
    archived: bool
    meta_version: int
    generation: int
    events: int
    tokens: int
    open_tool_calls: int

    @classmethod
    def from_json(cls, summary: Mapping[str, Any]) -> Self:
        return cls(
            id=summary["id"],
            parent=summary.get("parent"),
            fork_at=summary["fork_at"],
            title=summary.get("title"),
            archived=summary["archived"],
            meta_version=summary["meta_version"],
            generation=summary["generation"],
            events=summary["events"],
            tokens=summary["tokens"],
            open_tool_calls=summary["open_tool_calls"],
        )


@dataclass(frozen=True, slots=True)
class Warmth:
    """How many tokens of a session's input lie computed in a lane, in host memory, on the disk."""

    lane: int
    memory: int
    disk: int

    @classmethod
    def from_json(cls, warmth: Mapping[str, Any]) -> Self:
        return cls(lane=warmth["lane"], memory=warmth["memory"], disk=warmth["disk"])


@dataclass(frozen=True, slots=True)
class Inspection:
    """A whole session. ``tier`` is where its state lies: ``Resident``, ``Parked`` or ``Cold``."""

    summary: SessionSummary
    sampling: Sampling
    epoch: int
    last_finish: Finish
    qos_class: QosClass
    batch_invariant: bool
    pin_deadline_unix_ms: int
    tier: str
    open_tool_calls: tuple[ToolCall, ...]
    tokens: tuple[int, ...]
    events: tuple[Event, ...]

    @classmethod
    def from_json(cls, inspection: Mapping[str, Any]) -> Self:
        return cls(
            summary=SessionSummary.from_json(inspection["summary"]),
            sampling=Sampling.from_json(inspection["params"]),
            epoch=inspection["epoch"],
            last_finish=Finish(inspection["last_finish"]),
            qos_class=QosClass(inspection["qos_class"]),
            batch_invariant=inspection["batch_invariant"],
            pin_deadline_unix_ms=inspection["pin_deadline_unix_ms"],
            tier=split_variant(inspection["tier"])[0],
            open_tool_calls=tuple(ToolCall(*call) for call in inspection["open_tool_calls"]),
            tokens=tuple(inspection["tokens"]),
            events=tuple(map(Event.from_json, inspection["events"])),
        )
