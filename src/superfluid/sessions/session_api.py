"""The session API's use cases as its transports see them. Implemented by ``sessions/api.py``; tests use a scripted one.

Methods raise the leaf that says why: SessionNotFoundError, SessionBusyError, SessionRefusedError, DamagedRecordError,
StoreUnavailableError, ModelLoadingError, UnsupportedInputError, ... What they return is durable.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct

from superfluid.domain.events import Event, GenParams, PurgeMode, RebaseEdit
from superfluid.domain.reply import Channel, Finish
from superfluid.domain.request import InfillPrompt
from superfluid.domain.state import SessionState, ToolCallEntry
from superfluid.domain.statistics import Warmth
from superfluid.sessions.infill import Completion
from superfluid.sessions.metering import CompletionBucket
from superfluid.sessions.open_session import EndReason
from superfluid.store.interface import SessionRow


class ProvisionalText(Struct, frozen=True):
    """Text or reasoning ahead of its commit."""

    channel: Channel
    text: str


class TurnEnded(Struct, frozen=True):
    """The last item of a turn that did not fail. ``warm_prefix`` counts prompt tokens that were not prefilled."""

    tokens_generated: int
    finish: Finish
    warm_prefix: int


TurnItem = Event | ProvisionalText | TurnEnded


class Turn(Protocol):
    """A generation on a session.

    Iterating yields non-empty batches: durable ``Generated``, ``ToolUse`` and ``ToolParseFailure`` events in id order,
    text ahead of them if it was asked for, last a ``TurnEnded``. A failure raises out of the iteration. ``cancel`` must
    be called when the reader goes away early; it never hurts.
    """

    def __aiter__(self) -> AsyncIterator[list[TurnItem]]: ...

    def cancel(self) -> None: ...


class Subscription(Protocol):
    """A session's events from a cursor on: the backlog, then live, nothing twice and nothing missed.

    Iterating yields non-empty batches of events and provisional text until the subscription ends; ``end_reason`` then
    says why. At most 1,024 items wait for a slow reader; one more ends it as ``lagged`` after what waits was read.
    """

    @property
    def sub_id(self) -> int: ...

    @property
    def end_reason(self) -> EndReason | None: ...

    def __aiter__(self) -> AsyncIterator[list[Event | ProvisionalText]]: ...

    def close(self) -> None:
        """Ends it as ``unsubscribed``; what waits is dropped."""
        ...


class Inspected(Struct, frozen=True):
    """A whole session. ``state`` is a snapshot: it does not change afterwards. ``parked_tokens`` of its input have a
    state on the disk."""

    row: SessionRow
    state: SessionState
    is_generating: bool
    events: list[Event]
    store_id: bytes
    parked_tokens: int = 0


class SessionApi(Protocol):
    """Everything a client of the session API can ask for at this stage."""

    async def create(self, parent: int | None, params: GenParams) -> int: ...

    async def append(self, session: int, text: str | None, span: Sequence[int]) -> Event: ...

    async def append_message(self, session: int, role: int, text: str) -> Event: ...

    async def append_system(self, session: int, text: str | None, tools: Sequence[str]) -> Event: ...

    async def append_block(self, session: int, role: int, kind: int, payload: str) -> Event: ...

    async def append_image(self, session: int, role: int, blob: str, pre_text: str, post_text: str) -> Event: ...

    async def put_media(self, content: bytes) -> str:
        """Its SHA-256 in hex, by which an image is appended."""
        ...

    async def gc_media(self) -> tuple[int, int]:
        """Deletes the media that no live session shows: how many stay, and how many are gone."""
        ...

    async def append_tool_result(self, session: int, call_id: int, content: str) -> Event: ...

    async def open_tool_calls(self, session: int) -> list[tuple[int, ToolCallEntry]]: ...

    async def ledger(self, session: int) -> list[tuple[int, ToolCallEntry]]:
        """Every call that the session recorded itself, by id."""
        ...

    async def request_tool_cancel(self, session: int, call_id: int) -> Event: ...

    async def append_tool_outcome(self, session: int, call_id: int, outcome: int, note: str) -> Event: ...

    async def request_permission(self, session: int, call_id: int, text: str) -> Event:
        """The event's id is the request's. ``call_id`` 0 is no call."""
        ...

    async def respond_permission(self, session: int, request_id: int, *, granted: bool) -> Event: ...

    async def set_meta(self, session: int, expected_version: int, title: str | None, archived: bool | None) -> int:
        """The new version; a version other than the current one is refused."""
        ...

    async def set_qos(self, session: int, qos_class: int, *, batch_invariant: bool) -> Event: ...

    async def pin(self, session: int, ttl_ms: int) -> int:
        """The deadline in Unix milliseconds, or 0."""
        ...

    async def read(self, session: int, cursor: int) -> list[Event]: ...

    async def session_rows(self, *, include_archived: bool) -> list[SessionRow]:
        """Live sessions by id."""
        ...

    async def inspect(self, session: int) -> Inspected: ...

    async def warmth(self, session: int) -> Warmth:
        """Where how much of its input lies computed at this moment."""
        ...

    async def fork(self, session: int, at_event: int, params: GenParams | None) -> int: ...

    async def trim(self, session: int, to_event: int) -> int: ...

    async def rebase(self, session: int, edits: Sequence[RebaseEdit], params: GenParams | None) -> int: ...

    async def purge(self, session: int, expected_generation: int, mode: PurgeMode) -> list[int]:
        """The sessions that are gone, in the order in which they went: ``session`` last. Nothing of them is left in the
        store's files; a generation other than the current one is refused."""
        ...

    async def generate(
        self, session: int, max_tokens: int, *, wants_provisional: bool = False, transport: str = ""
    ) -> Turn:
        """Returns once the generation is accepted. ``max_tokens`` 0 yields an empty turn at once."""
        ...

    async def cancel(self, session: int) -> None:
        """Raises SessionRefusedError (``no generation in flight``) on an idle session."""
        ...

    async def subscribe(self, session: int, cursor: int, *, wants_provisional: bool) -> Subscription: ...

    async def metrics_text(self) -> str: ...

    async def set_log_level(self, directive: str) -> None: ...

    def completion_bucket(self) -> CompletionBucket:
        """What a client's completions are taken from: one for each connection."""
        ...

    async def complete(self, bucket: CompletionBucket, prompt: InfillPrompt, max_tokens: int) -> Completion:
        """A greedy completion of what is missing in the prompt. Takes from ``bucket`` first, whatever comes of it.
        Being cancelled ends it. Raises CompletionRateLimitedError, FimUnsupportedError, ..."""
        ...

    async def set_background_rate(self, divisor: int) -> None:
        """For all sessions, until the daemon ends. 0 counts as 1."""
        ...
