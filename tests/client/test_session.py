"""What each method of a session asks, and makes of the answer."""

import json

import pytest
from superfluid_client import Client, Drop, QosClass, RequestRefused, Sampling, ToolCall, Warmth
from superfluid_client.session import Session
from tests.client.fake_web_server import FakeSession, FakeWebServer, done


@pytest.fixture
def session(client: Client) -> Session:
    return client.session(Sampling(temperature=0.5, seed=2**64 - 1))


def test_messages_are_appended_with_their_roles(server: FakeWebServer, session: Session) -> None:
    events = [session.system("s"), session.user("u"), session.assistant("ä")]
    assert [(event.id, event.fields["role"], event.text) for event in events] == [(1, 0, "s"), (2, 1, "u"), (3, 2, "ä")]
    assert server.last_rpc == {"AppendMessage": {"session": 1, "role": 2, "text": "ä"}}


def test_append_waits_for_a_model_that_is_loading(server: FakeWebServer, session: Session) -> None:
    server.refusals_while_loading = 2
    assert session.user("Hello?").id == 1


def test_declare_sends_tools_as_json_texts(server: FakeWebServer, session: Session) -> None:
    session.declare(tools=[{"name": "f", "description": "é"}, '{"name":"g"}'])
    assert server.last_rpc == {
        "AppendSystem": {"session": 1, "text": None, "tools": ['{"name": "f", "description": "é"}', '{"name":"g"}']}
    }


def test_append_sends_text_or_tokens(server: FakeWebServer, session: Session) -> None:
    session.append("Once")
    assert server.last_rpc == {"Append": {"session": 1, "text": "Once", "span": []}}
    assert session.append(span=[300, 5]).span == [300, 5]


def test_tool_round_trip(server: FakeWebServer, session: Session) -> None:
    def model(fake: FakeSession, _: int) -> object:
        yield fake.generated('{"city":"Paris"}', 2, 1)
        yield "committed", fake.commit("ToolUse", {"name": "get_weather", "arguments": '{"city":"Paris"}'})
        yield done(3)

    server.model = model  # type: ignore[assignment]
    (call,) = session.generate(64).tool_calls
    assert (call.name, call.json()) == ("get_weather", {"city": "Paris"})
    assert session.open_tool_calls() == [call]
    assert session.tool_result(call, "rain").fields["call_id"] == call.id
    assert session.open_tool_calls() == []


def test_tool_result_takes_the_bare_id(server: FakeWebServer, session: Session) -> None:
    session.tool_result(4, "x")
    assert server.last_rpc == {"AppendToolResult": {"session": 1, "call_id": 4, "content": "x"}}


def test_fork_without_a_place_shares_everything(server: FakeWebServer, session: Session) -> None:
    session.user("one")
    session.generate(64)
    fork = session.fork()
    assert server.last_rpc == {"Fork": {"session": 1, "at_event": len(session.events()), "params": None}}
    assert fork.sampling == session.sampling


def test_fork_sees_events_that_others_have_appended(client: Client, session: Session) -> None:
    client.get(session.id).user("from elsewhere")
    assert [message.text for message in session.fork().messages()] == ["from elsewhere"]


def test_fork_counts_events_without_reading_the_log_again(server: FakeWebServer, session: Session) -> None:
    session.user("one")
    session.fork()
    reads = [body["Read"] for _, body in server.requests if "Read" in body]
    assert reads == [{"session": 1, "cursor": 2}]


def test_fork_with_a_seed_keeps_the_other_parameters(server: FakeWebServer, session: Session) -> None:
    fork = session.fork(1, seed=2)
    assert server.last_rpc["Fork"]["params"] == Sampling(temperature=0.5, seed=2).to_json()
    assert fork.sampling == Sampling(temperature=0.5, seed=2)


def test_fork_with_a_seed_of_a_session_found_again_asks_for_its_parameters(client: Client, session: Session) -> None:
    again = client.get(session.id)
    assert again.fork(1, seed=7).sampling == Sampling(temperature=0.5, seed=7)


def test_fork_after_takes_an_event_a_message_or_an_id(server: FakeWebServer, session: Session) -> None:
    event = session.user("one")
    session.generate(64)
    reply = session.messages()[-1]
    for place, at_event in ((event, 2), (1, 2), (reply, reply.last_event_id + 1)):
        session.fork_after(place)
        assert server.last_rpc["Fork"]["at_event"] == at_event


def test_fork_past_the_end_is_refused(session: Session) -> None:
    with pytest.raises(RequestRefused, match="no fork point"):
        session.fork(50)


def test_edit_replaces_the_message_and_drops_the_rest(server: FakeWebServer, session: Session) -> None:
    question = session.user("one")
    session.generate(64)
    length = len(session.events())
    session.edit(question, "two")
    edit = {"Replace": {"from": 1, "to": length, "role": 1, "text": "two"}}
    assert server.last_rpc == {"Rebase": {"session": 1, "edits": [edit], "params": None}}


def test_edit_keeping_the_rest_replaces_one_event_in_its_role(server: FakeWebServer, session: Session) -> None:
    opening = session.system("one")
    session.user("two")
    session.edit(opening, "three", keep_rest=True)
    assert server.last_rpc["Rebase"]["edits"] == [{"Replace": {"from": 1, "to": 2, "role": 0, "text": "three"}}]


@pytest.mark.parametrize("event_id", [0, 77])
def test_edit_of_something_else_than_a_message_raises(session: Session, event_id: int) -> None:
    with pytest.raises(ValueError, match="is no message"):
        session.edit(event_id, "x")


def test_rebase_takes_edits_and_their_json(server: FakeWebServer, session: Session) -> None:
    session.user("one")
    child = session.rebase([Drop(1, 2), {"Drop": {"from": 2, "to": 3}}], seed=3)
    edits = [{"Drop": {"from": 1, "to": 2}}, {"Drop": {"from": 2, "to": 3}}]
    assert server.last_rpc["Rebase"]["edits"] == edits
    assert child.sampling.seed == 3


def test_trim_shares_what_is_before(server: FakeWebServer, session: Session) -> None:
    event = session.user("one")
    session.user("two")
    assert session.trim(2).messages()[0].text == "one"
    session.trim(event)
    assert server.last_rpc == {"Trim": {"session": 1, "to_event": 1}}


def test_pin_sends_milliseconds_and_returns_the_deadline(server: FakeWebServer, session: Session) -> None:
    assert session.pin(1.5) == 2_500
    assert server.last_rpc == {"Pin": {"session": 1, "ttl_ms": 1_500}}


def test_set_qos_sends_the_class(server: FakeWebServer, session: Session) -> None:
    session.set_qos(QosClass.BACKGROUND_AGENT, batch_invariant=True)
    assert server.last_rpc == {"SetQos": {"session": 1, "class": 3, "batch_invariant": True}}


def test_inspect_reads_the_whole_session(session: Session) -> None:
    session.user("one")
    inspection = session.inspect()
    assert inspection.sampling == session.sampling
    assert (inspection.tier, inspection.summary.events, inspection.tokens) == ("Parked", 2, (1, 2, 3))
    assert inspection.events == tuple(session.events())


def test_warmth_says_what_lies_where(session: Session) -> None:
    assert session.warmth() == Warmth(lane=3, memory=2, disk=0)


def test_events_from_a_cursor(session: Session) -> None:
    session.user("one")
    session.user("two")
    assert [event.text for event in session.events(2)] == ["two"]


def test_text_of_any_script_arrives_unchanged(session: Session) -> None:
    text = 'Grüße, 世界 🎉 \u2028 "quoted" \\ \x00'
    assert session.user(text).text == text


def test_text_with_half_a_surrogate_pair_is_a_value_error(session: Session) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        session.user("\ud800")


def test_sampling_that_json_cannot_carry_is_a_value_error(client: Client) -> None:
    with pytest.raises(ValueError, match="JSON"):
        client.session(Sampling(temperature=float("nan")))


def test_tool_call_json_is_what_the_model_wrote() -> None:
    assert json.loads(ToolCall(1, "f", '{"a": 1e3}').arguments) == {"a": 1000.0}
