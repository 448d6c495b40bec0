"""One session of the daemon, by its id."""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from superfluid_client.async_session import DEFAULT_MAX_TOKENS, AsyncSession
from superfluid_client.async_watch import DEFAULT_PATIENCE_SECONDS
from superfluid_client.blocking import blocking, run
from superfluid_client.parameters import Sampling
from superfluid_client.records import Chunk, Reply
from superfluid_client.stream import ReplyStream
from superfluid_client.watch import Watch

if TYPE_CHECKING:
    from superfluid_client.client import Client

P = ParamSpec("P")
Core = TypeVar("Core")
CoreOf = TypeVar("CoreOf", covariant=True)


class SessionMaker(Protocol[CoreOf]):
    """A facade that can show a session of its core's."""

    @property
    def _core(self) -> CoreOf: ...

    def _face_of(self, core: AsyncSession) -> "Session": ...


def blocking_session(
    method: Callable[Concatenate[Core, P], Coroutine[Any, Any, AsyncSession]],
) -> Callable[Concatenate[SessionMaker[Core], P], "Session"]:
    """``blocking`` for methods whose result is a session."""

    @functools.wraps(method)
    def call(self: SessionMaker[Core], /, *arguments: P.args, **keywords: P.kwargs) -> "Session":
        return self._face_of(run(method(self._core, *arguments, **keywords)))

    # For ``help``, which would show the result of the twin.
    call.__dict__["__signature__"] = inspect.signature(method).replace(return_annotation="Session")
    return call


class Session:
    """A durable conversation. The object holds nothing but the id and a few memories: any number of them, in any number
    of programs, may stand for the same session, and it outlives them and the daemon. Use ``Client.session`` and
    ``Client.get``.

    Every method but ``stream`` and ``watch`` waits for the daemon's answer; what it answered is on the disk. All raise
    RequestRefused, ConnectionLost and the other leaves of ``superfluid_client.errors``.
    """

    def __init__(self, client: "Client", core: AsyncSession) -> None:
        self.client = client
        self._core = core

    def __repr__(self) -> str:
        return f"<Session {self.id} of {self.client.url}>"

    @property
    def id(self) -> int:
        return self._core.id

    @property
    def last_reply(self) -> Reply | None:
        """What the last stream of this object left."""
        return self._core.last_reply

    @property
    def sampling(self) -> Sampling:
        """How its tokens are drawn; a session keeps that for life, and forks may differ."""
        return run(self._core.sampling())

    user = blocking(AsyncSession.user)
    system = blocking(AsyncSession.system)
    assistant = blocking(AsyncSession.assistant)
    declare = blocking(AsyncSession.declare)
    append = blocking(AsyncSession.append)
    block = blocking(AsyncSession.block)
    image = blocking(AsyncSession.image)

    def stream(self, max_tokens: int = DEFAULT_MAX_TOKENS, *, provisional: bool = False) -> ReplyStream:
        """Generates the next turn, or goes on with one that was cut, and yields it piece by piece.

        What is yielded is committed. With ``provisional`` it comes a little earlier, before it is: a crash of the
        daemon at that moment may have the last words drawn anew. The reply's end leaves ``last_reply``.
        """
        return ReplyStream(self._core.stream(max_tokens, provisional=provisional))

    generate = blocking(AsyncSession.generate)
    cancel = blocking(AsyncSession.cancel)

    tool_result = blocking(AsyncSession.tool_result)
    tool_failed = blocking(AsyncSession.tool_failed)
    tool_cancelled = blocking(AsyncSession.tool_cancelled)
    cancel_tool = blocking(AsyncSession.cancel_tool)
    open_tool_calls = blocking(AsyncSession.open_tool_calls)
    ledger = blocking(AsyncSession.ledger)
    request_permission = blocking(AsyncSession.request_permission)
    respond_permission = blocking(AsyncSession.respond_permission)

    fork = blocking_session(AsyncSession.fork)
    fork_after = blocking_session(AsyncSession.fork_after)
    edit = blocking_session(AsyncSession.edit)
    rebase = blocking_session(AsyncSession.rebase)
    trim = blocking_session(AsyncSession.trim)

    events = blocking(AsyncSession.events)
    event_count = blocking(AsyncSession.event_count)
    messages = blocking(AsyncSession.messages)
    inspect = blocking(AsyncSession.inspect)
    warmth = blocking(AsyncSession.warmth)

    def watch(
        self,
        cursor: int = 0,
        *,
        on_provisional: Callable[[Chunk], None] | None = None,
        patience: float = DEFAULT_PATIENCE_SECONDS,
    ) -> Watch:
        """Yields the events from ``cursor`` on, those that are there and those to come, each once and in order, until
        the session is purged. It goes on behind the last one when the daemon was away, and when it was too slow for the
        daemon to wait.

        ``on_provisional`` is called with text ahead of its commit. ``patience`` is for how many seconds the daemon may
        be away.
        """
        return Watch(self._core.watch(cursor, on_provisional=on_provisional, patience=patience))

    set_meta = blocking(AsyncSession.set_meta)
    set_title = blocking(AsyncSession.set_title)
    archive = blocking(AsyncSession.archive)
    set_qos = blocking(AsyncSession.set_qos)
    pin = blocking(AsyncSession.pin)
    purge = blocking(AsyncSession.purge)

    def _face_of(self, core: AsyncSession) -> "Session":
        return Session(self.client, core)
