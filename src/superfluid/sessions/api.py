"""The session API's use cases, put together: commands, branches, generations, subscriptions. Runs on the event loop."""

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext

from superfluid.chat.interface import Tokenizer, TurnCodec
from superfluid.domain.events import BlockKind, Body, Drop, Event, GenParams, PurgeMode, RebaseEdit
from superfluid.domain.request import InfillPrompt
from superfluid.domain.state import SessionState, ToolCallEntry
from superfluid.domain.statistics import Warmth
from superfluid.errors import ContextLengthExceededError, SessionRefusedError, UnsupportedInputError
from superfluid.sessions.backend import GenerationBackend
from superfluid.sessions.commands import SessionCommands
from superfluid.sessions.counter import ReplyCounter
from superfluid.sessions.fanout import SessionSubscription
from superfluid.sessions.infill import Completion, InfillService
from superfluid.sessions.log import SessionLog
from superfluid.sessions.media import SessionMedia
from superfluid.sessions.metering import CompletionBucket, CompletionMeter
from superfluid.sessions.open_session import OpenSession, row_of
from superfluid.sessions.opening import open_channel, turn_header, turn_job, turn_parser
from superfluid.sessions.purge import SessionPurger
from superfluid.sessions.rebase import rebased_bodies
from superfluid.sessions.recorder import TurnRecorder
from superfluid.sessions.rules import require_edits, require_fork_point, require_idle, require_not_purging
from superfluid.sessions.session_api import Inspected
from superfluid.sessions.text import SessionText
from superfluid.sessions.tools import ToolCommands, tool_lease
from superfluid.sessions.turn import EmptyTurn, SessionTurn
from superfluid.sessions.turn_log import TurnFacts, TurnLog
from superfluid.sessions.writing import SessionWriter, turn_lead_in
from superfluid.store.interface import Origin, SessionRow
from superfluid.store.media import MediaPool

logger = logging.getLogger("superfluid_daemon::sessions")


class Sessions:
    """``session_api.SessionApi``. ``text`` raises ModelLoadingError until the model is loaded. With ``tool_lease_ms``
    above 0 each tool call has that long for its result."""

    def __init__(
        self,
        log: SessionLog,
        backend: GenerationBackend,
        text: Callable[[], SessionText],
        *,
        counter: ReplyCounter,
        executor: Executor,
        unix_ms: Callable[[], int],
        metrics_text: Callable[[], str],
        set_log_level: Callable[[str], None],
        infill: InfillService,
        meter: CompletionMeter,
        media_pool: MediaPool,
        decode_body: Callable[[bytes], Body],
        tool_lease_ms: int = 0,
        purger: SessionPurger | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._backend = backend
        self._text = text
        self._counter = counter
        self._metrics_text = metrics_text
        self._set_log_level = set_log_level
        self._infill = infill
        self._meter = meter
        self._monotonic = monotonic
        self._lease = tool_lease(tool_lease_ms, unix_ms)
        self._sub_ids = itertools.count(1)
        self._writer = SessionWriter(log, self._turn_text, executor=executor)
        self._commands = SessionCommands(log, self._writer, unix_ms=unix_ms)
        self._purger = purger or SessionPurger(log)
        self.media = SessionMedia(log, self._writer, backend, media_pool, decode_body=decode_body)
        self._tools = ToolCommands(log, self._writer, unix_ms=unix_ms)

    def _turn_text(self) -> tuple[Tokenizer, TurnCodec]:
        text = self._text()
        return text.tokenizer, text.turns

    # ---- commands

    async def create(self, parent: int | None, params: GenParams) -> int:
        return await self._commands.create(parent, params)

    async def append(self, session: int, text: str | None, span: Sequence[int]) -> Event:
        return await self._commands.append(session, text, span)

    async def append_message(self, session: int, role: int, text: str) -> Event:
        return await self._commands.append_message(session, role, text)

    async def append_system(self, session: int, text: str | None, tools: Sequence[str]) -> Event:
        return await self._commands.append_system(session, text, tuple(tools))

    async def append_block(self, session: int, role: int, kind: int, payload: str) -> Event:
        async with self.media.naming(payload) if kind == BlockKind.IMAGE else nullcontext():
            return await self._commands.append_block(session, role, kind, payload)

    async def append_image(self, session: int, role: int, blob: str, pre_text: str, post_text: str) -> Event:
        return await self.media.append_image(session, role, blob, pre_text, post_text)

    async def put_media(self, content: bytes) -> str:
        return await self.media.put(content)

    async def gc_media(self) -> tuple[int, int]:
        kept, removed = await self.media.collect()
        logger.info("media that no session shows was deleted", extra={"fields": {"kept": kept, "removed": removed}})
        return kept, removed

    async def set_meta(self, session: int, expected_version: int, title: str | None, archived: bool | None) -> int:
        return await self._commands.set_meta(session, expected_version, title, archived)

    async def set_qos(self, session: int, qos_class: int, *, batch_invariant: bool) -> Event:
        return await self._commands.set_qos(session, qos_class, batch_invariant=batch_invariant)

    async def pin(self, session: int, ttl_ms: int) -> int:
        deadline = await self._commands.pin(session, ttl_ms)
        self._backend.pin(session, deadline)
        return deadline

    async def read(self, session: int, cursor: int) -> list[Event]:
        return await self._commands.read(session, cursor)

    async def session_rows(self, *, include_archived: bool) -> list[SessionRow]:
        return await self._commands.rows(include_archived=include_archived)

    async def fork(self, session: int, at_event: int, params: GenParams | None) -> int:
        return await self._commands.fork(session, at_event, params)

    async def purge(self, session: int, expected_generation: int, mode: PurgeMode) -> list[int]:
        gone = await self._purger.purge(session, expected_generation, mode)
        fields = {"session": session, "mode": mode.name.lower(), "sessions": len(gone)}
        logger.info("sessions were purged", extra={"fields": fields})
        return gone

    async def inspect(self, session: int) -> Inspected:
        opened, events = await self._commands.inspect(session)
        state = await self._log.durable_state(opened, events)
        row = row_of(opened, state)
        parked = self._backend.warmth(session, state.tokens).disk
        return Inspected(row, state, opened.is_busy, events, self._log.store.store_id, parked)

    async def warmth(self, session: int) -> Warmth:
        opened = await self._log.open(session)
        return self._backend.warmth(session, opened.state.tokens)

    # ---- tool calls and permissions

    async def append_tool_result(self, session: int, call_id: int, content: str) -> Event:
        return await self._tools.append_tool_result(session, call_id, content)

    async def open_tool_calls(self, session: int) -> list[tuple[int, ToolCallEntry]]:
        return await self._tools.open_tool_calls(session)

    async def ledger(self, session: int) -> list[tuple[int, ToolCallEntry]]:
        return await self._tools.ledger(session)

    async def request_tool_cancel(self, session: int, call_id: int) -> Event:
        return await self._tools.request_tool_cancel(session, call_id)

    async def append_tool_outcome(self, session: int, call_id: int, outcome: int, note: str) -> Event:
        return await self._tools.append_tool_outcome(session, call_id, outcome, note)

    async def request_permission(self, session: int, call_id: int, text: str) -> Event:
        return await self._tools.request_permission(session, call_id, text)

    async def respond_permission(self, session: int, request_id: int, *, granted: bool) -> Event:
        return await self._tools.respond_permission(session, request_id, granted=granted)

    # ---- filling in

    def completion_bucket(self) -> CompletionBucket:
        return self._meter.bucket()

    async def complete(self, bucket: CompletionBucket, prompt: InfillPrompt, max_tokens: int) -> Completion:
        bucket.take()
        return await self._infill.complete(prompt, max_tokens)

    # ---- the daemon

    async def metrics_text(self) -> str:
        return self._metrics_text()

    async def set_log_level(self, directive: str) -> None:
        """Raises InvalidValueError and keeps the old filter if the directive does not parse."""
        self._set_log_level(directive)

    async def set_background_rate(self, divisor: int) -> None:
        self._backend.set_background_rate(max(1, divisor))

    # ---- branching

    async def trim(self, session: int, to_event: int) -> int:
        """A session with the first ``to_event`` events of this one."""
        opened = await self._log.open(session)
        require_not_purging(opened)
        length = opened.durable_events
        require_fork_point(to_event, length)
        if to_event == length:
            return await self.fork(session, to_event, None)
        return await self._rebase(opened, [Drop(to_event, length)], None, length)

    async def rebase(self, session: int, edits: Sequence[RebaseEdit], params: GenParams | None) -> int:
        """A session with this one's events, edited. All of it is durable at once, or none of it."""
        opened = await self._log.open(session)
        require_not_purging(opened)
        length = opened.durable_events
        require_edits(edits, length)
        return await self._rebase(opened, edits, params, length)

    async def _rebase(
        self, opened: OpenSession, edits: Sequence[RebaseEdit], params: GenParams | None, length: int
    ) -> int:
        """``length`` is the parent's when the edits were checked: a generation may be adding to it meanwhile."""
        inherited = await self._log.inherited_state(opened, edits[0].start)
        rest = await self._log.read_events(opened, edits[0].start, length)
        bodies = await self._writer.in_thread(
            lambda: rebased_bodies(inherited, rest, edits, params or opened.state.params, self._render_message)
        )
        child, durable = self._log.create(inherited, bodies, base=opened)
        await durable
        return child.id

    def _render_message(self, state: SessionState, role: int, text: str) -> tuple[int, ...]:
        tokenizer, turns = self._turn_text()
        if not turns.has_turns:
            return tuple(tokenizer.encode_text(text, is_start=not state.tokens))
        return (*turn_lead_in(state, role)(turns), *turns.turn(role, text))

    # ---- generating

    async def generate(
        self, session: int, max_tokens: int, *, wants_provisional: bool = False, transport: str = ""
    ) -> SessionTurn | EmptyTurn:
        text = self._text()
        window = self._backend.facts.window_tokens
        opened = await self._log.open(session)
        require_not_purging(opened)
        async with opened.lock:
            if self._lease is not None:
                await self._tools.expire_elapsed(opened)
                require_not_purging(opened)
            state = opened.state
            if state.open_permissions:
                raise SessionRefusedError(f"session {session} waits for a permission; answer it first")
            if not state.tokens:
                raise SessionRefusedError(f"session {session} has no input yet; append a message first")
            if len(state.tokens) > window:
                raise _too_long(session, len(state.tokens), window)
            if max_tokens == 0:
                return EmptyTurn()
            require_idle(opened)
            if state.images and self._backend.facts.media is None:
                raise UnsupportedInputError(f"session {session} shows an image; {self._backend.facts.no_images_reason}")
            header = turn_header(state, text.turns)
            if header and len(state.tokens) + len(header) >= window:
                raise _too_long(session, len(state.tokens) + len(header), window)
            return self._begin(
                opened, text, header, max_tokens, wants_provisional=wants_provisional, transport=transport
            )

    def _begin(
        self,
        opened: OpenSession,
        text: SessionText,
        header: tuple[int, ...],
        max_tokens: int,
        *,
        wants_provisional: bool,
        transport: str,
    ) -> SessionTurn:
        """Submits first: a generation that the backend refuses leaves no trace in the log."""
        state = opened.state
        parser = turn_parser(state, header, text.codec)
        channel = open_channel(state, header)
        job_id = self._counter.open()
        self._counter.describe(job_id, session=opened.id, max_tokens=max_tokens)
        opened.is_busy = True

        def free() -> None:
            opened.end_generation()
            self._counter.close(job_id)

        facts = TurnFacts(opened.id, job_id, state.qos_class, len(state.tokens) + len(header), transport)
        turn = SessionTurn(
            opened,
            job_id,
            wants_provisional=wants_provisional,
            on_cancel=self._backend.cancel,
            on_end=free,
            log=TurnLog(facts, self._monotonic),
        )
        opened.cancel_generation = turn.cancel
        model = self._backend.facts
        fingerprint = "" if model.media is None else model.media.fingerprint
        job = turn_job(job_id, state, header, max_tokens, model.window_tokens, encoder_fingerprint=fingerprint)
        self._backend.submit(job, turn)
        turn.raise_if_refused()
        recorder = TurnRecorder(
            self._log,
            opened,
            parser,
            on_failed=turn.store_failed,
            channel=channel,
            lease_deadline_unix_ms=self._lease,
        )
        opened.origin = Origin.SESSION_API
        recorder.open(header, None if state.fingerprint == text.fingerprint else text.fingerprint)
        turn.attach(recorder)
        return turn

    async def cancel(self, session: int) -> None:
        opened = await self._log.open(session)
        if opened.cancel_generation is None:
            raise SessionRefusedError(f"session {session}: no generation in flight")
        opened.cancel_generation()

    async def subscribe(self, session: int, cursor: int, *, wants_provisional: bool) -> SessionSubscription:
        opened = await self._log.open(session)
        subscription = SessionSubscription(next(self._sub_ids), opened, cursor, wants_provisional=wants_provisional)
        try:
            backlog = await self._log.read_events(opened, cursor)
        except BaseException:
            subscription.close()
            raise
        subscription.start(backlog)
        return subscription


def _too_long(session: int, tokens: int, window: int) -> ContextLengthExceededError:
    return ContextLengthExceededError(
        f"the input of session {session} has {tokens} tokens; the context window is {window} tokens, the reply included"
    )
