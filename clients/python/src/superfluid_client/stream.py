"""A reply as it is being generated."""

import json
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from superfluid_client.assembly import ReplyAssembler
from superfluid_client.errors import (
    ConnectionLost,
    GenerationFailed,
    RequestRefused,
    SuperfluidError,
    UnexpectedReply,
    refusal,
)
from superfluid_client.records import Chunk, Reply
from superfluid_client.transport import Exchange

_LAST = "[DONE]"
_FAREWELL_SECONDS = 5.0
_FIRST_FRAME_SECONDS = 0.5
_LAST_BYTES_SECONDS = 1.0


class ReplyStream(Iterator[Chunk]):
    """Yields the pieces of one reply. ``reply`` is what is committed of it so far, in the end all of it.

    The generation runs from the moment the stream is made, read or not. Letting go of the stream early (leaving the
    loop, ``close``, the end of a ``with``) cancels it. Iterating raises RequestRefused if the daemon would not
    generate, GenerationFailed and ConnectionLost if the reply broke off; what was committed before is in the log.
    One thread at a time may read a stream; to stop it from another one, use ``Session.cancel``.
    """

    def __init__(
        self,
        open_exchange: Callable[[], Exchange],
        *,
        cancel: Callable[[], object],
        wait_out: Callable[[RequestRefused], None],
        on_end: Callable[[Reply | None, bool], None],
    ) -> None:
        """``open_exchange`` sends the request. When the daemon refuses it, ``wait_out`` waits a moment if that is worth
        another try, else raises. ``cancel`` asks the daemon to end the generation. ``on_end`` is told the reply, if
        there is any, and whether the session is done with it."""
        self._is_over = True  # until the request is out: there is nothing to let go of
        self._open = open_exchange
        self._cancel = cancel
        self._wait_out = wait_out
        self._on_end = on_end
        self._assembler = ReplyAssembler()
        self._exchange = open_exchange()
        self._is_over = False

    @property
    def reply(self) -> Reply:
        return self._assembler.reply()

    def __next__(self) -> Chunk:
        while not self._is_over:
            try:
                chunk = self._read_or_try_again()
            except SuperfluidError:
                self._end()
                raise
            if chunk is not None:
                return chunk
        raise StopIteration

    def close(self) -> None:
        """Cancels the generation if it is still going on, and waits for its end, if that comes soon."""
        if self._is_over:
            return
        is_settled = False
        try:
            is_settled = self._say_farewell()
        except SuperfluidError:
            pass  # Hanging up is all that is left to do, and enough.
        finally:
            self._end(is_settled=is_settled)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A ``for`` loop that is left early drops its stream, and has no other way to say so.
        self.close()

    # ----

    def _read_or_try_again(self) -> Chunk | None:
        try:
            return self._read_frame()
        except RequestRefused as refused:
            self._wait_out(refused)
        self._exchange.close()
        self._assembler = ReplyAssembler()
        self._exchange = self._open()
        return None

    def _read_frame(self) -> Chunk | None:
        data = self._exchange.next_event()
        if data is None:
            raise ConnectionLost("the stream broke off before the reply's end")
        if data == _LAST:
            self._take_end()
            return None
        try:
            return self._assembler.take(json.loads(data))
        except (ValueError, KeyError, TypeError) as error:
            raise UnexpectedReply(f"a frame that this client cannot read: {error!r}") from error

    def _take_end(self) -> None:
        self._exchange.set_timeout(_LAST_BYTES_SECONDS)
        try:
            self._exchange.next_event()
        except SuperfluidError:
            pass  # Only the connection's further use was at stake.
        error = self._assembler.error
        if error is not None:
            raise GenerationFailed(error) if self._assembler.has_begun else refusal(error)
        if not self._assembler.is_done:
            raise UnexpectedReply("the stream ended without saying how the generation did")
        self._end()

    def _say_farewell(self) -> bool:
        """Cancels and reads to the end; false if that did not come in time."""
        if not self._assembler.has_begun:
            # Before its first frame nobody knows whether this generation was accepted, and Cancel could hit another
            # client's. Hanging up would end ours alone, but nobody knows when.
            self._exchange.set_timeout(_FIRST_FRAME_SECONDS)
            while not self._assembler.has_begun:
                self._read_frame()
        if not self._assembler.has_ended:
            self._cancel()
        deadline = time.monotonic() + _FAREWELL_SECONDS
        while not self._is_over and (left := deadline - time.monotonic()) > 0:
            self._exchange.set_timeout(left)
            self._read_frame()
        return self._is_over

    def _end(self, *, is_settled: bool = True) -> None:
        if not self._is_over:
            self._is_over = True
            self._exchange.close()
            self._on_end(self.reply if self._assembler.has_begun else None, is_settled)
