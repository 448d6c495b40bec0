"""A reply as it is being generated."""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from superfluid_client.async_stream import AsyncReplyStream
from superfluid_client.blocking import run
from superfluid_client.records import Chunk, Reply


class ReplyStream(Iterator[Chunk]):
    """Yields the pieces of one reply. ``reply`` is what is committed of it so far, in the end all of it.

    The generation runs from the moment the stream is made, read or not. Letting go of the stream early (leaving the
    loop, ``close``, the end of a ``with``) cancels it. Iterating raises RequestRefused if the daemon would not
    generate, GenerationFailed and ConnectionLost if the reply broke off; what was committed before is in the log.
    One thread at a time may read a stream; to stop it from another one, use ``Session.cancel``.
    """

    def __init__(self, core: AsyncReplyStream) -> None:
        """Use ``Session.stream``."""
        self._core = core
        run(core.start())

    @property
    def reply(self) -> Reply:
        return self._core.reply

    def __next__(self) -> Chunk:
        chunk = run(self._core.next_chunk())
        if chunk is None:
            raise StopIteration
        return chunk

    def close(self) -> None:
        """Cancels the generation if it is still going on, and waits for its end, if that comes soon."""
        run(self._core.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A ``for`` loop that is left early drops its stream, and has no other way to say so.
        self.close()
