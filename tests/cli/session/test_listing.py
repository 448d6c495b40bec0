"""``superfluid session list`` and ``tree`` on a live daemon, and on a server with more sessions than fit."""

import json
import re
from collections.abc import Iterator

import pytest
from tests.fixtures.client_commands import run_client, run_command
from tests.fixtures.live_daemon import LiveDaemon
from tests.fixtures.scripted_socket import HangUpError, ScriptedSocket, scripted_socket

from superfluid.cli.session.catalog import MAX_DETAILED, Row
from superfluid.cli.session.listing import ListSettings, chosen_rows
from superfluid.domain.events import Event, Message
from superfluid.native import requests, responses
from superfluid.native.protocol import Request, Response


@pytest.fixture(scope="module")
def family(daemon: LiveDaemon) -> tuple[int, int, int, int]:
    """A titled root, its fork with a reply, the fork's archived fork, and a session by itself."""
    with daemon.client() as client:
        root = client.create()
        client.append(root, "Name three rivers.")
        client.ask(requests.SetMeta(root, 0, "Rivers", None))
        fork = client.make(requests.Fork(root, 2, None))
        client.append(fork, "And of Asia?")
        list(client.stream(fork, 200))
        hidden = client.make(requests.Fork(fork, 4, None))
        client.ask(requests.SetMeta(hidden, 0, None, True))
        return root, fork, hidden, client.create()


def table(text: str) -> dict[str, str]:
    """The lines by the id that they show."""
    lines = text.splitlines()[1:]
    return {next(word for word in line.split() if word.isdecimal()): line for line in lines}


def test_list_shows_the_newest_first_with_tokens_tier_and_age(
    daemon: LiveDaemon, family: tuple[int, int, int, int]
) -> None:
    root, fork, hidden, alone = map(str, family)
    ended = run_client(daemon, "session", "list")
    assert (ended.code, ended.err) == (0, "")
    shown = table(ended.out)
    assert list(shown) == [alone, fork, root]
    assert shown[root].split()[1:3] == ["-", "Rivers"]
    assert shown[fork].split()[1] == f"{root}:2"
    assert '"And of Asia?"' in shown[fork]
    assert ended.out.splitlines()[0].split()[-3:] == ["WARM", "LAST", "USED"]
    assert re.search(r" lane \d+ +just now$", shown[fork])
    assert re.search(r" - +just now$", shown[alone])
    assert hidden not in shown


def test_list_with_archived_marks_them(daemon: LiveDaemon, family: tuple[int, int, int, int]) -> None:
    shown = table(run_client(daemon, "session", "list", "--archived").out)
    assert shown[str(family[2])].rstrip().endswith("archived")


def test_list_that_is_cut_says_how_many_there_are(daemon: LiveDaemon, family: tuple[int, int, int, int]) -> None:
    ended = run_client(daemon, "session", "list", "-n", 1)
    assert list(table(ended.out)) == [str(family[3])]
    assert ended.err == "\nnote: 1 of 3 sessions; --all shows the rest\n"
    assert run_client(daemon, "session", "list", "-n", 1, "--all").err == ""


def test_list_as_json_has_a_record_a_session(daemon: LiveDaemon, family: tuple[int, int, int, int]) -> None:
    root, fork, _, _ = family
    rows = {row["id"]: row for row in json.loads(run_client(daemon, "session", "list", "--json", "--all").out)}
    assert rows[root]["title"] == "Rivers"
    assert (rows[fork]["parent"], rows[fork]["fork_at"], rows[fork]["archived"]) == (root, 2, False)
    assert (rows[fork]["tier"], rows[fork]["parked_tokens"]) == ("cold", None)
    assert rows[fork]["warmth"] == {"lane": rows[fork]["tokens"] - 1, "memory": 0, "disk": 0}
    assert rows[fork]["last_unix_ms"] > 1_600_000_000_000
    assert rows[fork]["tokens"] > 0


def test_tree_draws_forks_below_their_parents_archived_ones_marked(
    daemon: LiveDaemon, family: tuple[int, int, int, int]
) -> None:
    root, fork, hidden, alone = family
    ended = run_client(daemon, "session", "tree")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()[1:]
    assert [line.split("  ")[0].rstrip() for line in lines[:2]] == [f"{alone}", f"{root}"]
    assert lines[2].startswith(f"└─ {fork}")
    assert lines[3].startswith(f"   └─ {hidden}")
    assert lines[3].rstrip().endswith("archived")


def test_tree_of_a_session_is_its_family_alone(daemon: LiveDaemon, family: tuple[int, int, int, int]) -> None:
    root, fork, hidden, _ = family
    ended = run_client(daemon, "session", "tree", hidden, "--json")
    assert [row["id"] for row in json.loads(ended.out)] == [root, fork, hidden]


def test_tree_of_an_unknown_session_exits_1(daemon: LiveDaemon) -> None:
    ended = run_client(daemon, "session", "tree", 10**6)
    assert (ended.code, ended.out, ended.err) == (1, "", "error: unknown session 1000000\n")


def row(session: int, title: str | None = None, tokens: int = 0) -> Row:
    return Row(
        id=session, parent=None, fork_at=0, title=title, is_archived=False, events=10 - session, tokens=tokens,
        open_tool_calls=0,
    )  # fmt: skip


ROWS = [row(1, "b", 5), row(2, None, 7), row(3, "A", 5)]


@pytest.mark.parametrize(
    ("settings", "ids"),
    [
        (ListSettings(), [3, 2, 1]),
        (ListSettings(is_reversed=True), [1, 2, 3]),
        (ListSettings(sort="tokens"), [2, 3, 1]),
        (ListSettings(sort="events"), [1, 2, 3]),
        (ListSettings(sort="title"), [2, 3, 1]),
        (ListSettings(sort="title", is_reversed=True), [1, 3, 2]),
        (ListSettings(sort="tokens", limit=1), [2]),
        (ListSettings(limit=None), [3, 2, 1]),
    ],
)
def test_rows_are_sorted_and_limited_as_asked(settings: ListSettings, ids: list[int]) -> None:
    assert [chosen.id for chosen in chosen_rows(ROWS, settings)] == ids


# ---- servers of other sizes


def summary(session: int, events: int = 3) -> responses.SessionSummary:
    return responses.SessionSummary(session, None, 0, None, False, 0, 0, events, 10, 0)


@pytest.fixture
def crowd() -> Iterator[ScriptedSocket]:
    """More sessions than are described one by one; the newest is too long to be inspected, another is damaged."""
    summaries = [*(summary(n) for n in range(1, MAX_DETAILED + 2)), summary(1000, 30_000)]

    def answer(request: Request) -> Response:
        match request:
            case requests.Sessions():
                return responses.SessionList(tuple(summaries))
            case requests.Read(_, cursor):
                return responses.Events((Event(cursor, 1, 5000, Message(1, "last words", ())),))
            case _:
                return responses.Err("session is damaged")

    with scripted_socket(answer) as server:
        yield server


def test_list_of_a_crowd_leaves_the_details_out(crowd: ScriptedSocket) -> None:
    ended = run_command("session", "list", "--all", "--socket", crowd.path)
    assert ended.code == 0
    assert ended.err == f"note: tiers and ages are left out of listings of more than {MAX_DETAILED} sessions\n"
    assert len(ended.out.splitlines()) == MAX_DETAILED + 3
    assert len(crowd.asked) == 1


def test_list_asks_only_about_the_sessions_it_shows_and_survives_what_cannot_be_read(crowd: ScriptedSocket) -> None:
    ended = run_command("session", "list", "-n", 2, "--json", "--socket", crowd.path)
    assert [(row["id"], row["tier"], row["last_unix_ms"]) for row in json.loads(ended.out)] == [
        (1000, None, 5000),
        (MAX_DETAILED + 1, None, None),
    ]
    assert crowd.asked[1:3] == [requests.Read(1000, 29_992), requests.Inspect(MAX_DETAILED + 1)]
    assert crowd.asked[3:] == [requests.Warmth(1000), requests.Warmth(MAX_DETAILED + 1)]


def test_list_on_a_server_of_before_shows_the_tiers_it_knows() -> None:
    """It cannot read the question, and hangs up."""

    def answer(request: Request) -> list[Response]:
        match request:
            case requests.Sessions():
                return [responses.SessionList((summary(1), summary(2)))]
            case requests.Warmth():
                raise HangUpError
            case _:
                return [responses.Err("session is damaged")]

    with scripted_socket(answer) as server:
        ended = run_command("session", "list", "--socket", server.path)
        as_json = run_command("session", "list", "--json", "--socket", server.path)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0].split()[-3:] == ["TIER", "LAST", "USED"]
    assert [row["warmth"] for row in json.loads(as_json.out)] == [None, None]


def test_list_of_nothing_says_so() -> None:
    with scripted_socket(lambda _: responses.SessionList(())) as server:
        ended = run_command("session", "list", "--socket", server.path)
    assert (ended.code, ended.out, ended.err) == (0, "", "note: there are no sessions yet\n")
