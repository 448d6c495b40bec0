"""Connections, and what statuses and broken answers become."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from superfluid_client import (
    Client,
    ConnectionLost,
    Forbidden,
    RequestRefused,
    ServerUnreachable,
    Throttled,
    Unauthorized,
    UnexpectedReply,
)
from superfluid_client.errors import SuperfluidError
from tests.client.fake_web_server import FakeWebServer, wait_until


def test_requests_in_a_row_share_a_connection(server: FakeWebServer, client: Client) -> None:
    session = client.session()
    session.user("Name three rivers.")
    session.generate(64)
    session.user("And lakes?")
    session.events()
    assert server.connections == 1


def test_request_on_a_connection_the_server_has_closed_takes_a_fresh_one(server: FakeWebServer, client: Client) -> None:
    server.drops_after_answer = True
    session = client.session()
    wait_until(lambda: server.closed_connections == 1)
    assert session.user("one").id == 1
    wait_until(lambda: server.closed_connections == 2)
    assert session.user("two").id == 2
    assert server.connections == 3


def test_threads_at_the_same_time_have_connections_of_their_own(server: FakeWebServer, client: Client) -> None:
    session = client.session()
    together = threading.Barrier(4)
    server.between_frames = lambda _: _pass(together)
    forks = [session.fork(seed=seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda fork: fork.generate(64).text, forks))
    assert replies == ["Rhine, Rhône, Po"] * 4


def _pass(barrier: threading.Barrier) -> None:
    barrier.wait(30)


@pytest.mark.parametrize(
    ("status", "headers", "content", "kind", "text"),
    [
        (401, {}, b'{"Err":{"message":"no token"}}', Unauthorized, "no token"),
        (403, {}, b'{"Err":{"message":"bad origin"}}', Forbidden, "bad origin"),
        (400, {}, b'{"Err":{"message":"unknown request"}}', RequestRefused, "unknown request"),
        (404, {}, b"<html>", UnexpectedReply, "404"),
        (500, {}, b"", UnexpectedReply, "500"),
        (200, {}, b"{", UnexpectedReply, "no JSON"),
        (200, {}, b"[1]", UnexpectedReply, "List"),
        (200, {}, b'{"Sessions":{}}', UnexpectedReply, "ids"),
        (200, {}, b'"Ack"', UnexpectedReply, "Ack"),
    ],
)
def test_answer_becomes_its_own_exception(
    server: FakeWebServer,
    client: Client,
    status: int,
    headers: dict[str, Any],
    content: bytes,
    kind: type[SuperfluidError],
    text: str,
) -> None:
    server.canned = [(status, headers, content)] * 2
    with pytest.raises(kind, match=text):
        client.session_ids()


def test_throttled_says_when_to_come_back(server: FakeWebServer, client: Client) -> None:
    server.canned = [(429, {"Retry-After": "1"}, b'{"Throttled":{"retry_after_ms":87}}')]
    with pytest.raises(Throttled) as caught:
        client.call("Complete", {"prefix": "a", "suffix": "b", "mode": 0, "max_tokens": 8})
    assert caught.value.retry_after_seconds == 0.087


def test_throttled_without_a_body_goes_by_the_header(server: FakeWebServer, client: Client) -> None:
    server.canned = [(429, {"Retry-After": "3"}, b"")]
    with pytest.raises(Throttled) as caught:
        client.call("Complete", {"prefix": "a", "suffix": "b", "mode": 0, "max_tokens": 8})
    assert caught.value.retry_after_seconds == 3


def test_request_without_a_server_is_unreachable() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        client = Client(f"http://127.0.0.1:{reserved.getsockname()[1]}", token="x")
        assert not client.is_healthy()
        with pytest.raises(ServerUnreachable, match="no server answers"):
            client.session_ids()
        with pytest.raises(ServerUnreachable, match="within 0 s"):
            client.wait_until_healthy(0)


class _SilentServer:
    """Takes requests and hangs up on each without an answer."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.requests = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                self.requests += 1

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join(30)


def test_request_whose_connection_dies_is_lost_and_not_sent_twice() -> None:
    server = _SilentServer()
    client = Client(f"http://127.0.0.1:{server.listener.getsockname()[1]}", token="x")
    with pytest.raises(ConnectionLost, match="the connection broke"):
        client.session()
    server.close()
    assert server.requests == 1


def test_request_without_an_answer_in_time_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", token="x", timeout=0.05)
        with pytest.raises(ConnectionLost, match=r"silent for 0.05 s"):
            client.session_ids()


@pytest.mark.parametrize("url", ["127.0.0.1:8460", "https://127.0.0.1:8460", "http://", "ftp://host"])
def test_client_with_no_http_address_raises(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Client(url)


def test_health_needs_no_token(server: FakeWebServer) -> None:
    client = Client(server.url, token_file="/nonexistent/web-token")
    client.wait_until_healthy(5)
    assert client.is_healthy()
