"""``superfluid session inspect`` on a live daemon, and its lines for sessions in rarer states."""

import json
import re

import pytest
from tests.fixtures.client_commands import run_client, run_command
from tests.fixtures.live_daemon import GREEDY, LiveDaemon

from superfluid.cli.session.inspection import inspection_lines, tier_text
from superfluid.domain.events import Created, Event
from superfluid.native import requests
from superfluid.native.responses import Cold, Inspection, Parked, Resident, SessionSummary

MARKER = "planted-märker"


@pytest.fixture(scope="module")
def session(daemon: LiveDaemon) -> int:
    """With a title, a reply and an open tool call."""
    with daemon.client() as client:
        made = client.create()
        client.ask(requests.SetMeta(made, 0, "About\x1b[31m rivers", None))
        client.append(made, f"weather {MARKER}")
        list(client.stream(made, 200))
        return made


def test_inspect_shows_the_state_and_every_record_by_name(daemon: LiveDaemon, session: int) -> None:
    # What lies in lanes is told a little later than replies end.
    for _ in range(50):
        ended = run_client(daemon, "session", "inspect", session)
        assert (ended.code, ended.err) == (0, "")
        if "warm_lane=0 " not in ended.out:
            break
    first, second, third, warm, *rest = ended.out.splitlines()
    assert first == f'session={session} parent=- fork_at=0 title="About[31m rivers" archived=no'
    assert second == "epoch=1 generation=0 meta_version=1 qos=agent batch_invariant=no"
    assert re.fullmatch(r"tier=cold tokens=\d+ events=\d+ last_finish=1 wal_v2", third)
    assert re.fullmatch(r"warm_lane=\d\d+ warm_memory=0 warm_disk=0", warm)
    assert re.fullmatch(r"behavior_fingerprint=[0-9a-f]{16}", rest[0])
    assert re.fullmatch(r"store_id=[0-9a-f]{32}", rest[1])
    assert re.fullmatch(r'open call \d+: get_weather \{"city": "Paris"\}', rest[2])
    assert re.fullmatch(r"  #0     epoch 1   ts \d{13}  Created", rest[3].rstrip())
    assert {line.split()[-1] for line in rest[3:]} >= {"Created", "MetaUpdated", "Message", "ToolUse", "Generated"}
    assert MARKER not in ended.out


def test_inspect_as_json_is_the_whole_inspection_with_its_texts(daemon: LiveDaemon, session: int) -> None:
    ended = run_client(daemon, "session", "inspect", f"{session}", "--json")
    shown = json.loads(ended.out)
    assert ended.code == 0
    assert list(shown) == [
        "summary", "params", "epoch", "last_finish", "qos_class", "batch_invariant", "pin_deadline_unix_ms",
        "behavior_fingerprint", "open_tool_calls", "tier", "tokens", "events", "wal_version", "store_id", "warmth",
    ]  # fmt: skip
    assert shown["summary"]["title"] == "About\x1b[31m rivers"
    assert shown["params"] == {"temperature": 0.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "seed": 1}
    assert shown["tier"] == "Cold"
    assert len(shown["tokens"]) == shown["summary"]["tokens"]
    assert 0 < shown["warmth"]["lane"] < len(shown["tokens"])
    assert any(event["body"].get("Message", {}).get("text") == f"weather {MARKER}" for event in shown["events"])
    assert "\n  " in ended.out


def test_inspect_of_an_unknown_session_exits_1_with_the_servers_words(daemon: LiveDaemon) -> None:
    ended = run_client(daemon, "session", "inspect", 10**6)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "error: unknown session 1000000\n"


def test_inspect_without_a_server_exits_1_and_names_socket_and_remedy() -> None:
    ended = run_command("session", "inspect", 3, "--socket=/nowhere/absent.sock")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "error: no server answers at /nowhere/absent.sock; `superfluid serve` starts one\n"


def test_inspect_looks_below_the_home_directory_by_default() -> None:
    ended = run_command("session", "inspect", 3, environment={"SUPERFLUID_HOME": "/nowhere/home"})
    assert "no server answers at /nowhere/home/superfluid.sock;" in ended.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect"], "SESSION is missing"),
        (["inspect", "one"], "session: 'one' is no session id; those are numbers from 1 on"),
        (["inspect", "0"], "session: '0' is no session id; those are numbers from 1 on"),
        (["inspect", str(2**64)], f"session: '{2**64}' is no session id; those are numbers from 1 on"),
        (["inspect", "1", "--jsn"], "superfluid session inspect has no flag --jsn; the nearest is --json"),
        (["inspect", "1", "2"], "Got unexpected extra argument (2)"),
        (["export", "1", "--format", "xml"], "--format: 'xml' is not one of 'jsonl', 'otlp-jsonl'"),
        (["export", "1", "--out"], "flag '--out' requires an argument"),
    ],
)
def test_wrong_usage_shows_the_help_on_stderr_and_exits_2(words: list[str], message: str) -> None:
    ended = run_command("session", *words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"Usage: superfluid session {words[0]} [FLAGS] SESSION\n")
    assert ended.err.splitlines()[-1].startswith(f"error: {message}")


def test_session_alone_shows_its_commands_on_stderr_and_exits_2() -> None:
    ended = run_command("session")
    assert (ended.code, ended.out) == (2, "")
    assert "  inspect  " in ended.err


def test_session_with_an_unknown_command_names_the_nearest() -> None:
    ended = run_command("session", "inspct", 1)
    assert ended.code == 2
    assert ended.err == "error: there is no command 'inspct'; the nearest is `superfluid session inspect`\n"


@pytest.mark.parametrize("words", [("help", "session", "export"), ("session", "export", "--help")])
def test_help_reaches_the_commands_of_a_group(words: tuple[str, ...]) -> None:
    ended = run_command(*words)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Usage: superfluid session export [FLAGS] SESSION\n")


def test_help_of_what_a_group_lacks_names_the_nearest() -> None:
    ended = run_command("help", "session", "exprt")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "error: there is no command 'exprt'; the nearest is `superfluid session export`\n"


def inspection(qos_class: int = 3) -> Inspection:
    summary = SessionSummary(12, 3, 5, None, True, 2, 0, 6, 100, 0)
    return Inspection(
        summary=summary, params=GREEDY, epoch=2, last_finish=0, qos_class=qos_class, batch_invariant=True,
        pin_deadline_unix_ms=0, behavior_fingerprint=None, open_tool_calls=(), tier=Cold(), tokens=(),
        events=(Event(123456, 1234, 0, Created(None, GREEDY)),), wal_version=1, store_id=None,
    )  # fmt: skip


def test_inspection_of_a_fork_without_the_optional_parts_has_four_lines() -> None:
    assert list(inspection_lines(inspection())) == [
        "session=12 parent=3 fork_at=5 title=- archived=yes",
        "epoch=2 generation=0 meta_version=2 qos=background batch_invariant=yes",
        "tier=cold tokens=100 events=6 last_finish=0 wal_v1",
        "  #123456 epoch 1234 ts 0              Created",
    ]


def test_inspection_of_a_class_it_does_not_know_shows_the_number() -> None:
    assert "qos=9" in list(inspection_lines(inspection(qos_class=9)))[1]


def test_tier_is_a_word_and_says_how_much_is_parked() -> None:
    assert tier_text(Resident()) == "resident"
    assert tier_text(Parked(1000, 0)) == "parked(1000,lossless)"
    assert tier_text(Parked(1000, 9)) == "parked(1000,9)"
