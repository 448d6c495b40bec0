"""The last step of a purge: what was said is erased, in the store and wherever else it was kept. On the event loop.

A keeper is whoever writes text, token ids or what follows from them into a file outside the session store: parked
states, a cache of prefixes on the disk, media. Keepers are told first, while it is still known what there is to erase.
"""

from array import array
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from superfluid.domain.events import Block, BlockKind, SpanBody
from superfluid.domain.media import named_blobs
from superfluid.errors import DamagedRecordError, StoreUnavailableError, SuperfluidError
from superfluid.sessions.backend import GenerationBackend
from superfluid.sessions.log import SessionLog
from superfluid.store.interface import BeginErasure, EraseSession

# More sessions at once would take much memory, and keep the store's writer from everybody else for long.
_AT_ONCE = 128


class PurgedSession(Struct, frozen=True):
    """A session that is purged, while its content is still known.

    ``tokens`` is its whole model input. The first ``shared_tokens`` of them stay with sessions that live on: those it
    had inherited them from, or those that had inherited them from it. ``blobs`` names the media of its image blocks
    behind that; other sessions may show the same. All are empty where the session cannot be read any more.
    """

    session: int
    tokens: "array[int]"
    shared_tokens: int = 0
    blobs: frozenset[str] = frozenset()

    def is_traced_by(self, kept: Sequence[int]) -> bool:
        """Whether something kept for the input ``kept`` tells of this session more than others still have of it."""
        beyond = self.shared_tokens + 1
        return len(self.tokens) >= beyond and list(kept[:beyond]) == self.tokens[:beyond].tolist()


class Eraser(Protocol):
    """A keeper's part of a purge."""

    async def erase(self, purged: Sequence[PurgedSession]) -> None:
        """When this returns, nothing of ``purged`` is left in the keeper's files, durably, and nothing of it will be
        written there again (from memory, say).

        It may be called again for the same sessions, also at the next start, before there is a worker. Raises a
        SuperfluidError if traces may be left.
        """
        ...


class StateEraser:
    """The keeper of the states that a model leaves behind: the worker, its memory and its files."""

    def __init__(self, backend: GenerationBackend) -> None:
        self._backend = backend

    async def erase(self, purged: Sequence[PurgedSession]) -> None:
        """What sessions that live on have computed stays: all of its tokens are in their own logs."""
        await self._backend.forget([session.session for session in purged])


class Erasures:
    """Carries out what the store notes as begun. Not to be run twice at a time."""

    def __init__(self, log: SessionLog) -> None:
        self._log = log
        self._erasers: list[Eraser] = []

    def add_eraser(self, eraser: Eraser) -> None:
        self._erasers.append(eraser)

    async def run(self) -> None:
        """Erases all that has been purged and is not erased yet. Raises StoreUnavailableError if that fails; what is
        left is then tried again the next time."""
        pending = await self._log.in_reader(self._log.store.erasing)
        try:
            for start in range(0, len(pending), _AT_ONCE):
                some = pending[start : start + _AT_ONCE]
                await self._tell_erasers(some)
                await self._log.write([EraseSession(begun.session) for begun in some])
        except SuperfluidError as error:
            raise StoreUnavailableError(
                "purged sessions are gone for every reader, but traces of them may be on the disk until the next purge "
                f"or start: {error.message}"
            ) from error

    async def _tell_erasers(self, pending: Sequence[BeginErasure]) -> None:
        if not self._erasers:
            return
        purged = await self._log.in_reader(lambda: [self._content(begun) for begun in pending])
        failure: SuperfluidError | None = None
        for eraser in self._erasers:
            try:
                await eraser.erase(purged)
            except SuperfluidError as error:
                # The others are told all the same.
                failure = error
        if failure is not None:
            raise failure

    def _content(self, begun: BeginErasure) -> PurgedSession:
        tokens = array("i")
        shared = 0
        blobs: set[str] = set()
        try:
            events = self._log.decode(self._log.store.events(begun.session))
        except DamagedRecordError:
            return PurgedSession(begun.session, tokens)
        for event in events:
            if isinstance(event.body, SpanBody):
                tokens.extend(event.body.span)
            if event.event_id < begun.shared_events:
                shared = len(tokens)
            elif isinstance(event.body, Block) and event.body.kind == BlockKind.IMAGE:
                blobs.update(named_blobs(event.body.payload))
        return PurgedSession(begun.session, tokens, shared, frozenset(blobs))
