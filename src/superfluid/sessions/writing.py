"""How the requests of the session API render turns and commit records. Runs on the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from superfluid.chat.interface import Tokenizer, TurnCodec
from superfluid.domain.events import Body, Event
from superfluid.domain.reply import Finish
from superfluid.domain.state import SessionState, TurnKind
from superfluid.sessions.log import SessionLog
from superfluid.sessions.open_session import OpenSession
from superfluid.store.interface import Origin

_T = TypeVar("_T")


class SessionWriter:
    """``text`` gives the loaded model's vocabulary and turn codec; it raises ModelLoadingError until there is one."""

    def __init__(self, log: SessionLog, text: Callable[[], tuple[Tokenizer, TurnCodec]], *, executor: Executor) -> None:
        self._log = log
        self._text = text
        self._executor = executor

    @property
    def tokenizer(self) -> Tokenizer:
        return self._text()[0]

    @property
    def turns(self) -> TurnCodec:
        return self._text()[1]

    async def commit(self, opened: OpenSession, body: Body) -> Event:
        """Appends a record; returns when it is durable. Its place in the log is taken before the first wait."""
        # Whoever writes to a session by its id has a name for it.
        opened.origin = Origin.SESSION_API
        return (await self._log.append(opened, [body]))[0]

    async def turn_span(
        self, state: SessionState, role: int, write: Callable[[TurnCodec], list[int]]
    ) -> tuple[int, ...]:
        """A turn's tokens, with what must come before it where the session stands now. The caller holds its lock."""
        codec = self.turns
        before = turn_lead_in(state, role)
        return tuple(await self.in_thread(lambda: [*before(codec), *write(codec)]))

    async def turn_around(
        self, state: SessionState, role: int, pre_text: str, post_text: str
    ) -> tuple[list[int], list[int]]:
        """As ``turn_span``, for a turn with something between two texts: the tokens before it and behind it."""
        codec = self.turns
        lead_in = turn_lead_in(state, role)

        def write() -> tuple[list[int], list[int]]:
            before, behind = codec.turn_around(role, pre_text, post_text)
            return [*lead_in(codec), *before], behind

        return await self.in_thread(write)

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def turn_lead_in(state: SessionState, role: int) -> Callable[[TurnCodec], list[int]]:
    """What a new turn needs before it: the stream's prologue, a separator behind a finished reply, or nothing."""
    if not state.tokens:
        return lambda codec: codec.prologue(role)
    if state.last_turn is TurnKind.GENERATED and state.last_turn_finish is Finish.END_OF_TURN:
        return lambda codec: codec.separator()
    return lambda _: []
