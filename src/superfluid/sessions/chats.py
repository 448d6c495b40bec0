"""Requests that name no session, stored as sessions: a chat whose messages begin with a stored one's is a fork of it.

So a conversation of a thousand turns over HTTP costs its length once, and goes on from the exact tokens of its replies.
Runs on the event loop.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

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
from superfluid.domain.state import SessionState, TurnKind
from superfluid.errors import DamagedRecordError, SessionNotFoundError
from superfluid.sessions.commands import turn_lead_in
from superfluid.sessions.conversation import conversation_digests, extended_digest, spans_of
from superfluid.sessions.log import OpenSession, SessionLog
from superfluid.sessions.recorder import CommitFailed, ExtraWrites, TurnRecorder
from superfluid.sessions.text import SessionText
from superfluid.store.interface import Origin, PutPrefix

_ROLES = {
    "system": TurnRole.SYSTEM,
    "user": TurnRole.USER,
    "assistant": TurnRole.ASSISTANT,
    "tool": TurnRole.TOOL,
}


class StoredPrompt(Struct, frozen=True):
    """A request's session, ready to generate on. ``durable`` is done when its prompt is on the disk.

    ``digest`` is that of its conversation, if a later request may begin with it.
    """

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
    """Makes sessions of prompts. ``text`` is that of the loaded model."""

    def __init__(self, log: SessionLog, text: SessionText, *, reader: Executor) -> None:
        self._log = log
        self._text = text
        self._reader = reader

    async def store_chat(self, prompt: ChatPrompt, rendered: Rendered, params: GenParams) -> StoredPrompt:
        """A session whose input is the conversation, the header included."""
        if not (self._text.codec.is_append_stable and self._text.turns.has_turns):
            return self._store(self._fresh_state(), None, prompt, rendered, 0, params, [])
        digests = conversation_digests(prompt, self._text.turns.identity)
        parent, known = await self._find(digests)
        if parent is None:
            return self._store(self._fresh_state(), None, prompt, rendered, 0, params, digests)
        state = await self._log.inherited_state(parent, known.at_event)
        first = digests.index(known.digest) + 1
        return self._store(state, parent.id, prompt, rendered, first, params, digests)

    def store_text(self, text: str | None, tokens: Sequence[int], params: GenParams) -> StoredPrompt:
        """A session whose input is a text, or tokens, with no chat frame."""
        bodies: list[Body] = [Created(None, params), Appended(text, tuple(tokens)), self._fingerprint()]
        session, durable = self._log.create(self._fresh_state(), bodies, origin=Origin.HTTP)
        return StoredPrompt(session, durable, None)

    def recorder(self, stored: StoredPrompt, *, parse_tools: bool, on_failed: CommitFailed) -> TurnRecorder:
        """What writes the reply into the request's session."""
        state = stored.session.state
        opening = state.tokens[state.header_start : state.reply_start] if state.last_turn is TurnKind.HEADER else ()
        parser = self._text.codec.reply_parser(parse_tools=parse_tools, opening=opening)
        return TurnRecorder(self._log, stored.session, parser, on_failed=on_failed)

    # ----

    async def _find(self, digests: Sequence[bytes]) -> tuple[OpenSession | None, PutPrefix]:
        """The stored session that the longest part of the conversation is known by, and where in it."""
        loop = asyncio.get_running_loop()
        known = await loop.run_in_executor(self._reader, self._log.store.prefix, digests)
        if known is None:
            return None, PutPrefix(b"", 0, 0)
        try:
            parent = await self._log.open(known.session)
        except (SessionNotFoundError, DamagedRecordError):
            # Gone or unreadable: the request brings its whole conversation along, so nothing is lost.
            return None, known
        return (parent if known.at_event <= parent.durable_events else None), known

    def _fresh_state(self) -> SessionState:
        return SessionState(self._log.store.allocate_session_id())

    def _fingerprint(self) -> GenerationFingerprint:
        return GenerationFingerprint(self._text.fingerprint)

    def _store(
        self,
        state: SessionState,
        base: int | None,
        prompt: ChatPrompt,
        rendered: Rendered,
        first: int,
        params: GenParams,
        digests: Sequence[bytes],
    ) -> StoredPrompt:
        messages = prompt.messages[first:]
        *spans, header = spans_of(rendered.tokens, rendered.message_ends, first)
        if base is not None:
            role = _ROLES[messages[0].role] if messages else TurnRole.ASSISTANT
            lead_in = tuple(turn_lead_in(state, role)(self._text.turns))
            if spans:
                spans[0] = (*lead_in, *spans[0])
            else:
                header = (*lead_in, *header)
        opening = Created(None, params) if base is None else Forked(base, state.events, params)
        bodies: list[Body] = [opening]
        prefixes: list[PutPrefix] = []
        for index, (message, span) in enumerate(zip(messages, spans, strict=True)):
            bodies.append(Message(_ROLES[message.role], message.content, span))
            if digests:
                prefixes.append(PutPrefix(digests[first + index], state.session, state.events + len(bodies)))
        if state.fingerprint != self._text.fingerprint:
            bodies.append(self._fingerprint())
        if header:
            bodies.append(GenerationPrompt(header))
        session, durable = self._log.create(state, bodies, base=base, origin=Origin.HTTP, extra=prefixes)
        return StoredPrompt(session, durable, digests[-1] if digests else None)
