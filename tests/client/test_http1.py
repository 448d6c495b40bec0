"""Reading HTTP answers, however they are cut into pieces."""

import pytest
from superfluid_client.http1 import HttpConnection, MalformedHttpError
from tests.client.scripted_network import ScriptedLink, Step

CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nX-Two: a: b\r\n\r\n"
    b"5;note=x\r\nhello\r\n7\r\n, world\r\n0\r\ntrailer: 1\r\n\r\n"
)


def connection(*steps: Step) -> tuple[HttpConnection, ScriptedLink]:
    link = ScriptedLink(steps)
    return HttpConnection(link, "127.0.0.1:8460", 1.0), link


async def body_of(http: HttpConnection) -> bytes:
    body = b""
    while piece := await http.read_piece():
        body += piece
    return body


async def answer_of(http: HttpConnection) -> bytes:
    await http.read_head()
    return await body_of(http)


async def test_request_goes_out_with_its_host_and_its_length() -> None:
    http, link = connection()
    await http.send("POST", "/web/rpc", {"X-A": "1"}, b"{}")
    assert link.sent == b"POST /web/rpc HTTP/1.1\r\nHost: 127.0.0.1:8460\r\nX-A: 1\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_chunked_body_is_read_in_pieces_of_any_size(size: int) -> None:
    http, _ = connection(*(CHUNKED[start : start + size] for start in range(0, len(CHUNKED), size)))
    head = await http.read_head()
    assert (head.status, head.reason, head.headers["x-two"]) == (200, "OK", "a: b")
    assert await body_of(http) == b"hello, world"
    assert http.can_serve_again


async def test_body_of_known_length_ends_there_and_the_connection_serves_again() -> None:
    http, link = connection(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab", b"cd")
    await http.read_head()
    assert not http.can_serve_again
    assert await body_of(http) == b"abcd"
    assert http.can_serve_again
    link.close()
    assert not http.can_serve_again


async def test_body_without_a_length_ends_with_the_connection() -> None:
    http, _ = connection(b"HTTP/1.0 200 OK\n\nab", b"cd", b"")
    await http.read_head()
    assert await body_of(http) == b"abcd"
    assert not http.can_serve_again


async def test_answer_without_content_has_no_body() -> None:
    http, _ = connection(b"HTTP/1.1 204 No Content\r\n\r\n")
    await http.read_head()
    assert await body_of(http) == b""
    assert http.can_serve_again


async def test_connection_that_the_server_will_close_does_not_serve_again() -> None:
    http, _ = connection(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    await http.read_head()
    assert not http.can_serve_again


async def test_interim_answers_are_skipped() -> None:
    http, _ = connection(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
    assert (await http.read_head()).status == 403


@pytest.mark.parametrize("end", [b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\n", b""])
async def test_link_that_ends_before_the_answer_is_a_reset(end: bytes) -> None:
    http, _ = connection(end, b"")
    with pytest.raises(ConnectionResetError):
        await http.read_head()


@pytest.mark.parametrize("cut", [b"5\r\nhel", b"5\r\nhello", b"5", b""])
async def test_link_that_ends_within_the_body_is_a_reset(cut: bytes) -> None:
    http, _ = connection(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + cut, b"")
    await http.read_head()
    with pytest.raises(ConnectionResetError):
        await body_of(http)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no HTTP"),
        (b"HTTP/1.1 2xx OK\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"a" * 70_000, "without end"),
        (b"HTTP/1.1 200 OK\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(300)), "too many"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "content length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", "chunk's size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", "longer than it says"),
    ],
)
async def test_answer_that_is_no_http_says_so(answer: bytes, problem: str) -> None:
    http, _ = connection(answer)
    with pytest.raises(MalformedHttpError, match=problem):
        await answer_of(http)
