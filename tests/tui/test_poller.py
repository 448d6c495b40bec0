"""The poller against servers that answer, close, hang and babble."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from superfluid.tui.poller import MAX_PAGE_BYTES, Poller, parse_address


@contextmanager
def server(*answers: bytes, is_kept: bool = True) -> Iterator[tuple[str, list[bytes]]]:
    """Answers one request after another; a new connection for each unless ``is_kept``."""
    requests: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        left = list(answers)
        while left:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while left:
                    request = connection.recv(65536)
                    if not request:
                        break
                    requests.append(request)
                    connection.sendall(left.pop(0))
                    if not is_kept:
                        break

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", requests
    finally:
        listener.close()


def response(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n" % (status.encode(), len(body)) + body


def test_poll_sends_the_key_and_gives_the_page() -> None:
    with server(response(b"page")) as (address, requests):
        answer = Poller(address, "k").poll()
    assert (answer.status, answer.text) == (200, "page")
    assert requests[0].startswith(b"GET /metrics HTTP/1.1\r\n")
    assert b"Authorization: Bearer k\r\n" in requests[0]


@pytest.mark.parametrize("is_kept", [True, False])
def test_poll_uses_its_connection_again_or_opens_another(is_kept: bool) -> None:
    with server(response(b"one"), response(b"two"), is_kept=is_kept) as (address, _):
        poller = Poller(address, None)
        assert [poller.poll().text, poller.poll().text] == ["one", "two"]


def test_poll_of_a_locked_node_tells_its_status() -> None:
    with server(response(b"no", "401 Unauthorized")) as (address, _):
        assert Poller(address, None).poll().status == 401


@pytest.mark.parametrize("answer", [b"gibberish\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"])
def test_poll_of_a_node_that_does_not_speak_http_has_no_status(answer: bytes) -> None:
    with server(answer, answer) as (address, _):
        assert Poller(address, None, timeout_seconds=0.2).poll().status is None


def test_poll_of_a_page_without_end_gives_up() -> None:
    with server(response(b"x" * (MAX_PAGE_BYTES + 10))) as (address, _):
        assert Poller(address, None).poll().status is None


def test_poll_of_a_node_that_hangs_has_no_status_after_its_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert Poller(address, None, timeout_seconds=0.05).poll().status is None


def test_poll_where_nobody_listens_has_no_status() -> None:
    assert Poller("127.0.0.1:9", None).poll().status is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8453", "127.0.0.1:8453"),
        ("box:1", "box:1"),
        ("[::1]:8453", "[::1]:8453"),
        ("http://box:8453/", "box:8453"),
    ],
)
def test_address_is_taken_as_people_write_it(text: str, address: str) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "box", "box:", ":1", "box:0", "box:70000", "box:x", "::1:80", "a b:1", "box:1/x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_address(text)
