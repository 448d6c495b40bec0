"""The client of one daemon, over its web listener."""

import os
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from superfluid_client.credentials import TokenSource
from superfluid_client.errors import ServerUnreachable, UnexpectedReply, refusal
from superfluid_client.parameters import Sampling
from superfluid_client.reading import reading
from superfluid_client.records import SessionSummary, TreeNode, split_variant
from superfluid_client.session import Session, Tool
from superfluid_client.transport import Exchange, WebTransport

DEFAULT_URL = "http://127.0.0.1:8460"
DEFAULT_TIMEOUT_SECONDS = 60.0

_WAIT_PAUSE_SECONDS = 0.1
# Behind the end of any log: reading there answers nothing, and tells whether the session exists.
_FAR_CURSOR = 2**53 - 1
# Requests that leave no trace, so that a repetition does no harm.
_REPEATABLE = frozenset({"Read", "List", "Sessions", "Tree", "Inspect", "OpenToolCalls", "Ledger", "Metrics"})


class Client:
    """Speaks to one daemon. Needs no closing, makes no connection before the first request, and may be shared by
    threads: each of them can stream another session."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        """``url`` is what the daemon prints for ``--web``. The token is ``token``, else what ``token_file`` holds, else
        what ``$SUPERFLUID_HOME/sessions/web-token`` does. ``timeout`` is in seconds and for each answer; a stream may
        be silent for at least a minute. A model that is still loading is waited for as long. Raises ValueError for an
        address that is none."""
        self.url = url.rstrip("/")
        self.timeout_seconds = timeout
        self._transport = WebTransport(url, TokenSource(token, token_file), timeout)

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    # ---- sessions

    def session(
        self,
        sampling: Sampling | None = None,
        system: str | None = None,
        tools: Sequence[Tool] = (),
        parent: "Session | int | None" = None,
    ) -> Session:
        """A new session that opens with ``system`` and declares ``tools``. ``parent`` is only noted: nothing is
        inherited from it."""
        sampling = sampling or Sampling()
        parent_id = parent.id if isinstance(parent, Session) else parent
        payload = self.ask("Create", {"parent": parent_id, "params": sampling.to_json()}, "Created")
        with reading("Created"):
            session = Session(self, payload["session"], sampling)
        if tools:
            session.declare(system, tools)
        elif system is not None:
            session.system(system)
        return session

    def get(self, session_id: int) -> Session:
        """The session with that id. Raises UnknownSession if there is none."""
        self.ask("Read", {"session": session_id, "cursor": _FAR_CURSOR}, "Events")
        return Session(self, session_id)

    def session_ids(self) -> list[int]:
        """All sessions, archived ones too."""
        payload = self.ask("List", None, "Sessions")
        with reading("Sessions"):
            return list(payload["ids"])

    def sessions(self, *, include_archived: bool = False) -> list[SessionSummary]:
        """What there is to know about each session at a glance, by id."""
        payload = self.ask("Sessions", {"include_archived": include_archived}, "SessionList")
        with reading("SessionList"):
            return list(map(SessionSummary.from_json, payload["sessions"]))

    def tree(self) -> list[TreeNode]:
        """Who was forked from whom, by id; without archived sessions."""
        payload = self.ask("Tree", None, "Tree")
        with reading("Tree"):
            return [TreeNode(*node) for node in payload["nodes"]]

    # ---- the daemon

    def metrics(self) -> str:
        """The daemon's metrics in Prometheus' text form."""
        payload = self.ask("Metrics", None, "Text")
        with reading("Text"):
            return str(payload["text"])

    def set_log_level(self, directive: str) -> None:
        """Sets what the daemon logs: a level, or target=level pairs with commas between."""
        self.ask("SetLogLevel", {"directive": directive}, "Ack")

    def is_healthy(self) -> bool:
        """Whether the web listener answers; needs no token. The model may still be loading: sessions wait for it."""
        return self._transport.is_healthy()

    def wait_until_healthy(self, timeout: float = 60.0) -> None:
        """Waits for the web listener of a daemon that is being started. Raises ServerUnreachable after ``timeout``
        seconds."""
        deadline = time.monotonic() + timeout
        while not self.is_healthy():
            if time.monotonic() > deadline:
                raise ServerUnreachable(f"{self.url} did not answer within {timeout:g} s")
            time.sleep(_WAIT_PAUSE_SECONDS)

    # ---- raw requests

    def call(self, verb: str, args: Mapping[str, Any] | None = None) -> tuple[str, Any]:
        """Sends any request, as in ``call("Read", {"session": 1, "cursor": 0})``, and returns the answer's name and
        fields (``None`` if it has none). Raises RequestRefused if the answer is ``Err``; generations go through
        ``Session.stream``."""
        # A request without fields goes out as {"Tree": null}; an empty object would be malformed.
        body = {verb: dict(args) if args else None}
        answer = self._transport.post("/web/rpc", body, can_repeat=verb in _REPEATABLE)
        with reading(verb):
            variant, payload = split_variant(answer)
            message = payload["message"] if variant == "Err" else None
        if message is not None:
            raise refusal(message)
        return variant, payload

    def ask(self, verb: str, args: Mapping[str, Any] | None, answer: str) -> Any:
        """As ``call``, for a request with one possible answer: its fields. Raises UnexpectedReply for another one."""
        variant, payload = self.call(verb, args)
        if variant != answer:
            raise UnexpectedReply(f"{verb} was answered with {variant!r} instead of {answer!r}")
        return payload

    def open_stream(self, body: Mapping[str, Any]) -> Exchange:
        """Starts a generation; for ``Session.stream``."""
        return self._transport.stream("/web/stream", body)

    def close(self) -> None:
        """Closes idle connections. The client goes on working."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
