"""The authorisation table, row by row, as pure checks; the server's answers are tested in test_app."""

import pytest
from starlette.types import Scope

from superfluid.config import Secret
from superfluid.errors import InvalidApiKeyError, InvalidRequestError, OriginRefusedError, SuperfluidError
from superfluid.web.authorization import WebAuthorization

TOKEN = "0123abcd"
GOOD, WRONG = f"Bearer {TOKEN}", "Bearer 0123abce"
PAGE, OTHER = "http://localhost:5173", "http://evil.example"
AUTHORIZATION = WebAuthorization(Secret(TOKEN), [PAGE, "https://app.example"])

Headers = list[tuple[str, str]]
TOKEN_OK: Headers = [("authorization", GOOD)]
CSRF_OK: Headers = [("x-superfluid-csrf", TOKEN)]
PROTOCOLS = "sec-websocket-protocol"

REQUEST_ROWS: list[tuple[str, Headers, type[SuperfluidError] | None]] = [
    ("all right", [*TOKEN_OK, *CSRF_OK], None),
    ("listed origin", [*TOKEN_OK, *CSRF_OK, ("origin", PAGE)], None),
    ("two listed origins", [*TOKEN_OK, *CSRF_OK, ("origin", PAGE), ("origin", "https://app.example")], None),
    ("the right token twice", [*TOKEN_OK, *TOKEN_OK, *CSRF_OK], None),
    ("the right echo twice", [*TOKEN_OK, *CSRF_OK, *CSRF_OK], None),
    ("no token", [*CSRF_OK], InvalidApiKeyError),
    ("wrong token", [("authorization", WRONG), *CSRF_OK], InvalidApiKeyError),
    ("empty token", [("authorization", "Bearer "), *CSRF_OK], InvalidApiKeyError),
    ("a right and a wrong token", [*TOKEN_OK, ("authorization", WRONG), *CSRF_OK], InvalidApiKeyError),
    ("lower-case scheme", [("authorization", f"bearer {TOKEN}"), *CSRF_OK], InvalidApiKeyError),
    ("other scheme", [("authorization", f"Basic {TOKEN}"), *CSRF_OK], InvalidApiKeyError),
    ("two spaces", [("authorization", f"Bearer  {TOKEN}"), *CSRF_OK], InvalidApiKeyError),
    ("token as subprotocol", [(PROTOCOLS, f"superfluid.token.{TOKEN}"), *CSRF_OK], InvalidApiKeyError),
    ("unlisted origin", [*TOKEN_OK, *CSRF_OK, ("origin", OTHER)], OriginRefusedError),
    ("null origin", [*TOKEN_OK, *CSRF_OK, ("origin", "null")], OriginRefusedError),
    ("origin with a slash", [*TOKEN_OK, *CSRF_OK, ("origin", PAGE + "/")], OriginRefusedError),
    ("origin in upper case", [*TOKEN_OK, *CSRF_OK, ("origin", PAGE.upper())], OriginRefusedError),
    ("a listed and an unlisted origin", [*TOKEN_OK, *CSRF_OK, ("origin", PAGE), ("origin", OTHER)], OriginRefusedError),
    ("no echo", [*TOKEN_OK], OriginRefusedError),
    ("wrong echo", [*TOKEN_OK, ("x-superfluid-csrf", "nope")], OriginRefusedError),
    ("a right and a wrong echo", [*TOKEN_OK, *CSRF_OK, ("x-superfluid-csrf", "nope")], OriginRefusedError),
    ("wrong token and unlisted origin", [("authorization", WRONG), ("origin", OTHER)], InvalidApiKeyError),
    ("not even latin text", [("authorization", "Bearer \xff\xfe"), *CSRF_OK], InvalidApiKeyError),
]

PAGE_OK: Headers = [("origin", PAGE)]
SOCKET_ROWS: list[tuple[str, Headers, type[SuperfluidError] | str | None]] = [
    ("token as header", [*TOKEN_OK, *PAGE_OK], None),
    ("token as header, protocol offered", [*TOKEN_OK, *PAGE_OK, (PROTOCOLS, "superfluid.v1")], "superfluid.v1"),
    ("token as subprotocol", [*PAGE_OK, (PROTOCOLS, f"superfluid.v1, superfluid.token.{TOKEN}")], "superfluid.v1"),
    (
        "token as subprotocol, in lines of their own",
        [*PAGE_OK, (PROTOCOLS, f"superfluid.token.{TOKEN}"), (PROTOCOLS, "superfluid.v1")],
        "superfluid.v1",
    ),
    ("token both ways", [*TOKEN_OK, *PAGE_OK, (PROTOCOLS, f"superfluid.v1,superfluid.token.{TOKEN}")], "superfluid.v1"),
    ("other protocols too", [*TOKEN_OK, *PAGE_OK, (PROTOCOLS, "chat, superfluid.v1")], "superfluid.v1"),
    ("two listed origins", [*TOKEN_OK, *PAGE_OK, ("origin", "https://app.example")], None),
    ("no token", [*PAGE_OK, (PROTOCOLS, "superfluid.v1")], InvalidApiKeyError),
    ("wrong header", [("authorization", WRONG), *PAGE_OK], InvalidApiKeyError),
    ("wrong subprotocol", [*PAGE_OK, (PROTOCOLS, "superfluid.v1, superfluid.token.x")], InvalidApiKeyError),
    (
        "right header, wrong subprotocol",
        [*TOKEN_OK, *PAGE_OK, (PROTOCOLS, "superfluid.v1, superfluid.token.x")],
        InvalidApiKeyError,
    ),
    (
        "wrong header, right subprotocol",
        [("authorization", WRONG), *PAGE_OK, (PROTOCOLS, f"superfluid.v1, superfluid.token.{TOKEN}")],
        InvalidApiKeyError,
    ),
    (
        "a right and a wrong subprotocol",
        [*PAGE_OK, (PROTOCOLS, f"superfluid.v1, superfluid.token.{TOKEN}, superfluid.token.x")],
        InvalidApiKeyError,
    ),
    ("no origin", [*TOKEN_OK], OriginRefusedError),
    ("unlisted origin", [*TOKEN_OK, ("origin", OTHER)], OriginRefusedError),
    ("a listed and an unlisted origin", [*TOKEN_OK, *PAGE_OK, ("origin", OTHER)], OriginRefusedError),
    ("the echo does not help", [*CSRF_OK, *PAGE_OK], InvalidApiKeyError),
    ("only unknown protocols", [*TOKEN_OK, *PAGE_OK, (PROTOCOLS, "chat")], InvalidRequestError),
    ("only the token protocol", [*PAGE_OK, (PROTOCOLS, f"superfluid.token.{TOKEN}")], InvalidRequestError),
]


def scope(headers: Headers) -> Scope:
    return {"type": "http", "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers]}


@pytest.mark.parametrize(("_name", "headers", "refusal"), REQUEST_ROWS, ids=[row[0] for row in REQUEST_ROWS])
def test_request_row(_name: str, headers: Headers, refusal: type[SuperfluidError] | None) -> None:
    if refusal is None:
        AUTHORIZATION.check_request(scope(headers))
        return
    with pytest.raises(refusal) as caught:
        AUTHORIZATION.check_request(scope(headers))
    assert TOKEN not in caught.value.message


@pytest.mark.parametrize(("_name", "headers", "outcome"), SOCKET_ROWS, ids=[row[0] for row in SOCKET_ROWS])
def test_socket_row(_name: str, headers: Headers, outcome: type[SuperfluidError] | str | None) -> None:
    if outcome is None or isinstance(outcome, str):
        assert AUTHORIZATION.check_socket(scope(headers)) == outcome
        return
    with pytest.raises(outcome) as caught:
        AUTHORIZATION.check_socket(scope(headers))
    assert TOKEN not in caught.value.message


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8455", "localhost", "LOCALHOST:1", "[::1]:8455", "app.localhost", "127.8.9.1"]
)
def test_host_of_this_machine_passes(host: str) -> None:
    AUTHORIZATION.check_request(scope([*TOKEN_OK, *CSRF_OK, ("host", host)]))


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "192.168.0.7:8455", "", "a b", "localhost@x"]
)
def test_host_that_was_pointed_here_is_refused(host: str) -> None:
    with pytest.raises(OriginRefusedError, match="Host"):
        AUTHORIZATION.check_request(scope([*TOKEN_OK, *CSRF_OK, ("host", host)]))
    with pytest.raises(OriginRefusedError, match="Host"):
        AUTHORIZATION.check_socket(scope([*TOKEN_OK, *PAGE_OK, ("host", host)]))
