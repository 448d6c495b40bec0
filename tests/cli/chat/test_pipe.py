"""``superfluid chat`` without a terminal: one message in, one reply out."""

import json
import re
from pathlib import Path

import pytest
from tests.fixtures.client_commands import Ended, run_client, run_command
from tests.fixtures.live_daemon import LiveDaemon

from superfluid.domain.events import Message
from superfluid.domain.state import SessionState


def session_of(ended: Ended) -> int:
    found = re.search(r"note: this is session (\d+)", ended.err)
    assert found is not None
    return int(found[1])


def test_message_from_a_pipe_is_answered_on_stdout_alone(daemon: LiveDaemon) -> None:
    ended = run_client(daemon, "chat", stdin="hi\n")
    assert (ended.code, ended.out) == (0, "Hello there.\n")
    session = session_of(ended)
    with daemon.client() as client:
        assert [event.body.text for event in client.read(session) if isinstance(event.body, Message)] == ["hi"]


def test_reasoning_stays_out_of_a_pipe_and_markdown_is_left_as_it_is(daemon: LiveDaemon) -> None:
    assert run_client(daemon, "chat", stdin="think").out == "Rivers **flow**.\n"


def test_session_is_gone_on_with(daemon: LiveDaemon) -> None:
    session = session_of(run_client(daemon, "chat", stdin="hi"))
    again = run_client(daemon, "chat", "--session", session, stdin="and more\nlines")
    assert (again.out, session_of(again)) == ("Hello there.\n", session)
    with daemon.client() as client:
        texts = [event.body.text for event in client.read(session) if isinstance(event.body, Message)]
    assert texts == ["hi", "and more\nlines"]


def test_new_session_opens_with_system_message_tools_and_sampling(daemon: LiveDaemon, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps({"name": "get_weather", "parameters": {"type": "object"}}))
    ended = run_client(
        daemon, "chat", "--system", "Be brief.", "--tools", tools, "--temperature", 0, "--seed", 9, "--top-k", 3,
        stdin="the weather?",
    )  # fmt: skip
    session = session_of(ended)
    with daemon.client() as client:
        inspection = client.inspect(session)
    assert ended.code == 0
    assert re.fullmatch(r'call \d+: get_weather \{"city": "Paris"\}\n', ended.out)
    assert re.search(r"note: call \d+ of get_weather waits for an answer", ended.err)
    assert inspection.params.temperature == 0
    assert (inspection.params.seed, inspection.params.top_k, inspection.params.top_p) == (9, 3, 1.0)
    messages = [event.body for event in inspection.events if isinstance(event.body, Message)]
    assert (messages[0].role, messages[0].text) == (0, "Be brief.")


def test_sampling_without_flags_suits_a_conversation(daemon: LiveDaemon) -> None:
    with daemon.client() as client:
        params = client.inspect(session_of(run_client(daemon, "chat", stdin="hi"))).params
    assert (round(params.temperature, 3), round(params.top_p, 3), params.top_k) == (0.7, 0.95, 40)
    assert params.seed > 0


def test_reply_that_is_cut_says_so_and_can_be_gone_on_with(daemon: LiveDaemon) -> None:
    ended = run_client(daemon, "chat", "--max-tokens", 5, stdin="hi")
    assert (ended.code, ended.out) == (0, "Hello\n")
    assert "note: the reply was cut at its limit\n" in ended.err
    with daemon.client() as client:
        state = SessionState(session_of(ended))
        state.apply_all(client.read(session_of(ended)))
    assert state.is_reply_open


@pytest.mark.parametrize("stdin", ["", " \n\n"])
def test_pipe_without_a_message_is_wrong_usage(daemon: LiveDaemon, stdin: str) -> None:
    ended = run_client(daemon, "chat", stdin=stdin)
    assert (ended.code, ended.out, ended.err) == (2, "", "error: there is no message: stdin is empty\n")


def test_unknown_session_exits_1(daemon: LiveDaemon) -> None:
    ended = run_client(daemon, "chat", "--session", 10**6, stdin="hi")
    assert (ended.code, ended.out, ended.err) == (1, "", "error: unknown session 1000000\n")


def test_message_too_long_for_the_model_exits_1(daemon: LiveDaemon) -> None:
    ended = run_client(daemon, "chat", stdin="x" * 20_000)
    assert (ended.code, ended.out) == (1, "")
    assert "context window" in ended.err


def test_without_a_server_a_pipe_is_not_asked_whether_to_start_one() -> None:
    ended = run_command("chat", "-m", "my model.gguf", "--socket", "/nowhere/absent.sock", stdin="hi")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        "error: no server answers at /nowhere/absent.sock; "
        "`superfluid serve 'my model.gguf' --socket /nowhere/absent.sock` starts one\n"
    )


def test_tools_that_are_none_are_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text("[1]")
    ended = run_command("chat", "--tools", tmp_path / "tools.json", stdin="hi")
    assert (ended.code, ended.out) == (2, "")
    assert "must hold function declarations" in ended.err


def test_unknown_flag_is_met_with_the_usage_and_the_nearest() -> None:
    ended = run_command("chat", "--sesion", "3", stdin="hi")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "Usage: superfluid chat [FLAGS]\n"
        "error: superfluid chat has no flag --sesion; the nearest is --session (`superfluid chat --help` lists them)\n"
    )


@pytest.mark.parametrize("flag", ["--temperature=3", "--top-p=2", "--top-k=-1", "--seed=x", "--max-tokens=0", "-s=0"])
def test_sampling_out_of_range_is_wrong_usage(flag: str) -> None:
    ended = run_command("chat", flag, stdin="hi")
    assert ended.code == 2
    usage, error = ended.err.splitlines()
    assert usage == "Usage: superfluid chat [FLAGS]"
    assert error.startswith("error: --")


def test_busy_session_is_waited_for_in_silence(daemon: LiveDaemon) -> None:
    with daemon.client() as other:
        session = other.create()
        other.append(session, "a long one")
        reply = other.stream(session, 100)
        next(reply)
        ended = run_client(daemon, "chat", "--session", session, stdin="hi")
        list(reply)
    assert (ended.code, ended.out) == (0, "Hello there.\n")
