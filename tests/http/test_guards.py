"""Browser guard and API key, as tables."""

import logging

import pytest

from superfluid.config import Secret
from superfluid.errors import InvalidApiKeyError, OriginRefusedError
from superfluid.http.guards import Authenticator, BrowserGuard, authority_host, open_door_notice

Scope = dict[str, object]


def _scope(**headers: str) -> Scope:
    return {"headers": [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]}


def _passes(guard: BrowserGuard, scope: Scope) -> bool:
    try:
        guard.check(scope)
    except OriginRefusedError:
        return False
    return True


@pytest.mark.parametrize(
    ("origin", "passes"),
    [
        ("http://localhost", True),
        ("http://localhost:3000", True),
        ("https://app.localhost:3000", True),
        ("http://127.0.0.1:8453", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:5173", True),
        ("HTTP://LOCALHOST", True),
        ("null", False),
        ("", False),
        ("http://evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://notlocalhost", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://127.0.0.1@evil.example", False),
        ("http://192.168.1.5", False),
        ("localhost", False),
    ],
)
@pytest.mark.parametrize("has_key", [False, True])
def test_guard_given_an_origin_lets_loopback_pass_only(origin: str, passes: bool, has_key: bool) -> None:
    for listen_host in ("127.0.0.1", "0.0.0.0"):
        guard = BrowserGuard(listen_host, has_key=has_key, hostname="box")
        assert _passes(guard, _scope(origin=origin)) is passes


@pytest.mark.parametrize(
    ("host", "on_loopback", "off_loopback"),
    [
        ("localhost:8453", True, True),
        ("127.0.0.1:8453", True, True),
        ("[::1]:8453", True, True),
        ("api.localhost", True, True),
        ("LOCALHOST.", True, True),
        ("", True, True),
        ("192.168.1.5:8453", False, True),
        ("[fe80::1]:8453", False, True),
        ("box", False, True),
        ("BOX.:8453", False, True),
        ("box.local", False, True),
        ("box.example.com", False, False),
        ("evil.example", False, False),
        ("localhost:port", False, False),
        ("[::1", False, False),
        ("user@localhost", False, False),
    ],
)
def test_guard_given_a_host_header_without_a_key(host: str, on_loopback: bool, off_loopback: bool) -> None:
    scope = _scope(host=host)
    for listen_host in ("127.0.0.1", "localhost", "::1", "[::1]"):
        assert _passes(BrowserGuard(listen_host, has_key=False, hostname="Box.local"), scope) is on_loopback
    for listen_host in ("0.0.0.0", "::", "192.168.1.5"):
        assert _passes(BrowserGuard(listen_host, has_key=False, hostname="Box.local"), scope) is off_loopback


def test_guard_off_loopback_with_a_key_takes_any_host() -> None:
    assert _passes(BrowserGuard("0.0.0.0", has_key=True, hostname="box"), _scope(host="llm.example.com"))


def test_guard_on_loopback_with_a_key_still_wants_a_loopback_host() -> None:
    assert not _passes(BrowserGuard("127.0.0.1", has_key=True, hostname="box"), _scope(host="llm.example.com"))


def test_guard_checks_every_host_header() -> None:
    scope: Scope = {"headers": [(b"host", b"localhost"), (b"host", b"evil.example")]}
    assert not _passes(BrowserGuard("127.0.0.1", has_key=False, hostname="box"), scope)


def test_guard_given_no_headers_passes() -> None:
    assert _passes(BrowserGuard("127.0.0.1", has_key=False, hostname="box"), _scope())


@pytest.mark.parametrize(
    ("authority", "host"),
    [("Example.COM.:80", "example.com"), ("[::1]", "::1"), ("[::1]x", None), (":80", None), ("a b", None)],
)
def test_authority_host(authority: str, host: str | None) -> None:
    assert authority_host(authority) == host


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer sesame"},
        {"authorization": "bearer   sesame "},
        {"x_api_key": "sesame"},
        {"authorization": "Bearer wrong", "x_api_key": "sesame"},
    ],
)
def test_authenticator_given_the_key_passes(headers: dict[str, str]) -> None:
    Authenticator(Secret("sesame")).check(_scope(**headers))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "sesame"},
        {"authorization": "Basic sesame"},
        {"authorization": "Bearer sesam"},
        {"authorization": "Bearer "},
        {"x_api_key": "Sesame"},
        {"x_api_key": "s\xe9same"},
    ],
)
def test_authenticator_without_the_key_refuses_and_never_shows_it(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidApiKeyError) as failure:
        Authenticator(Secret("sesame")).check(_scope(**headers))
    assert "sesame" not in failure.value.message


def test_authenticator_with_no_key_configured_lets_everybody_pass() -> None:
    Authenticator(None).check(_scope(authorization="Bearer whatever"))


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"authorization": "Bearer owl"}, "night"),
        ({"x_api_key": "sesame"}, None),
        ({"authorization": "Bearer sesame", "x_api_key": "owl"}, "night"),
    ],
)
def test_authenticator_names_the_policys_key_which_counts_before_the_global_one(
    headers: dict[str, str], name: str | None
) -> None:
    keys = {"day": Secret("lark"), "night": Secret("owl")}
    assert Authenticator(Secret("sesame"), keys).check(_scope(**headers)) == name


@pytest.mark.parametrize(
    ("host", "has_key", "level"),
    [
        ("0.0.0.0", False, logging.WARNING),
        ("::", False, logging.WARNING),
        ("127.0.0.1", False, logging.INFO),
        ("[::1]", False, logging.INFO),
        ("localhost", False, logging.INFO),
        ("0.0.0.0", True, None),
        ("127.0.0.1", True, None),
    ],
)
def test_listener_without_a_key_is_noted_and_warned_about_where_others_reach_it(
    host: str, has_key: bool, level: int | None
) -> None:
    notice = open_door_notice(host, has_key=has_key)
    assert (None if notice is None else notice[0]) == level
