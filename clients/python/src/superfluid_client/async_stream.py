"""A reply as it is being generated, for asyncio; ``stream`` has its blocking face."""

import json
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Protocol, Self

from superfluid_client.assembly import ReplyAssembler
from superfluid_client.errors import (
    ConnectionLost,
    GenerationFailed,
    RequestRefused,
    SuperfluidError,
    UnexpectedReply,
    refusal,
)
from superfluid_client.patience import LoadingPatience
from superfluid_client.records import Chunk, Reply
from superfluid_client.transport import Exchange

_LAST = "[DONE]"
_FAREWELL_SECONDS = 5.0
_FIRST_FRAME_SECONDS = 0.5
_LAST_BYTES_SECONDS = 1.0


class Generator(Protocol):
    """What a stream needs of its session."""

    async def open_generation(self, max_tokens: int, *, provisional: bool) -> Exchange:
        """Sends the request."""

    async def cancel(self) -> bool:
        """Asks the daemon to end the generation."""

    def patience(self) -> LoadingPatience:
        """For one request and its repetitions."""

    def note_reply(self, reply: Reply | None, *, is_settled: bool) -> None:
        """Is told the reply at its end, if there is any, and whether the session is done with it."""


class AsyncReplyStream(AsyncIterator[Chunk]):
    """Yields the pieces of one reply. ``reply`` is what is committed of it so far, in the end all of it.

    The generation begins when the stream is first read, or entered as ``async with``. Letting go of it early cancels
    it: the end of the ``async with`` block and ``aclose`` wait until it has ended; leaving the loop, and cancelling the
    task that reads, hang up at once, and whatever is asked of the same ``AsyncSession`` next waits for the daemon to
    notice.

    Iterating raises RequestRefused if the daemon would not generate, GenerationFailed and ConnectionLost if the reply
    broke off; what was committed before is in the log. One task at a time may read a stream; to stop it from another
    one, use ``cancel`` of the session.
    """

    def __init__(self, session: Generator, max_tokens: int, *, provisional: bool) -> None:
        """Use ``AsyncSession.stream``."""
        self._is_over = True  # until there is something to let go of
        self._session = session
        self._request: dict[str, Any] = {"max_tokens": max_tokens, "provisional": provisional}
        self._patience = session.patience()
        self._assembler = ReplyAssembler()
        self._exchange: Exchange | None = None
        self._is_over = False

    @property
    def reply(self) -> Reply:
        return self._assembler.reply()

    async def start(self) -> None:
        """Sends the request, unless it was sent already. Raises ServerUnreachable, ConnectionLost, Unauthorized."""
        if self._exchange is None and not self._is_over:
            try:
                self._exchange = await self._session.open_generation(**self._request)
            except BaseException:
                self._is_over = True
                raise

    async def next_chunk(self) -> Chunk | None:
        """The next piece, ``None`` at the end. What it raises ends the stream; being cancelled does as well."""
        await self.start()
        try:
            while not self._is_over:
                chunk = await self._read_or_try_again()
                if chunk is not None:
                    return chunk
        except SuperfluidError:
            self._end()
            raise
        except BaseException:
            self.hang_up()
            raise
        return None

    async def aclose(self) -> None:
        """Cancels the generation if it is still going on, and waits for its end, if that comes soon."""
        if self._is_over or self._exchange is None:
            self._is_over = True
            return
        is_settled = False
        try:
            is_settled = await self._say_farewell()
        except SuperfluidError:
            pass  # Hanging up is all that is left to do, and enough.
        finally:
            self._end(is_settled=is_settled)

    def hang_up(self) -> None:
        """Ends it without waiting: the daemon cancels a generation whose client has gone."""
        self._end(is_settled=False)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        chunk = await self.next_chunk()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # A loop that is left early drops its stream, and has no other way to say so.
        self.hang_up()

    # ----

    def _opened(self) -> Exchange:
        assert self._exchange is not None
        return self._exchange

    async def _read_or_try_again(self) -> Chunk | None:
        try:
            return await self._read_frame()
        except RequestRefused as refused:
            await self._patience.wait_out(refused)
        self._opened().close()
        self._assembler = ReplyAssembler()
        self._exchange = await self._session.open_generation(**self._request)
        return None

    async def _read_frame(self) -> Chunk | None:
        data = await self._opened().next_event()
        if data is None:
            raise ConnectionLost("the stream broke off before the reply's end")
        if data == _LAST:
            await self._take_end()
            return None
        try:
            return self._assembler.take(json.loads(data))
        except (ValueError, KeyError, TypeError) as error:
            raise UnexpectedReply(f"a frame that this client cannot read: {error!r}") from error

    async def _take_end(self) -> None:
        self._opened().set_timeout(_LAST_BYTES_SECONDS)
        try:
            await self._opened().next_event()
        except SuperfluidError:
            pass  # Only the connection's further use was at stake.
        error = self._assembler.error
        if error is not None:
            raise GenerationFailed(error) if self._assembler.has_begun else refusal(error)
        if not self._assembler.is_done:
            raise UnexpectedReply("the stream ended without saying how the generation did")
        self._end()

    async def _say_farewell(self) -> bool:
        """Cancels and reads to the end; false if that did not come in time."""
        if not self._assembler.has_begun:
            # Before its first frame nobody knows whether this generation was accepted, and Cancel could hit another
            # client's. Hanging up would end ours alone, but nobody knows when.
            self._opened().set_timeout(_FIRST_FRAME_SECONDS)
            while not self._assembler.has_begun:
                await self._read_frame()
        if not self._assembler.has_ended:
            await self._session.cancel()
        deadline = time.monotonic() + _FAREWELL_SECONDS
        while not self._is_over and (left := deadline - time.monotonic()) > 0:
            self._opened().set_timeout(left)
            await self._read_frame()
        return self._is_over

    def _end(self, *, is_settled: bool = True) -> None:
        if not self._is_over:
            self._is_over = True
            if self._exchange is not None:
                self._exchange.close()
                self._session.note_reply(self.reply if self._assembler.has_begun else None, is_settled=is_settled)
