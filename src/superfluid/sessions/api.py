"""The session API's use cases, put together: commands, branches, generations, subscriptions. Runs on the event loop."""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from superfluid.chat.interface import ChatCodec, ReplyParser, Tokenizer, TurnCodec
from superfluid.domain.events import (
    Body,
    Drop,
    Event,
    GenerationFingerprint,
    GenerationPrompt,
    GenParams,
    RebaseEdit,
)
from superfluid.domain.job import Job
from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass, SamplingParams
from superfluid.domain.state import SessionState, ToolCallEntry, TurnKind
from superfluid.errors import ContextLengthExceededError, SessionRefusedError
from superfluid.sessions.backend import GenerationBackend
from superfluid.sessions.commands import SessionCommands, turn_lead_in
from superfluid.sessions.counter import ReplyCounter
from superfluid.sessions.fanout import SessionSubscription
from superfluid.sessions.log import OpenSession, SessionLog
from superfluid.sessions.rebase import rebased_bodies
from superfluid.sessions.recorder import TurnRecorder
from superfluid.sessions.rules import require_edits, require_fork_point, require_idle, require_not_purging
from superfluid.sessions.session_api import Inspected
from superfluid.sessions.text import SessionText
from superfluid.sessions.turn import EmptyTurn, SessionTurn
from superfluid.store.interface import SessionRow


class Sessions:
    """``session_api.SessionApi``. ``text`` raises ModelLoadingError until the model is loaded."""

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
    ) -> None:
        self._log = log
        self._backend = backend
        self._text = text
        self._counter = counter
        self._executor = executor
        self._metrics_text = metrics_text
        self._set_log_level = set_log_level
        self._sub_ids = itertools.count(1)
        self._commands = SessionCommands(log, self._turn_text, executor=executor, unix_ms=unix_ms)

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

    async def append_tool_result(self, session: int, call_id: int, content: str) -> Event:
        return await self._commands.append_tool_result(session, call_id, content)

    async def open_tool_calls(self, session: int) -> list[tuple[int, ToolCallEntry]]:
        return await self._commands.open_tool_calls(session)

    async def read(self, session: int, cursor: int) -> list[Event]:
        return await self._commands.read(session, cursor)

    async def session_rows(self, *, include_archived: bool) -> list[SessionRow]:
        return await self._commands.rows(include_archived=include_archived)

    async def fork(self, session: int, at_event: int, params: GenParams | None) -> int:
        return await self._commands.fork(session, at_event, params)

    async def metrics_text(self) -> str:
        return self._metrics_text()

    async def set_log_level(self, directive: str) -> None:
        """Raises InvalidValueError and keeps the old filter if the directive does not parse."""
        self._set_log_level(directive)

    async def inspect(self, session: int) -> Inspected:
        opened, events = await self._commands.inspect(session)
        row = await self._commands.row(session)
        state = SessionState(
            session,
            fork_at=opened.state.fork_at,
            qos_class=row.qos_class,
            is_batch_invariant=row.is_batch_invariant,
        )
        # Folded anew, since the open session may be ahead of the disk.
        state.apply_all(events)
        return Inspected(row, state, opened.is_busy, events, self._log.store.store_id)

    # ---- branching

    async def trim(self, session: int, to_event: int) -> int:
        """A session with the first ``to_event`` events of this one."""
        opened = await self._log.open(session)
        require_not_purging(opened)
        length = opened.durable_events
        require_fork_point(to_event, length)
        if to_event == length:
            return await self.fork(session, to_event, None)
        return await self.rebase(session, [Drop(to_event, length)], None)

    async def rebase(self, session: int, edits: Sequence[RebaseEdit], params: GenParams | None) -> int:
        """A session with this one's events, edited. All of it is durable at once, or none of it."""
        opened = await self._log.open(session)
        require_not_purging(opened)
        length = opened.durable_events
        require_edits(edits, length)
        fork_at = edits[0].start
        inherited = await self._commands.inherited_state(opened, fork_at)
        rest = await self._log.read_events(opened, fork_at, length)
        bodies = await self._commands.in_thread(
            lambda: rebased_bodies(inherited, rest, edits, params or inherited.params, self._render_message)
        )
        child, durable = self._log.create(inherited, bodies, base=session)
        await durable
        return child.id

    def _render_message(self, state: SessionState, role: int, text: str) -> tuple[int, ...]:
        tokenizer, turns = self._turn_text()
        if not turns.has_turns:
            return tuple(tokenizer.encode_text(text, is_start=not state.tokens))
        return (*turn_lead_in(state, role)(turns), *turns.turn(role, text))

    # ---- generating

    async def generate(
        self, session: int, max_tokens: int, *, wants_provisional: bool = False
    ) -> SessionTurn | EmptyTurn:
        text = self._text()
        facts = self._backend.facts
        opened = await self._log.open(session)
        require_not_purging(opened)
        async with opened.lock:
            state = opened.state
            if state.open_permissions:
                raise SessionRefusedError(f"session {session} waits for a permission; answer it first")
            if not state.tokens:
                raise SessionRefusedError(f"session {session} has no input yet; append a message first")
            header = _header(state, text.turns)
            if len(state.tokens) + len(header) >= facts.window_tokens:
                raise ContextLengthExceededError(
                    f"session {session} has {len(state.tokens)} tokens; the context window is {facts.window_tokens}"
                )
            if max_tokens == 0:
                return EmptyTurn()
            require_idle(opened)
            return self._begin(opened, text, header, max_tokens, wants_provisional=wants_provisional)

    def _begin(
        self,
        opened: OpenSession,
        text: SessionText,
        header: tuple[int, ...],
        max_tokens: int,
        *,
        wants_provisional: bool,
    ) -> SessionTurn:
        job_id = self._counter.open()
        opened.is_busy = True

        def free() -> None:
            opened.is_busy = False
            opened.cancel_generation = None
            self._counter.close(job_id)

        turn = SessionTurn(
            opened, job_id, wants_provisional=wants_provisional, on_cancel=self._backend.cancel, on_end=free
        )
        opened.cancel_generation = turn.cancel
        bodies: list[Body] = []
        if opened.state.fingerprint != text.fingerprint:
            bodies.append(GenerationFingerprint(text.fingerprint))
        if header:
            bodies.append(GenerationPrompt(header))
        if bodies:
            self._log.append(opened, bodies)
        state = opened.state
        recorder = TurnRecorder(self._log, opened, _parser(state, text.codec), on_failed=turn.store_failed)
        turn.attach(recorder)
        self._backend.submit(_job(job_id, state, max_tokens, self._backend.facts.window_tokens), turn)
        turn.raise_if_refused()
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


def _header(state: SessionState, turns: TurnCodec) -> tuple[int, ...]:
    """The assistant header that a new turn opens with; nothing where decoding goes on in place."""
    if state.last_turn in (TurnKind.MESSAGE, TurnKind.TOOL_RESULT):
        return tuple(turns.opener())
    if state.last_turn is TurnKind.GENERATED and state.last_turn_finish is Finish.END_OF_TURN:
        return (*turns.separator(), *turns.opener())
    return ()


def _parser(state: SessionState, codec: ChatCodec) -> ReplyParser:
    """A parser that stands where the turn stands: behind its header, or behind what was generated before a cut."""
    is_in_turn = state.last_turn in (TurnKind.HEADER, TurnKind.GENERATED)
    opening = state.tokens[state.header_start : state.reply_start] if is_in_turn else ()
    parser = codec.reply_parser(parse_tools=True, opening=opening)
    if state.last_turn is TurnKind.GENERATED:
        parser.feed(state.tokens[state.reply_start :])
    return parser


def _job(job_id: int, state: SessionState, max_tokens: int, window_tokens: int) -> Job:
    """What was generated in an open turn is reply, not prompt: so the engine may continue it bit for bit."""
    length = len(state.tokens)
    is_open = state.last_turn is TurnKind.GENERATED and state.reply_start > 0
    params = state.params
    return Job(
        job_id=job_id,
        tokens=state.tokens.tobytes(),
        prompt_tokens=state.reply_start if is_open else length,
        max_tokens=min(max_tokens, window_tokens - length),
        sampling=SamplingParams(
            temperature=max(0.0, params.temperature),
            top_p=params.top_p,
            min_p=params.min_p,
            top_k=params.top_k,
            seed=params.seed,
        ),
        qos=QosClass(state.qos_class),
    )
