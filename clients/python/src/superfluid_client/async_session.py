"""One session of the daemon, by its id, for asyncio; ``session`` has its blocking face."""

from collections.abc import Callable

from superfluid_client.appending import Appending
from superfluid_client.async_stream import AsyncReplyStream
from superfluid_client.async_watch import DEFAULT_PATIENCE_SECONDS, AsyncWatch
from superfluid_client.branching import Branching
from superfluid_client.errors import NothingInFlight
from superfluid_client.records import Chunk, Reply
from superfluid_client.tool_calls import ToolCalls

DEFAULT_MAX_TOKENS = 512


class AsyncSession(Appending, ToolCalls, Branching):
    """A durable conversation. The object holds nothing but the id and a few memories: any number of them, in any number
    of programs, may stand for the same session, and it outlives them and the daemon. Use ``AsyncClient.session`` and
    ``AsyncClient.get``.

    What an awaited method answered is on the disk. All raise RequestRefused, ConnectionLost and the other leaves of
    ``superfluid_client.errors``. A method that is cancelled while it waits may have taken effect.
    """

    def __repr__(self) -> str:
        return f"<AsyncSession {self.id} of {self.client.url}>"

    def stream(self, max_tokens: int = DEFAULT_MAX_TOKENS, *, provisional: bool = False) -> AsyncReplyStream:
        """Generates the next turn, or goes on with one that was cut, and yields it piece by piece; not to be awaited.

        What is yielded is committed. With ``provisional`` it comes a little earlier, before it is: a crash of the
        daemon at that moment may have the last words drawn anew. The reply's end leaves ``last_reply``.
        """
        return AsyncReplyStream(self, max_tokens, provisional=provisional)

    async def generate(self, max_tokens: int = DEFAULT_MAX_TOKENS) -> Reply:
        """As ``stream``, all at once."""
        stream = self.stream(max_tokens)
        try:
            while await stream.next_chunk() is not None:
                pass
        finally:
            await stream.aclose()
        return stream.reply

    async def cancel(self) -> bool:
        """Ends the generation in flight, whoever started it; false if there is none."""
        try:
            await self._ask("Cancel", {}, "Cancelling")
        except NothingInFlight:
            return False
        return True

    def watch(
        self,
        cursor: int = 0,
        *,
        on_provisional: Callable[[Chunk], None] | None = None,
        patience: float = DEFAULT_PATIENCE_SECONDS,
    ) -> AsyncWatch:
        """Yields the events from ``cursor`` on, those that are there and those to come, each once and in order, until
        the session is purged; not to be awaited. It goes on behind the last one when the daemon was away, and when it
        was too slow for the daemon to wait.

        ``on_provisional`` is called with text ahead of its commit. ``patience`` is for how many seconds the daemon may
        be away.
        """
        return AsyncWatch(self.id, self.client.socket_path, self.client.network, cursor, on_provisional, patience)
