"""The client's examples, as far as they run without a daemon."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from superfluid_client import Client, Event
from tests.client.fake_web_server import FakeWebServer, say

EXAMPLES = Path(__file__).resolve().parents[2] / "clients" / "python" / "examples"


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def generated(event_id: int, text: str, epoch: int = 1) -> Event:
    fields = {"span": [event_id], "text": text, "channel": 0, "finish": 0}
    return Event(event_id, epoch, 5, "Generated", fields)


def test_fanout_shows_every_question_with_its_answer(
    server: FakeWebServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.model = say("The lamp ", "cost 4,200.\n", "Tom ", "fits it.")
    arguments = ["-q", "Lamp?", "-q", "Pier?", "--url", server.url, "--token-file", str(server.token_file)]
    monkeypatch.setattr(sys, "argv", ["fanout.py", *arguments])
    assert load("fanout").main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("2 ")] == [
        "2 │ ? Pier?",
        "2 │ The lamp cost 4,200.",
        "2 │ Tom fits it.",
    ]
    assert server.sessions[2].params["seed"] == 1
    assert server.sessions[3].params["seed"] == 2
    assert server.sessions[2].fork_at == server.sessions[3].fork_at == 3


def test_fanout_without_a_server_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["fanout.py", "--url", "http://127.0.0.1:1", "--token-file", "/nonexistent"])
    assert load("fanout").main() == 1
    assert "no token in /nonexistent" in capsys.readouterr().err


def test_fanout_long_lines_break_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    fanout = load("fanout")
    lines = fanout.Lines(fanout.Screen(), 1)
    for _ in range(40):
        lines.write("harbour ")
    lines.end()
    shown = [line.removeprefix("1 │ ") for line in capsys.readouterr().out.splitlines()]
    assert " ".join(shown).split() == ["harbour"] * 40
    assert all(60 < len(line) <= fanout.WIDTH for line in shown[:-1])


def test_plug_acknowledged_event_that_is_missing_or_changed_is_a_failure() -> None:
    plug = load("pull_the_plug")
    seen = [generated(4, "Once"), generated(5, " upon")]
    assert plug.acknowledged_result(seen, [*seen, generated(6, " a")]).is_true
    assert not plug.acknowledged_result(seen, seen[:1]).is_true
    assert not plug.acknowledged_result(seen, [seen[0], generated(5, " upan")]).is_true
    assert not plug.acknowledged_result(seen, [seen[0], generated(5, " upon", epoch=2)]).is_true


def test_plug_reply_that_goes_on_is_told_from_a_new_one(server: FakeWebServer, client: Client) -> None:
    plug = load("pull_the_plug")
    session = client.session()
    session.user("Tell me.")
    session.generate(2)
    log = session.events()
    session.generate(64)
    continued = session.events(len(log))
    assert plug.continued_result(log, continued, session).is_true
    assert not plug.continued_result(log, continued[1:], session).is_true
    assert not plug.continued_result(log, [], session).is_true


def test_plug_text_that_differs_is_a_failure_that_names_the_place(server: FakeWebServer, client: Client) -> None:
    plug = load("pull_the_plug")
    session, whole, other = (client.session() for _ in range(3))
    for each in (session, whole, other):
        each.user("Tell me.")
    session.generate(2)
    session.generate(64)
    whole.generate(64)
    other.generate(4)
    assert plug.equal_result(session, whole).is_true
    result = plug.equal_result(session, other)
    assert not result.is_true
    assert "from token 5 on" in result.detail


def test_plug_paragraph_breaks_lines_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    plug = load("pull_the_plug")
    paragraph = plug.Paragraph()
    for _ in range(30):
        for piece in ("light", "house ", "and "):
            paragraph.write(piece)
    paragraph.end()
    output = capsys.readouterr().out
    assert output.split() == ["lighthouse", "and"] * 30
    assert all(line.startswith("   ") and len(line) <= plug.WIDTH + 4 for line in output.splitlines() if line)
