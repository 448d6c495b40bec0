"""A web listener in a thread that speaks the session API's JSON, with sessions in memory and a scripted model."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

Json = dict[str, Any]
Frame = tuple[str, Any]

TOKEN = "5f" * 32
DEFAULT_REPLY = ("Rhine", ", ", "Rhône", ", ", "Po")
_WAIT_SECONDS = 30.0


@dataclass
class FakeSession:
    """A log of events in their JSON form."""

    id: int
    params: Json
    parent: int | None = None
    fork_at: int = 0
    events: list[Json] = field(default_factory=list)
    is_busy: bool = False
    is_cancelled: threading.Event = field(default_factory=threading.Event)

    def commit(self, kind: str, fields: Json | None = None) -> Json:
        body: Any = kind if fields is None else {kind: fields}
        event = {"event_id": len(self.events), "epoch": 1, "ts_unix_ms": 1_700_000_000_000, "body": body}
        self.events.append(event)
        return event

    def generated(self, text: str, channel: int = 0, finish: int = 0) -> Frame:
        span = [len(self.events)]
        fields = {"span": span, "text": text, "channel": channel, "finish": finish}
        return "committed", self.commit("Generated", fields)


def done(tokens: int, finish: int = 1, warm_prefix: int = 0) -> Frame:
    return "done", {"tokens_generated": tokens, "finish": finish, "warm_prefix": warm_prefix}


def say(*pieces: str) -> Callable[[FakeSession, int], Iterator[Frame]]:
    """A model that says ``pieces``, a token each, and goes on behind the ones it has said before a cut."""

    def model(session: FakeSession, max_tokens: int) -> Iterator[Frame]:
        said = sum(1 for event in session.events if "Generated" in event["body"])
        if said == 0:
            session.commit("GenerationPrompt", {"span": [7]})
        rest = pieces[said : said + max_tokens]
        finish = 1 if said + len(rest) == len(pieces) else 2
        for number, piece in enumerate(rest, 1):
            yield session.generated(piece, finish=finish if number == len(rest) else 0)
        yield done(len(rest), finish)

    return model


class RefusalError(Exception):
    """Becomes an Err."""


class FakeWebServer:
    """``model`` makes the frames of a generation. ``between_frames`` is called before each frame but the first; a test
    can wait in it. ``canned`` answers, if any, go out first, as (status, headers, body); ``replies`` has answers to
    requests by their names."""

    def __init__(self, directory: Path) -> None:
        self.token = TOKEN
        self.token_file = directory / "web-token"
        self.model: Callable[[FakeSession, int], Iterator[Frame]] = say(*DEFAULT_REPLY)
        self.between_frames: Callable[[FakeSession], None] = lambda _: None
        self.canned: list[tuple[int, Json, bytes]] = []
        self.replies: dict[str, Any] = {}
        self.sessions: dict[int, FakeSession] = {}
        self.requests: list[tuple[str, Any]] = []
        self.connections = 0
        self.closed_connections = 0
        self.drops_after_answer = False
        self.refusals_while_loading = 0
        self.hang_ups = threading.Semaphore(0)
        self._server = _Listener(self)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self.token_file.write_text(self.token)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def last_rpc(self) -> Any:
        return next(body for path, body in reversed(self.requests) if path == "/web/rpc")

    def renew_token(self) -> None:
        """What a new start of the daemon does."""
        self.token = "a7" * 32
        self.token_file.write_text(self.token)

    # ---- the verbs

    def answer(self, request: Json) -> Any:
        ((verb, fields),) = request.items()
        if verb in self.replies:
            return self.replies[verb]
        try:
            return getattr(self, f"_{verb}")(fields)
        except RefusalError as error:
            return {"Err": {"message": str(error)}}

    def session(self, session_id: int) -> FakeSession:
        if session_id not in self.sessions:
            raise RefusalError(f"unknown session {session_id}")
        return self.sessions[session_id]

    def idle(self, session_id: int) -> FakeSession:
        session = self.session(session_id)
        if self.refusals_while_loading:
            self.refusals_while_loading -= 1
            raise RefusalError("the model is still loading")
        if session.is_busy:
            raise RefusalError(f"session {session_id} is generating; wait")
        return session

    def _new(self, params: Json, parent: int | None = None, fork_at: int = 0) -> FakeSession:
        session = FakeSession(len(self.sessions) + 1, params, parent, fork_at)
        self.sessions[session.id] = session
        return session

    def _Create(self, fields: Json) -> Json:  # noqa: N802
        session = self._new(fields["params"], fields["parent"])
        session.commit("Created", fields)
        return {"Created": {"session": session.id}}

    def _committed(self, fields: Json, kind: str, content: Json) -> Json:
        return {"Committed": {"event": self.idle(fields["session"]).commit(kind, content)}}

    def _AppendMessage(self, fields: Json) -> Json:  # noqa: N802
        content = {"role": fields["role"], "text": fields["text"], "span": [1, 2]}
        return self._committed(fields, "Message", content)

    def _AppendSystem(self, fields: Json) -> Json:  # noqa: N802
        return self._committed(fields, "Message", {"role": 0, "text": fields["text"] or "", "span": [3]})

    def _Append(self, fields: Json) -> Json:  # noqa: N802
        return self._committed(fields, "Appended", {"text": fields["text"], "span": fields["span"] or [4]})

    def _AppendToolResult(self, fields: Json) -> Json:  # noqa: N802
        content = {"call_id": fields["call_id"], "content": fields["content"], "span": [5]}
        return self._committed(fields, "ToolResult", content)

    def _SetQos(self, fields: Json) -> Json:  # noqa: N802
        content = {"class": fields["class"], "batch_invariant": fields["batch_invariant"]}
        return self._committed(fields, "QosSet", content)

    def _OpenToolCalls(self, fields: Json) -> Json:  # noqa: N802
        events = self.session(fields["session"]).events
        answered = {event["body"]["ToolResult"]["call_id"] for event in events if "ToolResult" in event["body"]}
        calls = [
            [event["event_id"], event["body"]["ToolUse"]["name"], event["body"]["ToolUse"]["arguments"]]
            for event in events
            if "ToolUse" in event["body"] and event["event_id"] not in answered
        ]
        return {"ToolCalls": {"calls": calls}}

    def _Read(self, fields: Json) -> Json:  # noqa: N802
        return {"Events": {"events": self.session(fields["session"]).events[fields["cursor"] :]}}

    def _List(self, _: None) -> Json:  # noqa: N802
        return {"Sessions": {"ids": sorted(self.sessions)}}

    def _Tree(self, _: None) -> Json:  # noqa: N802
        return {"Tree": {"nodes": [[s.id, s.parent, s.fork_at] for s in self.sessions.values()]}}

    def _Sessions(self, _: Json) -> Json:  # noqa: N802
        return {"SessionList": {"sessions": [_summary(session) for session in self.sessions.values()]}}

    def _Inspect(self, fields: Json) -> Json:  # noqa: N802
        session = self.session(fields["session"])
        return {
            "Inspection": {
                "inspection": {
                    "summary": _summary(session),
                    "params": session.params,
                    "epoch": 1,
                    "last_finish": 1,
                    "qos_class": 2,
                    "batch_invariant": False,
                    "pin_deadline_unix_ms": 0,
                    "behavior_fingerprint": 2**64 - 1,
                    "open_tool_calls": [],
                    "tier": {"Parked": {"covered": 3, "encoding": 0}},
                    "tokens": [1, 2, 3],
                    "events": session.events,
                    "wal_version": 2,
                    "store_id": None,
                }
            }
        }

    def _Warmth(self, fields: Json) -> Json:  # noqa: N802
        self.session(fields["session"])
        return {"Warmth": {"lane": 3, "memory": 2, "disk": 0}}

    def _Fork(self, fields: Json) -> Json:  # noqa: N802
        return self._child(fields, fields["at_event"], "Forked", {})

    def _Trim(self, fields: Json) -> Json:  # noqa: N802
        return self._child({**fields, "params": None}, fields["to_event"], "Forked", {})

    def _Rebase(self, fields: Json) -> Json:  # noqa: N802
        (edit,) = fields["edits"][0].values()
        return self._child(fields, edit["from"], "Rebased", {"edits": fields["edits"]})

    def _child(self, fields: Json, at_event: int, kind: str, more: Json) -> Json:
        parent = self.session(fields["session"])
        if not 1 <= at_event <= len(parent.events):
            raise RefusalError(f"event {at_event} is no fork point")
        child = self._new(fields["params"] or parent.params, parent.id, at_event)
        child.events = parent.events[:at_event]
        child.commit(kind, {"parent": parent.id, "fork_at": at_event, "params": child.params, **more})
        return {"Created": {"session": child.id}}

    def _Cancel(self, fields: Json) -> Any:  # noqa: N802
        session = self.session(fields["session"])
        if not session.is_busy:
            raise RefusalError("no generation in flight")
        session.is_cancelled.set()
        return "Cancelling"

    def _Pin(self, fields: Json) -> Json:  # noqa: N802
        return {"Pinned": {"deadline_unix_ms": 1_000 + fields["ttl_ms"]}}

    def _Metrics(self, _: None) -> Json:  # noqa: N802
        return {"Text": {"text": "superfluid_sessions 1\n"}}

    def _SetLogLevel(self, fields: Json) -> Any:  # noqa: N802
        if fields["directive"] == "what":
            raise RefusalError("no such level: what")
        return "Ack"

    # ---- generating

    def frames(self, body: Json) -> Iterator[Frame]:
        try:
            session = self.idle(body["session"])
        except RefusalError as error:
            yield "error", str(error)
            return
        session.is_busy = True
        try:
            for number, frame in enumerate(self.model(session, body["max_tokens"])):
                if number:
                    self.between_frames(session)
                if session.is_cancelled.is_set():
                    yield session.generated("", finish=4)
                    # As in the daemon, the session is free before the summary is out.
                    session.is_busy = False
                    yield done(number, finish=4)
                    return
                if frame[0] == "done":
                    session.is_busy = False
                yield frame
        finally:
            session.is_busy = False
            session.is_cancelled.clear()


def _summary(session: FakeSession) -> Json:
    return {
        "id": session.id,
        "parent": session.parent,
        "fork_at": session.fork_at,
        "title": None,
        "archived": False,
        "meta_version": 0,
        "generation": 0,
        "events": len(session.events),
        "tokens": 3,
        "open_tool_calls": 0,
    }


class _Listener(ThreadingHTTPServer):
    def __init__(self, fake: FakeWebServer) -> None:
        self._fake = fake
        super().__init__(("127.0.0.1", 0), _handler(fake))

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._fake.closed_connections += 1


def _handler(fake: FakeWebServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            fake.connections += 1
            super().setup()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

        def do_GET(self) -> None:
            self._answer(200 if self.path == "/web/health" else 404, {}, b"")

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if fake.canned:
                self._answer(*fake.canned.pop(0))
                return
            if self.headers["Authorization"] != f"Bearer {fake.token}":
                self._answer(401, {}, b'{"Err":{"message":"the token is wrong"}}')
                return
            if self.headers["X-Superfluid-CSRF"] != fake.token:
                self._answer(403, {}, b'{"Err":{"message":"the CSRF header is wrong"}}')
                return
            body = json.loads(content)
            fake.requests.append((self.path, body))
            if self.path == "/web/stream":
                self._stream(body)
            else:
                self._answer(200, {}, json.dumps(fake.answer(body), ensure_ascii=False).encode())

        def _answer(self, status: int, headers: Json, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            # Dropped without a word, as when a server is killed or tires of an idle connection.
            self.close_connection = fake.drops_after_answer

        def _stream(self, body: Json) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            frames = fake.frames(body)
            try:
                self._chunk(": keep-alive\n\n")
                for kind, content in frames:
                    if kind == "cut":
                        self.close_connection = True
                        return
                    text = content if kind == "raw" else json.dumps({kind: content}, ensure_ascii=False)
                    self._chunk(f"data: {text}\n\n")
                self._chunk("data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                self.close_connection = True
                fake.hang_ups.release()
            finally:
                cast("Any", frames).close()

        def _chunk(self, text: str) -> None:
            content = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))

    return Handler


def wait_until(condition: Callable[[], bool]) -> None:
    """Fails if ``condition`` does not come true soon. For states that another thread brings about."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
