"""Requests that name no session, stored as sessions: a chat whose messages begin with a stored one's is a fork of it.

So a conversation of a thousand turns over HTTP costs its length once, and goes on from the exact tokens of its replies.
Runs on the event loop.
"""

import asyncio
from array import array
from collections.abc import Callable, Sequence

from msgspec import Struct

from superfluid.chat.interface import Rendered
from superfluid.domain.events import (
    Appended,
    Body,
    Created,
    Event,
    Forked,
    GenerationFingerprint,
    GenerationPrompt,
    GenParams,
    Message,
    TurnRole,
)
from superfluid.domain.request import ChatPrompt
from superfluid.domain.request import Message as ChatMessage
from superfluid.domain.state import SessionState
from superfluid.errors import DamagedRecordError, SessionNotFoundError
from superfluid.sessions.conversation import conversation_digests, extended_digest, spans_of
from superfluid.sessions.log import SessionLog
from superfluid.sessions.open_session import OpenSession
from superfluid.sessions.opening import turn_parser
from superfluid.sessions.recorder import CommitFailed, ExtraWrites, TurnRecorder
from superfluid.sessions.text import SessionText
from superfluid.sessions.writing import turn_lead_in
from superfluid.store.interface import Origin, PutPrefix

_ROLES = {
    "system": TurnRole.SYSTEM,
    "user": TurnRole.USER,
    "assistant": TurnRole.ASSISTANT,
    "tool": TurnRole.TOOL,
}


class PreparedPrompt(Struct, frozen=True):
    """A request's session before there is one. ``tokens`` is its whole input, ``opening`` the end of it that the reply
    is opened by: a header, or raw input. ``digest`` is that of its conversation, if a later request may begin with it.
    """

    state: SessionState
    base: OpenSession | None
    bodies: list[Body]
    prefixes: list[PutPrefix]
    tokens: "array[int]"
    opening: Sequence[int]
    digest: bytes | None


class StoredPrompt(Struct, frozen=True):
    """A request's session, ready to generate on. ``durable`` is done when its prompt is on the disk."""

    session: OpenSession
    durable: "asyncio.Future[list[Event]]"
    digest: bytes | None

    def reply_prefix(self, reply: ChatMessage) -> ExtraWrites | None:
        """What to remember when ``reply`` has ended its turn, so that the next request goes on behind it."""
        if self.digest is None:
            return None
        digest = extended_digest(self.digest, reply)
        session = self.session.id
        return lambda length: [PutPrefix(digest, session, length)]


class ChatStore:
    """Makes sessions of prompts, in two steps: a request that is refused in between leaves nothing behind.

    ``text`` is that of the loaded model. ``lease_deadline_unix_ms`` gives each new call its lease, if leases are on.
    """

    def __init__(
        self,
        log: SessionLog,
        text: SessionText,
        *,
        commit_interval_seconds: float = 0.0,
        lease_deadline_unix_ms: Callable[[], int] | None = None,
    ) -> None:
        self._log = log
        self._text = text
        self._commit_interval_seconds = commit_interval_seconds
        self._lease = lease_deadline_unix_ms

    async def prepare_chat(self, prompt: ChatPrompt, rendered: Rendered, params: GenParams) -> PreparedPrompt:
        """A session whose input is the conversation, the header included; a fork, if it begins with a stored one."""
        if not (self._text.codec.is_append_stable and self._text.turns.has_turns):
            return self._chat(self._fresh_state(), None, prompt, rendered, 0, params, [])
        digests = conversation_digests(prompt, self._text.turns.identity)
        known = await self._log.find_prefix(digests)
        parent = None if known is None else await self._open_parent(known)
        if known is not None and parent is not None:
            try:
                state = await self._log.inherited_state(parent, known.at_event)
            except DamagedRecordError:
                parent = None
            if parent is not None and parent.failure is None and not parent.is_gone:
                first = digests.index(known.digest) + 1
                return self._chat(state, parent, prompt, rendered, first, params, digests)
        return self._chat(self._fresh_state(), None, prompt, rendered, 0, params, digests)

    def prepare_text(self, text: str | None, tokens: Sequence[int], params: GenParams) -> PreparedPrompt:
        """A session whose input is a text, or tokens, with no chat frame."""
        bodies: list[Body] = [Created(None, params), Appended(text, tuple(tokens)), self._fingerprint()]
        return PreparedPrompt(self._fresh_state(), None, bodies, [], array("i", tokens), tokens, None)

    def store(self, prepared: PreparedPrompt) -> StoredPrompt:
        """Makes the session. Must follow ``prepare_*`` in the same turn of the event loop."""
        session, durable = self._log.create(
            prepared.state, prepared.bodies, base=prepared.base, origin=Origin.HTTP, extra=prepared.prefixes
        )
        return StoredPrompt(session, durable, prepared.digest)

    def recorder(self, stored: StoredPrompt, *, parse_tools: bool, on_failed: CommitFailed) -> TurnRecorder:
        """What writes the reply into the request's session."""
        parser = turn_parser(stored.session.state, (), self._text.codec, parse_tools=parse_tools)
        return TurnRecorder(
            self._log,
            stored.session,
            parser,
            on_failed=on_failed,
            lease_deadline_unix_ms=self._lease,
            interval_seconds=self._commit_interval_seconds,
        )

    # ----

    async def _open_parent(self, known: PutPrefix) -> OpenSession | None:
        """The stored session that the longest part of the conversation is known by."""
        try:
            parent = await self._log.open(known.session)
        except (SessionNotFoundError, DamagedRecordError):
            # Gone or unreadable: the request brings its whole conversation along, so nothing is lost.
            return None
        return parent if known.at_event <= parent.durable_events else None

    def _fresh_state(self) -> SessionState:
        return SessionState(self._log.store.allocate_session_id())

    def _fingerprint(self) -> GenerationFingerprint:
        return GenerationFingerprint(self._text.fingerprint)

    def _chat(
        self,
        state: SessionState,
        base: OpenSession | None,
        prompt: ChatPrompt,
        rendered: Rendered,
        first: int,
        params: GenParams,
        digests: Sequence[bytes],
    ) -> PreparedPrompt:
        """``state`` has the first ``first`` messages."""
        messages = prompt.messages[first:]
        *spans, header = spans_of(rendered.tokens, rendered.message_ends, first)
        if base is not None:
            role = _ROLES[messages[0].role] if messages else TurnRole.ASSISTANT
            lead_in = tuple(turn_lead_in(state, role)(self._text.turns))
            if spans:
                spans[0] = (*lead_in, *spans[0])
            else:
                header = (*lead_in, *header)
        bodies: list[Body] = [Created(None, params) if base is None else Forked(base.id, state.events, params)]
        prefixes: list[PutPrefix] = []
        for index, (message, span) in enumerate(zip(messages, spans, strict=True)):
            bodies.append(Message(_ROLES[message.role], message.content, span))
            if digests:
                prefixes.append(PutPrefix(digests[first + index], state.session, state.events + len(bodies)))
        if state.fingerprint != self._text.fingerprint:
            bodies.append(self._fingerprint())
        if header:
            bodies.append(GenerationPrompt(header))
        tokens = state.tokens[:]
        for span in (*spans, header):
            tokens.extend(span)
        return PreparedPrompt(state, base, bodies, prefixes, tokens, header, digests[-1] if digests else None)
