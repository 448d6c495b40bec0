"""Images in sessions: putting them into the pool, appending them to a turn, letting go of those nobody shows.

Runs on the event loop; files are touched in a thread.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final, TypeVar

from superfluid.domain.events import VISIBILITY_VERSION, Block, BlockKind, Body, Event, Rerooted
from superfluid.domain.image_format import require_image
from superfluid.domain.media import (
    MAX_PLACEHOLDERS,
    PLACEHOLDER,
    ImagePayload,
    MediaFacts,
    MediaIdentity,
    named_blobs,
)
from superfluid.domain.state import SessionState
from superfluid.errors import SessionRefusedError, UnsupportedInputError
from superfluid.sessions.backend import GenerationBackend
from superfluid.sessions.erasing import PurgedSession
from superfluid.sessions.log import SessionLog
from superfluid.sessions.rules import require_idle, require_message_role
from superfluid.sessions.writing import SessionWriter
from superfluid.store.media import MediaPool, Swept, blob_name, is_blob_name

_T = TypeVar("_T")
_NEEDLE: Final = b'"blob"'
"""In every payload that names one."""
_NAME: Final = re.compile(rb"[0-9a-f]{64}")
_SESSIONS_AT_ONCE: Final = 256


class SessionMedia:
    """One for each pool. ``decode_body`` reads a stored record; it raises ValueError for one that is damaged."""

    def __init__(
        self,
        log: SessionLog,
        writer: SessionWriter,
        backend: GenerationBackend,
        pool: MediaPool,
        *,
        decode_body: Callable[[bytes], Body],
    ) -> None:
        self._log = log
        self._writer = writer
        self._backend = backend
        self._pool = pool
        self._decode_body = decode_body
        self._sweeping = asyncio.Lock()
        # Held while files are deleted: nobody may begin to rely on one then.
        self._deleting = asyncio.Lock()
        # What somebody is about to name, and what was put or named since the sweep in hand began.
        self._held: Counter[str] = Counter()
        self._touched: set[str] = set()

    async def put(self, content: bytes) -> str:
        """Stores a blob; its name. Whatever it is: only who shows it to a model must know."""
        blob = await self._in_thread(lambda: blob_name(content))
        # A sweep that deletes at this moment may delete this one, which the pool would find there and leave alone.
        async with self._hold(blob):
            return await self._in_thread(lambda: self._pool.put(content, blob))

    async def append_image(self, session: int, role: int, blob: str, pre_text: str, post_text: str) -> Event:
        """A turn of ``role`` that shows the image between two texts."""
        opened = await self._log.open(session)
        async with opened.lock:
            require_idle(opened)
            require_message_role(role)
            if not is_blob_name(blob):
                raise SessionRefusedError("a blob is named by 64 lower-case hex digits: what PutMedia answers")
            async with self._hold(blob):
                media, layout = await self._sized(blob)
                block = await self._block(opened.state, role, media, layout, (blob, pre_text, post_text))
                return await self._writer.commit(opened, block)

    @asynccontextmanager
    async def naming(self, payload: str) -> AsyncIterator[None]:
        """Around the commit of an image block with this payload, which shows nothing: what it names stays."""
        async with AsyncExitStack() as stack:
            for blob in named_blobs(payload):
                await stack.enter_async_context(self._hold(blob))
            yield

    async def collect(self, among: Collection[str] | None = None) -> Swept:
        """Deletes the blobs that no live session shows, archived ones included; with ``among``, only those of these.

        How many stay, and how many are gone.
        """
        async with self._sweeping:
            self._touched = set()
            named = await self._named()
            async with self._deleting:
                # What is about to be named stays, and what came meanwhile: the scan may have passed its place already.
                named |= self._touched | set(self._held)
                return await self._in_thread(lambda: self._pool.sweep(named, among))

    async def erase(self, purged: Sequence[PurgedSession]) -> None:
        """``erasing.Eraser``: deletes what purged sessions alone have shown. Raises StoreUnavailableError."""
        blobs = {blob for session in purged for blob in session.blobs}
        if blobs:
            await self.collect(blobs)

    # ----

    async def _sized(self, blob: str) -> tuple[MediaFacts, list[int]]:
        """The image's layout, and how the model that was asked sees images."""
        content = await self._in_thread(lambda: self._pool.get(blob))
        if content is None:
            raise SessionRefusedError(f"there is no blob {blob} in the media pool: put it there first")
        media = self._backend.facts.media
        if media is None:
            raise UnsupportedInputError(self._backend.facts.no_images_reason)
        require_image(content)
        layout = await self._backend.size_image(blob)
        count = layout.count(PLACEHOLDER)
        if not 0 < count <= MAX_PLACEHOLDERS:
            raise SessionRefusedError(f"the image takes {count} tokens; 1 to {MAX_PLACEHOLDERS} are possible")
        if media.placeholder_token in layout:
            raise SessionRefusedError("the image cannot be told from its markers with this model")
        return media, layout

    async def _block(
        self, state: SessionState, role: int, media: MediaFacts, layout: Sequence[int], content: tuple[str, str, str]
    ) -> Block:
        blob, pre_text, post_text = content
        before, behind = await self._writer.turn_around(state, role, pre_text, post_text)
        places = [media.placeholder_token if token == PLACEHOLDER else token for token in layout]
        payload = ImagePayload(
            blob=blob,
            n_tokens=layout.count(PLACEHOLDER),
            image_token_id=media.placeholder_token,
            offset=len(state.tokens) + len(before) + layout.index(PLACEHOLDER),
            pre_text=pre_text,
            post_text=post_text,
            media_identity=MediaIdentity(media.fingerprint, media.encoder),
        )
        return Block(role, BlockKind.IMAGE, payload.encode(), (*before, *places, *behind), VISIBILITY_VERSION)

    async def _named(self) -> set[str]:
        """The blobs of all live sessions' image blocks. Other readers of the store get their turns in between."""
        extents = await self._log.in_reader(self._log.store.live_extents)
        named: set[str] = set()
        for start in range(0, len(extents), _SESSIONS_AT_ONCE):
            named |= await self._log.in_reader(partial(self._blobs_in, extents[start : start + _SESSIONS_AT_ONCE]))
        return named

    def _blobs_in(self, extents: Sequence[tuple[int, int]]) -> set[str]:
        return {blob for body in self._log.store.bodies_with(_NEEDLE, extents) for blob in self._blobs_of(body)}

    def _blobs_of(self, stored: bytes) -> Iterator[str]:
        try:
            body = self._decode_body(stored)
        except ValueError:
            # What cannot be read may name anything that is in it.
            yield from (match.decode() for match in _NAME.findall(stored))
            return
        for inner in [body, *(part for _, part in body.prefix)] if isinstance(body, Rerooted) else [body]:
            if isinstance(inner, Block) and inner.kind == BlockKind.IMAGE:
                yield from named_blobs(inner.payload)

    @asynccontextmanager
    async def _hold(self, blob: str) -> AsyncIterator[None]:
        """Keeps a sweep from deleting it until it is stored, or the record that names it is durable."""
        async with self._deleting:
            self._held[blob] += 1
        try:
            yield
        finally:
            self._touch(blob)
            self._held[blob] -= 1
            if not self._held[blob]:
                del self._held[blob]

    def _touch(self, blob: str) -> None:
        if self._sweeping.locked():
            self._touched.add(blob)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(None, work)
