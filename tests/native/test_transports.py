"""Every request of the session API over every transport, each against a whole daemon of its own: the same answers.

The table below is one conversation that uses all requests. It is held over the unix socket, over ``/web/ws`` and over
``/web/rpc`` (with ``/web/stream``); what may differ between two daemons is made alike before the answers are compared.
"""

import json
import re
import threading
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from tests.fixtures.live_daemon import GREEDY, LiveDaemon
from tests.fixtures.transports import (
    PAGE_ORIGIN,
    STREAMING,
    RpcTransport,
    SocketTransport,
    Transport,
    WebSocketTransport,
)

from superfluid.domain.events import Drop, Event, Generated, PurgeMode, Replace, ToolUse
from superfluid.domain.reply import Finish
from superfluid.native import requests, responses
from superfluid.native.protocol import Request, Response

TRANSPORTS: dict[str, Callable[[LiveDaemon], Transport]] = {
    "socket": SocketTransport,
    "websocket": WebSocketTransport,
    "rpc": RpcTransport,
}
SCRIPT = {
    "replies": [
        {"when": "weather", "text": '<think>é</think>ok <tool_call>{"name":"sky","arguments":{"at":"é"}}</tool_call>'},
        {"when": "hello", "text": "Hello to you, ü."},
    ],
    "step_seconds": 0.001,
}
TOOL = json.dumps({"name": "sky", "parameters": {"type": "object"}})
UNKNOWN = 2**63 - 1
# The first session of the table; 2 is a fork of it, 3 and 4 are made of it by Trim and Rebase.
ONE, FORK = 1, 2


class Row(Struct, frozen=True):
    """``request``, or how it is made from the answers so far; ``reply`` is the type of its last answer.

    ``more`` frames follow on the transports that have them.
    """

    request: Request | Callable[["Answers"], Request]
    reply: type[Response]
    more: int = 0


class Answers:
    """What a transport was told, row by row."""

    def __init__(self) -> None:
        self.rows: list[tuple[Request, list[Response]]] = []

    def call_id(self, number: int) -> int:
        """The event id of the ``number``-th tool call."""
        calls = [
            reply.event.event_id
            for _, replies in self.rows
            for reply in replies
            if isinstance(reply, responses.Delta) and isinstance(reply.event.body, ToolUse)
        ]
        return calls[number]

    def last_event_id(self) -> int:
        """Of the last request that committed something."""
        (*_, last) = (reply for _, replies in self.rows for reply in replies if isinstance(reply, responses.Committed))
        return last.event.event_id


IMAGE = b"\x00\xff\x80"

TABLE = [
    Row(requests.Create(None, GREEDY), responses.Created),
    Row(requests.AppendSystem(ONE, "Be brief.", (TOOL,)), responses.Committed),
    Row(requests.AppendMessage(ONE, 1, "How is the weather?"), responses.Committed),
    Row(requests.Generate(ONE, 200), responses.Generated),
    Row(requests.OpenToolCalls(ONE), responses.ToolCalls),
    Row(lambda so_far: requests.RequestPermission(ONE, so_far.call_id(0), "May I?"), responses.Committed),
    Row(requests.Generate(ONE, 200), responses.Err),
    Row(lambda so_far: requests.RespondPermission(ONE, so_far.last_event_id(), True), responses.Committed),
    Row(lambda so_far: requests.RequestToolCancel(ONE, so_far.call_id(0)), responses.Committed),
    Row(lambda so_far: requests.AppendToolResult(ONE, so_far.call_id(0), "sunny, ü"), responses.Committed),
    Row(requests.AppendMessage(ONE, 1, "And the weather now?"), responses.Committed),
    Row(requests.Generate(ONE, 200), responses.Generated),
    Row(lambda so_far: requests.AppendToolOutcome(ONE, so_far.call_id(1), 2, "no"), responses.Committed),
    Row(requests.Ledger(ONE), responses.Ledger),
    Row(requests.AppendBlock(ONE, 1, 5, '{"severity":"error","message":"é"}'), responses.Committed),
    Row(requests.Append(ONE, "hello", ()), responses.Committed),
    Row(requests.Generate(ONE, 3), responses.Generated),
    Row(requests.Generate(ONE, 0), responses.Generated),
    Row(requests.SetMeta(ONE, 0, "Wetter ☀", None), responses.Meta),
    Row(requests.SetMeta(ONE, 0, "too late", None), responses.Err),
    Row(requests.SetQos(ONE, 1, False), responses.Committed),
    Row(requests.SetBackgroundRate(2), responses.Ack),
    Row(requests.Pin(ONE, 60_000), responses.Pinned),
    Row(requests.Warmth(ONE), responses.Warmth),
    Row(requests.Read(ONE, 2), responses.Events),
    Row(requests.Fork(ONE, 3, None), responses.Created),
    Row(requests.Trim(ONE, 4), responses.Created),
    Row(requests.Rebase(ONE, (Drop(1, 2), Replace(2, 3, 1, "hello")), GREEDY), responses.Created),
    Row(requests.Inspect(ONE), responses.Inspected),
    Row(requests.List(), responses.Sessions),
    Row(requests.Sessions(True), responses.SessionList),
    Row(requests.Tree(), responses.Tree),
    Row(requests.Subscribe(FORK, 0, True), responses.Subscribed, more=4),
    Row(requests.Unsubscribe(1), responses.Unsubscribed, more=1),
    Row(requests.Unsubscribe(1), responses.Err),
    Row(requests.Cancel(ONE), responses.Err),
    Row(requests.SetLogLevel("info"), responses.Ack),
    Row(requests.SetLogLevel("in,fo=="), responses.Err),
    Row(requests.Metrics(), responses.Text),
    Row(requests.PutMedia(IMAGE, "image/png"), responses.Media),
    # The fake engine sees no images, and says so.
    Row(requests.AppendImage(ONE, 1, sha256(IMAGE).hexdigest(), "before", "after"), responses.Err),
    Row(requests.GcMedia(), responses.Gc),
    Row(requests.Complete("def f(", "return 1", 0, 8), responses.Completion),
    Row(requests.Purge(FORK, 0, PurgeMode.CASCADE), responses.Purged),
    Row(requests.Purge(FORK, 0, PurgeMode.CASCADE), responses.Err),
    Row(requests.Read(FORK, 0), responses.Err),
]


def hold(daemon: LiveDaemon, open_transport: Callable[[LiveDaemon], Transport]) -> Answers:
    """The whole conversation over one transport."""
    answers = Answers()
    with closing(open_transport(daemon)) as transport:
        for row in TABLE:
            request = row.request if isinstance(row.request, Struct) else row.request(answers)
            replies = transport.ask(request)
            if not (isinstance(transport, RpcTransport) and isinstance(request, STREAMING)):
                replies += [transport.frame() for _ in range(row.more)]
            answers.rows.append((request, replies))
    return answers


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answers]:
    """The conversation over each transport."""
    conversations = {}
    for name, open_transport in TRANSPORTS.items():
        home = tmp_path_factory.mktemp(name)
        with LiveDaemon(home, write_script(home), "--web-origin", PAGE_ORIGIN) as daemon:
            conversations[name] = hold(daemon, open_transport)
    return conversations


def write_script(home: Path) -> Path:
    script = home / "script.json"
    script.write_text(json.dumps(SCRIPT))
    return script


def alike(replies: Sequence[Response]) -> list[str]:
    """Without what differs from one daemon to another: times, and how the tokens of a reply fell into records, which
    shifts the ids behind it. Frames of a subscription may come before or after the reply."""
    texts = [f"{type(reply).__name__} {json.dumps(_alike(msgspec.to_builtins(reply)))}" for reply in _merged(replies)]
    return sorted(texts) if any(isinstance(reply, responses.SubEnded) for reply in replies) else texts


def _merged(replies: Sequence[Response]) -> list[Response]:
    deltas = [reply.event for reply in replies if isinstance(reply, responses.Delta)]
    others = [reply for reply in replies if not isinstance(reply, responses.Delta)]
    return [*map(responses.Delta, _merged_events(deltas)), *map(_with_merged_events, others)]


def _with_merged_events(reply: Response) -> Response:
    match reply:
        case responses.Events(events) | responses.Generated(events):
            return msgspec.structs.replace(reply, events=_merged_events(events))
        case responses.Inspected(inspection):
            events = _merged_events(inspection.events)
            return responses.Inspected(msgspec.structs.replace(inspection, events=events))
        case _:
            return reply


def _merged_events(events: Sequence[Event]) -> tuple[Event, ...]:
    """Runs of a channel as one record."""
    merged: list[Event] = []
    for event in events:
        before = merged[-1].body if merged else None
        body = event.body
        if isinstance(before, Generated) and isinstance(body, Generated) and before.channel == body.channel:
            whole = Generated(before.span + body.span, before.text + body.text, body.channel, body.finish)
            merged[-1] = msgspec.structs.replace(merged[-1], body=whole)
        else:
            merged.append(event)
    return tuple(merged)


def _alike(value: Any) -> Any:
    match value:
        case dict():
            return {name: _masked(name, part) for name, part in value.items()}
        case (int(), str() | dict(), *rest):
            # A call in a list of calls begins with its id.
            return ["id", *map(_alike, [value[1], *rest])]
        case list() | tuple():
            return [_alike(part) for part in value]
        case str():
            # A page of metrics: which there are, not what they say.
            return re.sub(r" [0-9.e+-]+$", "", value, flags=re.MULTILINE)
        case _:
            return value


def _masked(name: str, value: Any) -> Any:
    if name in ("event_id", "call_id", "request_id", "ts_unix_ms", "lane", "memory", "disk") or (
        name == "events" and isinstance(value, int)
    ):
        return "a number"
    if name in ("deadline_unix_ms", "pin_deadline_unix_ms"):
        return value > 0
    return value and len(value) if name == "store_id" else _alike(value)


def test_table_has_every_request() -> None:
    asked = {type(row.request) for row in TABLE if isinstance(row.request, Struct)}
    # Those that depend on earlier answers.
    asked |= {
        requests.RequestPermission,
        requests.RespondPermission,
        requests.RequestToolCancel,
        requests.AppendToolResult,
        requests.AppendToolOutcome,
    }
    assert asked == set(typing.get_args(Request))
    assert len(asked) == 36


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_request_gets_its_reply(held: dict[str, Answers], transport: str) -> None:
    wrong = []
    for row, (request, replies) in zip(TABLE, held[transport].rows, strict=True):
        expected = row.reply
        if transport == "rpc" and isinstance(request, requests.Subscribe | requests.Unsubscribe):
            expected = responses.Err
        answer = next(reply for reply in replies if not isinstance(reply, responses.Delta | responses.SubEnded))
        if not isinstance(answer, expected):
            wrong.append((request, answer))
    assert wrong == []


@pytest.mark.parametrize("transport", ["websocket", "rpc"])
def test_every_reply_is_the_same_over_the_web_as_on_the_socket(held: dict[str, Answers], transport: str) -> None:
    for (request, on_socket), (same, elsewhere) in zip(held["socket"].rows, held[transport].rows, strict=True):
        assert type(same) is type(request)
        if transport == "rpc" and isinstance(request, requests.Subscribe | requests.Unsubscribe):
            (refusal,) = elsewhere
            assert isinstance(refusal, responses.Err)
            assert "/web/ws" in refusal.message
        else:
            assert alike(elsewhere) == alike(on_socket), request


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    home = tmp_path_factory.mktemp("transports")
    with LiveDaemon(home, write_script(home), "--web-origin", PAGE_ORIGIN) as running:
        yield running


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_request_that_names_a_session_is_refused_alike_for_one_that_is_not_there(
    daemon: LiveDaemon, transport: str
) -> None:
    asked: list[Request] = [
        requests.Create(UNKNOWN, GREEDY),
        requests.Append(UNKNOWN, "x", ()),
        requests.AppendMessage(UNKNOWN, 1, "x"),
        requests.AppendSystem(UNKNOWN, "x", ()),
        requests.AppendBlock(UNKNOWN, 1, 1, "{}"),
        requests.Generate(UNKNOWN, 1),
        requests.Read(UNKNOWN, 0),
        requests.AppendToolResult(UNKNOWN, 1, ""),
        requests.OpenToolCalls(UNKNOWN),
        requests.Cancel(UNKNOWN),
        requests.Fork(UNKNOWN, 1, None),
        requests.SetMeta(UNKNOWN, 0, None, None),
        requests.Rebase(UNKNOWN, (Drop(1, 2),), None),
        requests.SetQos(UNKNOWN, 1, False),
        requests.Inspect(UNKNOWN),
        requests.RequestPermission(UNKNOWN, 0, ""),
        requests.RespondPermission(UNKNOWN, 1, True),
        requests.RequestToolCancel(UNKNOWN, 1),
        requests.AppendToolOutcome(UNKNOWN, 1, 1, ""),
        requests.Ledger(UNKNOWN),
        requests.Trim(UNKNOWN, 1),
        requests.Pin(UNKNOWN, 1),
        requests.Warmth(UNKNOWN),
    ]
    if transport != "rpc":
        asked.append(requests.Subscribe(UNKNOWN, 0, False))
    with closing(TRANSPORTS[transport](daemon)) as client:
        answers = [(request, client.ask(request)) for request in asked]
    assert [
        (request, replies) for request, replies in answers if replies != [responses.Err(f"unknown session {UNKNOWN}")]
    ] == []


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_cancel_from_a_second_client_ends_what_the_first_one_generates(daemon: LiveDaemon, transport: str) -> None:
    with closing(TRANSPORTS[transport](daemon)) as writer, closing(TRANSPORTS[transport](daemon)) as canceller:
        (created,) = writer.ask(requests.Create(None, GREEDY))
        assert isinstance(created, responses.Created)
        session = created.session
        writer.ask(requests.AppendMessage(session, 1, "Babble."))
        replies: list[Response] = []
        thread = threading.Thread(target=lambda: replies.extend(writer.ask(requests.Generate(session, 5000))))
        thread.start()
        # Refused until there is something to cancel.
        while canceller.ask(requests.Cancel(session)) != [responses.Cancelling()]:
            assert thread.is_alive(), replies
        thread.join(30)
    summary = replies[-1]
    assert isinstance(summary, responses.Generated)
    assert summary.finish == Finish.CANCELLED
    assert isinstance(summary.events[-1], Event)
