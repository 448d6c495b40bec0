"""What the web listener refuses before the session API hears of it, and with which words."""

import json

import pytest
from tests.fixtures.refusal_stage import Listeners
from tests.fixtures.session_web import ORIGIN, TOKEN, raw_request

from superfluid.native.frames import MAX_FRAME_BYTES

pytestmark = pytest.mark.asyncio(loop_scope="module")

BEARER = ("Authorization", f"Bearer {TOKEN}")
ECHO = ("X-Superfluid-CSRF", TOKEN)
PAGE = ("Origin", ORIGIN)
NO_TOKEN = "the web token is needed: send it as 'Authorization: Bearer TOKEN'"
WRONG_TOKEN = "the web token is not the one of this server; it changes at every start"
WRONG_ORIGIN = "the page's origin is not allowed: name it with --web-origin"
NO_ECHO = "X-Superfluid-CSRF must repeat the token"
WRONG_HOST = "the Host header names no loopback address"
UPGRADE = (
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
)
Headers = tuple[tuple[str, str], ...]

POSTS: list[tuple[Headers, int, str]] = [
    ((), 401, NO_TOKEN),
    ((ECHO,), 401, NO_TOKEN),
    ((("Authorization", f"bearer {TOKEN}"), ECHO), 401, WRONG_TOKEN),
    ((("Authorization", f"Basic {TOKEN}"), ECHO), 401, WRONG_TOKEN),
    ((BEARER, ("Authorization", "Bearer other"), ECHO), 401, WRONG_TOKEN),
    ((BEARER, ECHO, ("Origin", "http://evil.example")), 403, WRONG_ORIGIN),
    ((BEARER, ECHO, PAGE, ("Origin", "null")), 403, WRONG_ORIGIN),
    ((BEARER, ECHO, ("Origin", ORIGIN + "/")), 403, WRONG_ORIGIN),
    ((BEARER,), 403, NO_ECHO),
    ((BEARER, ("X-Superfluid-CSRF", "other")), 403, NO_ECHO),
    ((BEARER, ECHO, ("X-Superfluid-CSRF", "other")), 403, NO_ECHO),
    ((BEARER, ECHO, ("Host", "evil.example")), 403, WRONG_HOST),
    ((BEARER, ECHO, ("Host", "127.0.0.1.evil.example:80")), 403, WRONG_HOST),
]
SOCKETS: list[tuple[Headers, int, str]] = [
    ((PAGE,), 401, NO_TOKEN),
    ((PAGE, ("Sec-WebSocket-Protocol", "superfluid.v1")), 401, NO_TOKEN),
    ((PAGE, ("Sec-WebSocket-Protocol", "superfluid.v1, superfluid.token.other")), 401, WRONG_TOKEN),
    ((PAGE, BEARER, ("Sec-WebSocket-Protocol", "superfluid.v1, superfluid.token.other")), 401, WRONG_TOKEN),
    ((BEARER,), 403, "a WebSocket needs an Origin header, and --web-origin must name it"),
    ((BEARER, ("Origin", "http://evil.example")), 403, WRONG_ORIGIN),
    ((BEARER, PAGE, ("Origin", "http://evil.example")), 403, WRONG_ORIGIN),
    (
        (PAGE, BEARER, ("Sec-WebSocket-Protocol", f"superfluid.token.{TOKEN}")),
        400,
        "the offered subprotocols must include superfluid.v1",
    ),
    ((PAGE, BEARER, ("Host", "evil.example")), 403, WRONG_HOST),
]
OTHERS: list[tuple[str, str, int, str]] = [
    ("GET", "/web/rpc", 405, "/web/rpc does not answer GET"),
    ("POST", "/web/ws", 405, "/web/ws does not answer POST"),
    ("POST", "/web/health", 405, "/web/health does not answer POST"),
    (
        "POST",
        "/web",
        404,
        "the web listener has /web/rpc, /web/stream, /web/ws and /web/health; OpenAI's routes are at --http",
    ),
    ("GET", "/web/ws", 426, "/web/ws is a WebSocket: ask for an upgrade"),
]


def err(message: str) -> dict[str, dict[str, str]]:
    return {"Err": {"message": message}}


@pytest.mark.parametrize("path", ["/web/rpc", "/web/stream"])
@pytest.mark.parametrize(("headers", "status", "message"), POSTS)
async def test_post_is_refused_in_these_words(
    listeners: Listeners, path: str, headers: Headers, status: int, message: str
) -> None:
    async with listeners.stage() as on:
        response = await raw_request(on.web.port, "POST", path, headers, b'"List"')
        assert (response.status, json.loads(response.body)) == (status, err(message))


@pytest.mark.parametrize(("headers", "status", "message"), SOCKETS)
async def test_upgrade_is_refused_in_these_words(
    listeners: Listeners, headers: Headers, status: int, message: str
) -> None:
    async with listeners.stage() as on:
        response = await raw_request(on.web.port, "GET", "/web/ws", (*UPGRADE, *headers))
        assert (response.status, json.loads(response.body)) == (status, err(message))


@pytest.mark.parametrize(("method", "path", "status", "message"), OTHERS)
async def test_route_is_refused_in_these_words(
    listeners: Listeners, method: str, path: str, status: int, message: str
) -> None:
    async with listeners.stage() as on:
        response = await raw_request(on.web.port, method, path, (BEARER, ECHO, PAGE))
        assert (response.status, json.loads(response.body)) == (status, err(message))


@pytest.mark.parametrize(
    ("path", "beginning"),
    [("/web/rpc", "the body is no request: "), ("/web/stream", "the body is no stream request: ")],
)
@pytest.mark.parametrize("body", [b"", b"{", b'{"Nope":{}}', b"\xff"])
async def test_body_that_is_no_request_is_refused_in_these_words(
    listeners: Listeners, path: str, beginning: str, body: bytes
) -> None:
    async with listeners.stage() as on:
        response = await raw_request(on.web.port, "POST", path, (BEARER, ECHO), body)
        assert response.status == 400
        assert json.loads(response.body)["Err"]["message"].startswith(beginning)


async def test_body_over_the_bound_is_refused_in_these_words_before_it_is_sent(listeners: Listeners) -> None:
    async with listeners.stage() as on:
        headers = (BEARER, ECHO, ("Content-Length", str(MAX_FRAME_BYTES + 1)))
        response = await raw_request(on.web.port, "POST", "/web/rpc", headers)
        message = f"the request body is larger than {MAX_FRAME_BYTES} bytes"
        assert (response.status, json.loads(response.body)) == (413, err(message))
