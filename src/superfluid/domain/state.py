"""What a session's log adds up to: ``SessionState`` and the fold that makes it. Pure; one per open session.

Monitors and clients that read a log can fold it with the same code.
"""

import enum
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import assert_never

from superfluid.domain.events import (
    Appended,
    Block,
    BlockKind,
    Created,
    EpochBump,
    Event,
    Forked,
    Generated,
    GenerationFingerprint,
    GenerationPrompt,
    GenParams,
    Message,
    MetaUpdated,
    PermissionRequest,
    PermissionResponse,
    Pinned,
    Purged,
    QosSet,
    Rebased,
    Rerooted,
    ToolCancelRequested,
    ToolExpired,
    ToolLease,
    ToolOutcome,
    ToolOutcomeCode,
    ToolParseFailure,
    ToolReconciliation,
    ToolResult,
    ToolUse,
)
from superfluid.domain.media import ImageRun, image_runs, parse_image_payload
from superfluid.domain.reply import Channel, Finish
from superfluid.domain.request import QosClass

_NO_PARAMS = GenParams(temperature=1.0, top_p=1.0, min_p=0.0, top_k=0, seed=0)


class CallState(enum.IntEnum):
    """Where a tool call stands. The numbers are those of the session API."""

    OPEN = 0
    CANCEL_REQUESTED = 1
    SUCCEEDED = 2
    FAILED = 3
    CANCELLED = 4
    EXPIRED = 5
    CANCELLED_WITH_LATE_EFFECT = 6


class TurnKind(enum.Enum):
    """What the last record with tokens was: it decides what the next one needs before it."""

    NOTHING = "nothing"
    RAW = "raw"
    MESSAGE = "message"
    HEADER = "header"
    GENERATED = "generated"
    TOOL_RESULT = "tool_result"
    BLOCK = "block"


@dataclass(slots=True)
class ToolCallEntry:
    """One call of the ledger."""

    name: str
    arguments: str
    state: CallState = CallState.OPEN
    is_cancel_requested: bool = False
    lease_deadline_unix_ms: int | None = None
    late_effects: int = 0

    @property
    def is_open(self) -> bool:
        return self.state in (CallState.OPEN, CallState.CANCEL_REQUESTED)


@dataclass(slots=True)
class SessionState:
    """The fold of a session's events so far. ``tokens`` is the model's input, packed int32; ``images`` says in order
    where in it images are seen.

    In it, what opened the last reply (a header, or raw input) begins at ``header_start``, the reply behind it at
    ``reply_start``, and the run of drawn tokens at the very end at ``drawn_start``. A reply stays open, to be continued
    in place, until it reaches its end of turn or another turn is appended.
    ``fork_at`` events are inherited: they count for the conversation, not for ledger, permissions, title or pin.
    """

    session: int
    fork_at: int = 0
    events: int = 0
    parent: int | None = None
    params: GenParams = _NO_PARAMS
    epoch: int = 1
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    images: list[ImageRun] = field(default_factory=list)
    header_start: int = 0
    reply_start: int = 0
    drawn_start: int = 0
    is_reply_open: bool = False
    last_turn: TurnKind = TurnKind.NOTHING
    last_turn_finish: Finish = Finish.NONE
    last_channel: Channel = Channel.TEXT
    last_finish: int = 0
    last_unix_ms: int = 0
    qos_class: int = QosClass.AGENT
    is_batch_invariant: bool = False
    pin_deadline_unix_ms: int = 0
    fingerprint: int | None = None
    title: str | None = None
    is_archived: bool = False
    meta_version: int = 0
    generation: int = 0
    is_purged: bool = False
    calls: dict[int, ToolCallEntry] = field(default_factory=dict)
    open_permissions: set[int] = field(default_factory=set)

    @property
    def drawn_tokens(self) -> int:
        """How many tokens at the end of the input were drawn for the open reply, one after the other."""
        is_drawing = self.is_reply_open and self.last_turn is TurnKind.GENERATED
        return len(self.tokens) - self.drawn_start if is_drawing else 0

    @property
    def open_calls(self) -> list[tuple[int, ToolCallEntry]]:
        return [(call_id, entry) for call_id, entry in self.calls.items() if entry.is_open]

    def snapshot(self) -> "SessionState":
        """A copy that does not change when this one goes on."""
        calls = {call_id: replace(entry) for call_id, entry in self.calls.items()}
        return replace(
            self, tokens=self.tokens[:], images=self.images[:], calls=calls, open_permissions=set(self.open_permissions)
        )

    def forked(self, session: int) -> "SessionState":
        """The state of a new session that inherits all events of this one and has none of its own yet."""
        child = self.snapshot()
        child.session, child.parent, child.fork_at, child.epoch = session, self.session, self.events, 1
        child.calls, child.open_permissions = {}, set()
        child.title, child.is_archived, child.meta_version = None, False, 0
        child.pin_deadline_unix_ms = 0
        return child

    def apply_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self.apply(event)

    def apply(self, event: Event) -> None:
        """Folds the next event in. Events come in id order; inherited ones first."""
        assert event.event_id == self.events, "events are folded in order, without gaps"
        is_own = event.event_id >= self.fork_at
        self.events += 1
        self.last_unix_ms = event.ts_unix_ms
        match event.body:
            case Appended() | Message() | GenerationPrompt() | Generated() | ToolResult() | Block():
                self._apply_span(event.body)
            case Created(parent, params) | Forked(parent, _, params) | Rebased(parent, _, params):
                if is_own:
                    self.parent, self.epoch = parent, 1
                self.params = params
            case EpochBump():
                self.epoch = event.epoch
            case GenerationFingerprint(digest):
                self.fingerprint = digest
            case QosSet() | MetaUpdated() | Pinned() | Purged() | Rerooted():
                if is_own:
                    self._apply_standing(event.body)
            case PermissionRequest():
                if is_own:
                    self.open_permissions.add(event.event_id)
            case PermissionResponse(request_id):
                self.open_permissions.discard(request_id)
            case ToolUse(name, arguments):
                if is_own:
                    self.calls[event.event_id] = ToolCallEntry(name, arguments)
            case ToolExpired() | ToolCancelRequested() | ToolOutcome() | ToolReconciliation() | ToolLease():
                self._apply_call(event.body)
            case ToolParseFailure():
                pass
            case _:
                assert_never(event.body)

    def _apply_span(self, body: Appended | Message | GenerationPrompt | Generated | ToolResult | Block) -> None:
        start = len(self.tokens)
        self.tokens.extend(body.span)
        if isinstance(body, Generated):
            self.last_finish = body.finish
        if isinstance(body, Block) and body.kind == BlockKind.IMAGE and body.span:
            payload = parse_image_payload(body.payload)
            if payload is not None:
                self.images += image_runs(payload, body.span, start)
        if isinstance(body, ToolResult) and body.call_id in self.calls:
            self.calls[body.call_id].state = CallState.SUCCEEDED
        if body.span:
            # A record without tokens says nothing about the turn: a cancelled one stays open, to be continued.
            self._apply_turn(body, start)

    def _apply_turn(
        self, body: Appended | Message | GenerationPrompt | Generated | ToolResult | Block, start: int
    ) -> None:
        end = len(self.tokens)
        before, self.last_turn_finish = self.last_turn, Finish.NONE
        match body:
            case Appended() | Block():
                self.last_turn = TurnKind.RAW if isinstance(body, Appended) else TurnKind.BLOCK
                is_opening_only = before in (TurnKind.RAW, TurnKind.BLOCK) and self.reply_start == start
                if not self.is_reply_open:
                    self.header_start, self.reply_start, self.is_reply_open = start, end, True
                elif is_opening_only:
                    self.reply_start = end
            case Message() | ToolResult():
                self.last_turn = TurnKind.MESSAGE if isinstance(body, Message) else TurnKind.TOOL_RESULT
                self.is_reply_open = False
            case GenerationPrompt():
                self.last_turn = TurnKind.HEADER
                self.header_start, self.reply_start, self.is_reply_open = start, end, True
            case Generated():
                if not self.is_reply_open:
                    self.header_start = self.reply_start = start
                if before is not TurnKind.GENERATED or not self.is_reply_open:
                    self.drawn_start = start
                self.last_turn, self.last_channel = TurnKind.GENERATED, Channel(body.channel)
                self.last_turn_finish = Finish(body.finish)
                self.is_reply_open = self.last_turn_finish is not Finish.END_OF_TURN
            case _:
                assert_never(body)

    def _apply_standing(self, body: QosSet | MetaUpdated | Pinned | Purged | Rerooted) -> None:
        match body:
            case QosSet(qos_class, batch_invariant):
                self.qos_class, self.is_batch_invariant = qos_class, batch_invariant
            case MetaUpdated(version, title, archived):
                self.meta_version = version
                self.title = self.title if title is None else title
                self.is_archived = self.is_archived if archived is None else archived
            case Pinned(deadline):
                self.pin_deadline_unix_ms = deadline
            case Purged(generation):
                self.generation, self.is_purged = generation, True
            case Rerooted():
                self.parent = None
            case _:
                assert_never(body)

    def _apply_call(
        self, body: ToolExpired | ToolCancelRequested | ToolOutcome | ToolReconciliation | ToolLease
    ) -> None:
        entry = self.calls.get(body.call_id)
        if entry is None:
            return
        match body:
            case ToolExpired():
                entry.state = CallState.EXPIRED
            case ToolCancelRequested():
                entry.state, entry.is_cancel_requested = CallState.CANCEL_REQUESTED, True
            case ToolOutcome(_, outcome):
                is_failure = outcome == ToolOutcomeCode.FAILED
                entry.state = CallState.FAILED if is_failure else CallState.CANCELLED
            case ToolReconciliation():
                entry.late_effects += 1
                if entry.state is CallState.CANCELLED:
                    entry.state = CallState.CANCELLED_WITH_LATE_EFFECT
            case ToolLease(_, deadline):
                entry.lease_deadline_unix_ms = deadline
            case _:
                assert_never(body)
