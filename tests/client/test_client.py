"""Sessions found and listed, and raw requests."""

import pytest
import superfluid_client
from superfluid_client import Client, RequestRefused, Sampling, TreeNode, UnknownSession
from tests.client.fake_web_server import FakeWebServer


def test_session_sends_its_sampling_exactly(server: FakeWebServer, client: Client) -> None:
    client.session(Sampling(temperature=0.7, seed=2**64 - 1))
    params = {"temperature": 0.7, "top_p": 0.95, "min_p": 0.0, "top_k": 0, "seed": 2**64 - 1}
    assert server.last_rpc == {"Create": {"parent": None, "params": params}}


def test_session_with_a_system_text_opens_with_that_message(server: FakeWebServer, client: Client) -> None:
    client.session(system="Be brief.")
    assert server.last_rpc == {"AppendMessage": {"session": 1, "role": 0, "text": "Be brief."}}


def test_session_with_tools_declares_them_with_the_system_text(server: FakeWebServer, client: Client) -> None:
    client.session(system="Use the tools.", tools=[{"name": "f"}])
    assert server.last_rpc == {"AppendSystem": {"session": 1, "text": "Use the tools.", "tools": ['{"name": "f"}']}}


def test_session_of_a_parent_notes_it(server: FakeWebServer, client: Client) -> None:
    first = client.session()
    client.session(parent=first)
    assert server.last_rpc["Create"]["parent"] == 1


def test_get_finds_a_session_by_its_id(client: Client) -> None:
    session = client.session(Sampling(seed=5))
    session.user("one")
    again = client.get(session.id)
    assert (again.id, again.sampling, again.messages()) == (session.id, Sampling(seed=5), session.messages())


def test_session_of_a_text_is_a_type_error_that_names_the_argument_for_it(client: Client) -> None:
    with pytest.raises(TypeError, match="system= takes the text"):
        client.session("You are a geographer.")  # type: ignore[arg-type]


def test_get_of_an_unknown_session_raises(client: Client) -> None:
    with pytest.raises(UnknownSession, match="99"):
        client.get(99)


def test_listings_name_every_session(client: Client) -> None:
    session = client.session()
    session.user("one")
    session.fork(1)
    assert client.session_ids() == [1, 2]
    assert client.tree() == [TreeNode(1, None, 0), TreeNode(2, 1, 1)]
    assert [(summary.id, summary.parent, summary.events) for summary in client.sessions()] == [(1, None, 2), (2, 1, 2)]


def test_call_without_fields_sends_null(server: FakeWebServer, client: Client) -> None:
    assert client.call("Tree") == ("Tree", {"nodes": []})
    assert server.last_rpc == {"Tree": None}
    client.call("Tree", {})
    assert server.last_rpc == {"Tree": None}


def test_call_answered_without_fields_has_none(client: Client) -> None:
    assert client.call("SetLogLevel", {"directive": "debug"}) == ("Ack", None)


def test_call_that_is_refused_raises_the_daemons_words(client: Client) -> None:
    with pytest.raises(RequestRefused, match="no such level: what"):
        client.set_log_level("what")


def test_metrics_are_text(client: Client) -> None:
    assert client.metrics() == "superfluid_sessions 1\n"


def test_public_names_are_all_there() -> None:
    assert [name for name in superfluid_client.__all__ if not hasattr(superfluid_client, name)] == []
