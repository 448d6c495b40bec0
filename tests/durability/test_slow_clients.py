"""Clients of a whole daemon that read nothing, send by the byte, close halves or ask without end: it keeps its memory,
and those beside them notice nothing."""

import json
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.fixtures.fuzzing.canary import SONG, Canary, created_session
from tests.fixtures.live_daemon import LiveDaemon
from tests.fixtures.transports import PAGE_ORIGIN, SocketTransport, Transport, WebSocketTransport

from superfluid.domain.events import MetaUpdated
from superfluid.native import postcard, requests, responses
from superfluid.native.frames import encode_frame
from superfluid.native.protocol import Request, Response

TRANSPORTS: dict[str, Callable[[LiveDaemon], Transport]] = {"socket": SocketTransport, "websocket": WebSocketTransport}
# More than waits on the way to a client that reads nothing: 1,024 items, 256 frames, and the buffers of its socket.
EVENTS = 1900
TITLE = "t" * 16_000
REPLY_SECONDS = 60.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LiveDaemon]:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": [{"when": "canary", "text": SONG}], "babble_tokens": 50}))
    with LiveDaemon(tmp_path, script, "--web-origin", PAGE_ORIGIN) as running:
        yield running


@pytest.fixture
def canary(daemon: LiveDaemon) -> Iterator[Canary]:
    """Sings beside the test, and has sung well at its end."""
    singing = Canary(daemon)
    singing.start()
    yield singing
    singing.has_sung.wait(REPLY_SECONDS)
    singing.is_over.set()
    singing.join(REPLY_SECONDS)
    assert singing.problem is None, singing.problem
    assert singing.songs > 0


def resident_megabytes(daemon: LiveDaemon) -> float:
    pages = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def subscribed(client: Transport, session: int, cursor: int) -> int:
    (reply,) = client.ask(requests.Subscribe(session, cursor, False))
    assert isinstance(reply, responses.Subscribed), reply
    return reply.sub


def events_until(client: Transport, last: int) -> tuple[list[int], str | None]:
    """Ids that a subscription brings up to ``last``, and why it ended if it did before."""
    ids: list[int] = []
    while not ids or ids[-1] < last:
        frame = client.frame()
        if isinstance(frame, responses.SubEnded):
            return ids, frame.reason
        assert isinstance(frame, responses.SubEvent), frame
        ids.append(frame.event.event_id)
    return ids, None


@pytest.mark.usefixtures("canary")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_subscriber_that_reads_nothing_lags_while_others_get_everything(daemon: LiveDaemon, transport: str) -> None:
    with ExitStack() as stack:
        stuck = stack.enter_context(closing(TRANSPORTS[transport](daemon)))
        readers = [stack.enter_context(closing(open_one(daemon))) for open_one in TRANSPORTS.values()]
        writer = stack.enter_context(closing(SocketTransport(daemon)))
        session = created_session(writer)
        for client in (stuck, *readers):
            subscribed(client, session, 1)
        for version in range(EVENTS):
            writer.ask(requests.SetMeta(session, version, TITLE, None))
            for reader in readers:
                assert events_until(reader, version + 1) == ([version + 1], None)
        before = resident_megabytes(daemon)
        ids, reason = events_until(stuck, EVENTS)
        assert reason == "lagged"
        # What it was sent until then is whole, and what is missing it can ask for.
        assert ids == list(range(1, len(ids) + 1))
        assert 1024 <= len(ids) < EVENTS
        subscribed(stuck, session, ids[-1] + 1)
        rest, reason = events_until(stuck, EVENTS)
        assert (ids + rest, reason) == (list(range(1, EVENTS + 1)), None)
        (read,) = writer.ask(requests.Read(session, EVENTS))
        assert isinstance(read, responses.Events)
        assert isinstance(read.events[0].body, MetaUpdated)
        assert before < 300


@pytest.mark.usefixtures("canary")
def test_clients_that_ask_and_never_read_are_not_served_without_bound(daemon: LiveDaemon) -> None:
    with ExitStack() as stack:
        writer = stack.enter_context(closing(SocketTransport(daemon)))
        session = created_session(writer)
        for _ in range(10):
            writer.ask(requests.AppendMessage(session, 1, "x" * 3_000))
        before = resident_megabytes(daemon)
        clients = [stack.enter_context(connected(daemon)) for _ in range(8)]
        # 30 MB of replies for each of them, if they were made.
        taken = [pour(client, encoded(requests.Inspect(session)) * 300) for client in clients]
        assert resident_megabytes(daemon) - before < 150
        # And one who reads after all has every reply.
        clients[0].settimeout(REPLY_SECONDS)
        for _ in range(taken[0] // len(encoded(requests.Inspect(session)))):
            assert isinstance(received(clients[0]), responses.Inspected)


@pytest.mark.usefixtures("canary")
def test_client_that_pipelines_hundreds_of_requests_gets_them_answered_in_order(daemon: LiveDaemon) -> None:
    with closing(SocketTransport(daemon)) as writer, connected(daemon) as client:
        session = created_session(writer)
        asked = b"".join(encoded(requests.SetMeta(session, version, str(version), None)) for version in range(900))
        client.sendall(asked)
        for version in range(900):
            assert received(client) == responses.Meta(version + 1)


@pytest.mark.usefixtures("canary")
def test_frames_that_come_by_the_byte_on_many_connections_are_answered(daemon: LiveDaemon) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(daemon)) for _ in range(50)]
        for byte in encoded(requests.Sessions(False)):
            for client in clients:
                client.send(bytes([byte]))
        for client in clients:
            assert isinstance(received(client), responses.SessionList)


@pytest.mark.usefixtures("canary")
def test_clients_that_closed_their_sending_half_still_get_what_they_subscribed_to(daemon: LiveDaemon) -> None:
    with ExitStack() as stack:
        writer = stack.enter_context(closing(SocketTransport(daemon)))
        session = created_session(writer)
        clients = [stack.enter_context(connected(daemon)) for _ in range(100)]
        for client in clients:
            client.sendall(encoded(requests.Subscribe(session, 0, False)) + encoded(requests.Generate(session, 0)))
            client.shutdown(socket.SHUT_WR)
        for client in clients:
            frames = [received(client) for _ in range(4)]
            kinds = sorted(type(frame).__name__ for frame in frames)
            # All that was asked was answered, so the connection ends, and its subscription with it.
            assert kinds == ["Err", "SubEnded", "SubEvent", "Subscribed"], frames
            assert client.recv(1) == b""


@pytest.mark.usefixtures("canary")
def test_frames_that_never_end_hold_their_own_connection_only(daemon: LiveDaemon) -> None:
    with ExitStack() as stack:
        before = resident_megabytes(daemon)
        for _ in range(300):
            client = stack.enter_context(connected(daemon))
            client.sendall(struct.pack("<I", 60_000_000) + b"\x02\x01\x01")
        with closing(SocketTransport(daemon)) as other:
            assert created_session(other) > 0
        # Nothing is set aside for a length.
        assert resident_megabytes(daemon) - before < 60


def connected(daemon: LiveDaemon) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(REPLY_SECONDS)
    client.connect(str(daemon.socket))
    return client


def encoded(request: Request) -> bytes:
    return encode_frame(postcard.request_codec().encode(request))


def pour(client: socket.socket, data: bytes) -> int:
    """Sends until the server takes no more for half a second. How many bytes it took, whole frames or not."""
    client.setblocking(False)
    sent = 0
    while sent < len(data) and select.select([], [client], [], 0.5)[1]:
        sent += client.send(data[sent : sent + 65536])
    return sent


def received(client: socket.socket) -> Response:
    (length,) = struct.unpack("<I", exactly(client, 4))
    return postcard.response_codec().decode(exactly(client, length))


def exactly(client: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        got = client.recv(count - len(data))
        assert got, "the daemon closed the connection"
        data += got
    return bytes(data)
