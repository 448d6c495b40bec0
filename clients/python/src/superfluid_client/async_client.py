"""The client of one daemon, for asyncio; ``client`` has its blocking face."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from superfluid_client.appending import Tool
from superfluid_client.async_session import AsyncSession
from superfluid_client.asyncio_network import AsyncioNetwork
from superfluid_client.credentials import TokenSource, default_socket
from superfluid_client.errors import RequestRefused, ServerUnreachable, Throttled, UnexpectedReply, refusal
from superfluid_client.network import Network
from superfluid_client.parameters import Sampling
from superfluid_client.patience import LoadingPatience
from superfluid_client.reading import reading
from superfluid_client.records import Completion, MediaSweep, SessionSummary, TreeNode, split_variant
from superfluid_client.transport import Exchange, WebTransport

DEFAULT_URL = "http://127.0.0.1:8460"
DEFAULT_TIMEOUT_SECONDS = 60.0
DEFAULT_COMPLETION_TOKENS = 64

_WAIT_PAUSE_SECONDS = 0.1
# Behind the end of any log: reading there answers nothing, and tells whether the session exists.
_FAR_CURSOR = 2**53 - 1
# Requests that leave no trace, so that a repetition does no harm.
_REPEATABLE = frozenset(
    {"Read", "List", "Sessions", "Tree", "Inspect", "Warmth", "OpenToolCalls", "Ledger", "Metrics", "PutMedia"}
)


class HasId(Protocol):
    """A session, of whichever client."""

    @property
    def id(self) -> int: ...


class AsyncClient:
    """Speaks to one daemon. Needs no closing, makes no connection before the first request, and may be shared by the
    tasks of an event loop: each of them can stream another session."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        socket: str | os.PathLike[str] | None = None,
        *,
        network: Network | None = None,
    ) -> None:
        """``url`` is what the daemon prints for ``--web``. The token is ``token``, else what ``token_file`` holds, else
        what ``$SUPERFLUID_HOME/sessions/web-token`` does. ``timeout`` is in seconds and for each answer; a stream may
        be silent for at least a minute. A model that is still loading is waited for as long. ``socket`` is the daemon's
        unix socket, for ``watch``; by default ``superfluid.sock`` beside the directory of the token file.
        ``network`` is for event loops other than asyncio's. Raises ValueError for an address that is none."""
        self.url = url.rstrip("/")
        self.timeout_seconds = timeout
        self.network: Network = network or AsyncioNetwork()
        self.socket_path = Path(socket).expanduser() if socket is not None else default_socket(token_file)
        self._transport = WebTransport(url, TokenSource(token, token_file), timeout, self.network)

    def __repr__(self) -> str:
        return f"<AsyncClient of {self.url}>"

    # ---- sessions

    async def session(
        self,
        sampling: Sampling | None = None,
        system: str | None = None,
        tools: Sequence[Tool] = (),
        parent: HasId | int | None = None,
    ) -> AsyncSession:
        """A new session that opens with ``system`` and declares ``tools``. ``parent`` is only noted: nothing is
        inherited from it."""
        if not isinstance(sampling, Sampling | None):
            raise TypeError(f"sampling must be a Sampling, not {sampling!r}; system= takes the text to open with")
        sampling = sampling or Sampling()
        parent_id = parent if isinstance(parent, int) or parent is None else parent.id
        payload = await self.ask("Create", {"parent": parent_id, "params": sampling.to_json()}, "Created")
        with reading("Created"):
            session = self.session_of(payload["session"], sampling)
        if tools:
            await session.declare(system, tools)
        elif system is not None:
            await session.system(system)
        return session

    async def get(self, session_id: int) -> AsyncSession:
        """The session with that id. Raises UnknownSession if there is none."""
        await self.ask("Read", {"session": session_id, "cursor": _FAR_CURSOR}, "Events")
        return self.session_of(session_id)

    def session_of(self, session_id: int, sampling: Sampling | None = None) -> AsyncSession:
        """As ``get``, without asking whether there is one; not to be awaited."""
        return AsyncSession(self, session_id, sampling)

    async def session_ids(self) -> list[int]:
        """All sessions, archived ones too."""
        payload = await self.ask("List", None, "Sessions")
        with reading("Sessions"):
            return list(payload["ids"])

    async def sessions(self, *, include_archived: bool = False) -> list[SessionSummary]:
        """What there is to know about each session at a glance, by id."""
        payload = await self.ask("Sessions", {"include_archived": include_archived}, "SessionList")
        with reading("SessionList"):
            return list(map(SessionSummary.from_json, payload["sessions"]))

    async def tree(self) -> list[TreeNode]:
        """Who was forked from whom, by id; without archived sessions."""
        payload = await self.ask("Tree", None, "Tree")
        with reading("Tree"):
            return [TreeNode(*node) for node in payload["nodes"]]

    # ---- without a session

    async def complete(
        self,
        prefix: str,
        suffix: str = "",
        max_tokens: int = DEFAULT_COMPLETION_TOKENS,
        *,
        suffix_first: bool = False,
    ) -> Completion:
        """What the model would write between ``prefix`` and ``suffix``, likeliest tokens only; nothing is recorded.

        ``suffix_first`` shows it the suffix before the prefix, which some models want. Raises Throttled if there were
        too many lately, and InfillUnsupported for a model that cannot do this.
        """
        fields = {"prefix": prefix, "suffix": suffix, "mode": int(suffix_first), "max_tokens": max_tokens}
        payload = await self.ask("Complete", fields, "Completion")
        with reading("Completion"):
            return Completion.from_json(payload)

    async def put_media(self, content: bytes, mime: str = "application/octet-stream") -> str:
        """Keeps a file, such as an image, in the daemon's pool. Its hash, for ``Session.image``; the same file twice is
        kept once. Up to about 16 MB, since JSON makes four of one byte."""
        payload = await self.ask("PutMedia", {"bytes": list(content), "mime": mime}, "Media")
        with reading("Media"):
            return str(payload["hash"])

    async def gc_media(self) -> MediaSweep:
        """Deletes from the pool what no session shows, be it put there a moment ago."""
        payload = await self.ask("GcMedia", None, "Gc")
        with reading("Gc"):
            return MediaSweep(kept=payload["kept"], removed=payload["removed"])

    # ---- the daemon

    async def set_background_rate(self, divisor: int) -> None:
        """Lets sessions of the classes 2 (what a session begins with) and 3 have a token in every ``divisor``-th step
        only; 1 lifts that. It is about all sessions, and forgotten when the daemon ends."""
        await self.ask("SetBackgroundRate", {"divisor": divisor}, "Ack")

    async def metrics(self) -> str:
        """The daemon's metrics in Prometheus' text form."""
        payload = await self.ask("Metrics", None, "Text")
        with reading("Text"):
            return str(payload["text"])

    async def set_log_level(self, directive: str) -> None:
        """Sets what the daemon logs: a level, or target=level pairs with commas between."""
        await self.ask("SetLogLevel", {"directive": directive}, "Ack")

    async def is_healthy(self) -> bool:
        """Whether the web listener answers; needs no token. The model may still be loading: sessions wait for it."""
        return await self._transport.is_healthy()

    async def wait_until_healthy(self, timeout: float = 60.0) -> None:
        """Waits for the web listener of a daemon that is being started. Raises ServerUnreachable after ``timeout``
        seconds."""
        deadline = time.monotonic() + timeout
        while not await self.is_healthy():
            if time.monotonic() > deadline:
                raise ServerUnreachable(f"{self.url} did not answer within {timeout:g} s")
            await self.network.sleep(_WAIT_PAUSE_SECONDS)

    # ---- raw requests

    async def call(self, verb: str, args: Mapping[str, Any] | None = None) -> tuple[str, Any]:
        """Sends any request, as in ``call("Read", {"session": 1, "cursor": 0})``, and returns the answer's name and
        fields (``None`` if it has none). Raises RequestRefused if the answer is ``Err``; generations go through
        ``Session.stream``."""
        # A request without fields goes out as {"Tree": null}; an empty object would be malformed.
        body = {verb: dict(args) if args else None}
        answer = await self._transport.post("/web/rpc", body, can_repeat=verb in _REPEATABLE)
        with reading(verb):
            variant, payload = split_variant(answer)
            error = _answered_error(variant, payload)
        if error is not None:
            raise error
        return variant, payload

    async def ask(self, verb: str, args: Mapping[str, Any] | None, answer: str) -> Any:
        """As ``call``, for a request with one possible answer: its fields. Waits for a model that is still loading.
        Raises UnexpectedReply for another answer."""
        patience = LoadingPatience(self.network, self.timeout_seconds)
        while True:
            try:
                variant, payload = await self.call(verb, args)
                break
            except RequestRefused as refused:
                await patience.wait_out(refused)
        if variant != answer:
            raise UnexpectedReply(f"{verb} was answered with {variant!r} instead of {answer!r}")
        return payload

    async def open_stream(self, body: Mapping[str, Any]) -> Exchange:
        """Starts a generation; for ``Session.stream``."""
        return await self._transport.stream("/web/stream", body)

    def close(self) -> None:
        """Closes idle connections; not to be awaited. The client goes on working."""
        self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _answered_error(variant: str, payload: Any) -> Exception | None:
    match variant:
        case "Err":
            return refusal(payload["message"])
        case "Throttled":
            return Throttled(payload["retry_after_ms"] / 1000)
    return None
