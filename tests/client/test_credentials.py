"""Where the token comes from."""

from pathlib import Path

import pytest
from superfluid_client import Client, Unauthorized
from superfluid_client.credentials import TokenSource, default_token_file
from tests.client.fake_web_server import FakeWebServer


def test_token_file_follows_superfluid_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERFLUID_HOME", "/srv/sf")
    assert default_token_file() == Path("/srv/sf/sessions/web-token")


@pytest.mark.parametrize("home", ["", "  "])
def test_token_file_without_superfluid_home_is_in_the_users(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("SUPERFLUID_HOME", home)
    monkeypatch.setenv("HOME", "/home/ann")
    assert default_token_file() == Path("/home/ann/.superfluid/sessions/web-token")


def test_token_given_wins_over_the_file(tmp_path: Path) -> None:
    assert TokenSource("abc", tmp_path / "missing").token() == "abc"


def test_client_without_a_token_file_says_where_it_looked(tmp_path: Path) -> None:
    client = Client("http://127.0.0.1:1", token_file=tmp_path / "web-token")
    with pytest.raises(Unauthorized, match=r"web-token.*--web"):
        client.session_ids()


def test_client_after_a_restart_reads_the_new_token(server: FakeWebServer, client: Client) -> None:
    session = client.session()
    server.renew_token()
    assert session.user("Still here?").id == 1
    assert session.generate(64).text == "Rhine, Rhône, Po"


def test_stream_after_a_restart_reads_the_new_token(server: FakeWebServer, client: Client) -> None:
    session = client.session()
    server.renew_token()
    assert session.generate(64).text == "Rhine, Rhône, Po"


def test_client_with_a_wrong_token_is_unauthorized(server: FakeWebServer) -> None:
    with pytest.raises(Unauthorized, match="the token is wrong"):
        Client(server.url, token="0" * 64).session_ids()


def test_client_repr_does_not_show_the_token() -> None:
    assert "secret" not in repr(Client(token="secret"))
