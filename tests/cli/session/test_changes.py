"""``superfluid session fork``, ``rename``, ``archive`` on a live daemon; ``purge`` against a scripted one."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fixtures.client_commands import run_client, run_command
from tests.fixtures.command_line import COMMAND, clean_environment
from tests.fixtures.live_daemon import GREEDY, LiveDaemon
from tests.fixtures.pseudo_terminal import PseudoTerminal
from tests.fixtures.scripted_socket import Answer, scripted_socket

from superfluid.cli.session.catalog import Row
from superfluid.cli.session.changes import purge_text
from superfluid.domain.events import PurgeMode
from superfluid.native import requests, responses
from superfluid.native.protocol import Request, Response


@pytest.fixture
def session(daemon: LiveDaemon) -> int:
    with daemon.client() as client:
        made = client.create()
        client.append(made, "Name three rivers.")
        return made


def test_fork_shares_everything_and_prints_the_id_alone(daemon: LiveDaemon, session: int) -> None:
    ended = run_client(daemon, "session", "fork", session, "--title", "a branch")
    child = int(ended.out)
    with daemon.client() as client:
        inspection = client.inspect(child)
    assert ended.err == f"note: session {child} has the first 2 events of session {session}\n"
    assert (inspection.summary.parent, inspection.summary.fork_at) == (session, 2)
    assert inspection.summary.title == "a branch"
    assert inspection.params == GREEDY


def test_fork_at_an_event_with_a_seed_has_both(daemon: LiveDaemon, session: int) -> None:
    ended = run_client(daemon, "session", "fork", session, "--at", 1, "--seed", 2**64 - 1, "--json")
    forked = json.loads(ended.out)
    with daemon.client() as client:
        inspection = client.inspect(forked["session"])
    assert forked == {"session": forked["session"], "parent": session, "at_event": 1}
    assert inspection.summary.fork_at == 1
    assert inspection.params.seed == 2**64 - 1
    assert inspection.params.temperature == GREEDY.temperature


@pytest.mark.parametrize("place", [0, 99])
def test_fork_where_none_can_be_exits_1(daemon: LiveDaemon, session: int, place: int) -> None:
    ended = run_client(daemon, "session", "fork", session, "--at", place)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"error: event {place} is no fork point")


def test_rename_gives_a_title_and_takes_it_away(daemon: LiveDaemon, session: int) -> None:
    assert run_client(daemon, "session", "rename", session, "About rivers") == run_client(
        daemon, "session", "archive", session, "--undo"
    )
    with daemon.client() as client:
        assert client.inspect(session).summary.title == "About rivers"
    ended = run_client(daemon, "session", "rename", session, "", "--json")
    assert json.loads(ended.out) == {"session": session, "title": "", "meta_version": 2}


def test_archive_hides_several_and_undo_brings_them_back(daemon: LiveDaemon, session: int) -> None:
    with daemon.client() as client:
        other = client.create()
    ended = run_client(daemon, "session", "archive", session, other, session, "--json")
    with daemon.client() as client:
        assert [client.inspect(each).summary.archived for each in (session, other)] == [True, True]
    assert json.loads(ended.out) == [{"session": each, "archived": True} for each in (session, other)]
    assert run_client(daemon, "session", "archive", session, other, "--undo").code == 0
    with daemon.client() as client:
        assert [client.inspect(each).summary.archived for each in (session, other)] == [False, False]
        # Archiving what is archived changes nothing.
        version = client.inspect(session).summary.meta_version
        assert run_client(daemon, "session", "archive", session, "--undo").code == 0
        assert client.inspect(session).summary.meta_version == version


def test_archive_with_one_that_is_not_there_changes_none(daemon: LiveDaemon, session: int) -> None:
    ended = run_client(daemon, "session", "archive", session, 10**6)
    assert (ended.code, ended.err) == (1, "error: unknown session 1000000\n")
    with daemon.client() as client:
        assert client.inspect(session).summary.archived is False


def test_archive_of_nothing_is_wrong_usage() -> None:
    ended = run_command("session", "archive")
    assert ended.code == 2
    assert ended.err.splitlines()[-1] == "error: SESSION... is missing"


# ---- purge


def summary(session: int, parent: int | None, title: str | None = None) -> responses.SessionSummary:
    return responses.SessionSummary(session, parent, 0, title, False, 0, 0, 3, 1200, 0)


FAMILY = (summary(1, None, "Rivers"), summary(2, 1), summary(3, 2, "Deep"), summary(4, None))


def purging() -> Answer:
    def answer(request: Request) -> Response:
        match request:
            case requests.Inspect(session):
                shown = [each for each in FAMILY if each.id == session]
                return inspected(shown[0]) if shown else responses.Err(f"unknown session {session}")
            case requests.Sessions():
                return responses.SessionList(FAMILY)
            case requests.Purge(session, _, mode):
                cascade = session == 1 and mode is PurgeMode.CASCADE
                return responses.Purged((3, 2, 1) if cascade else (session,))
            case _:
                return responses.Err("not expected")

    return answer


def inspected(shown: responses.SessionSummary) -> responses.Inspected:
    return responses.Inspected(
        responses.Inspection(
            summary=shown, params=GREEDY, epoch=1, last_finish=0, qos_class=2, batch_invariant=False,
            pin_deadline_unix_ms=0, behavior_fingerprint=None, open_tool_calls=(), tier=responses.Cold(), tokens=(),
            events=(), wal_version=2, store_id=None,
        )
    )  # fmt: skip


def purge(*words: object, stdin: str = "") -> tuple[int, str, str, Sequence[Request]]:
    with scripted_socket(purging()) as server:
        ended = run_command("session", "purge", *words, "--socket", server.path, stdin=stdin)
        purges = [request for request in server.asked if isinstance(request, requests.Purge)]
    return ended.code, ended.out, ended.err, purges


def test_purge_of_a_leaf_needs_no_mode() -> None:
    code, out, _, purges = purge(3, "--yes")
    assert (code, out) == (0, "purged 1 session: 3\n")
    assert purges == [requests.Purge(3, 0, PurgeMode.CASCADE)]


@pytest.mark.parametrize(("flag", "mode"), [("--cascade", PurgeMode.CASCADE), ("--reroot", PurgeMode.REROOT)])
def test_purge_of_a_parent_goes_by_its_flag(flag: str, mode: PurgeMode) -> None:
    code, out, _, purges = purge(1, flag, "-y", "--json")
    assert code == 0
    assert json.loads(out) == {"purged": [3, 2, 1] if mode is PurgeMode.CASCADE else [1]}
    assert purges == [requests.Purge(1, 0, mode)]


def test_purge_of_a_parent_without_a_mode_is_refused() -> None:
    code, out, err, purges = purge(1, "--yes")
    assert (code, out, list(purges)) == (2, "", [])
    assert err.startswith("error: session 1 has 2 descendants: say --cascade to delete them too, or --reroot to keep")


def test_purge_that_cannot_ask_is_refused() -> None:
    code, _, err, purges = purge(3, stdin="y\n")
    assert (code, list(purges)) == (2, [])
    assert err == "error: purge asks before it deletes, and here it cannot: give --yes\n"


def test_purge_with_both_modes_is_refused() -> None:
    code, _, err, purges = purge(1, "--cascade", "--reroot", "--yes")
    assert (code, list(purges)) == (2, [])
    assert "--cascade and --reroot contradict each other" in err


def test_purge_of_an_unknown_session_exits_1() -> None:
    assert purge(9, "--yes")[:3] == (1, "", "error: unknown session 9\n")


def row(session: int, parent: int | None, title: str | None = None, opening: str | None = None) -> Row:
    return Row(
        id=session, parent=parent, fork_at=0, title=title, is_archived=session == 3, events=1, tokens=1200,
        open_tool_calls=0, opening=opening,
    )  # fmt: skip


def test_purge_text_names_what_goes_with_a_cascade() -> None:
    rows = [row(2, 1, opening="hi"), row(3, 2, "Deep")]
    assert purge_text(row(1, None, "Rivers"), rows, PurgeMode.CASCADE).splitlines() == [
        "This deletes session 1 Rivers (1,200 tokens) and 2 descendants:",
        '  2 "hi" (1,200 tokens)',
        "  3 Deep (1,200 tokens, archived)",
    ]


def test_purge_text_names_the_first_of_many() -> None:
    rows = [row(number, 1) for number in range(10, 40)]
    text = purge_text(row(1, None), rows, PurgeMode.CASCADE)
    assert len(text.splitlines()) == 22
    assert text.endswith("  and 10 more")


def test_purge_text_names_the_forks_that_stay() -> None:
    rows = [row(2, 1), row(3, 2)]
    assert purge_text(row(1, None), rows, PurgeMode.REROOT).splitlines() == [
        "This deletes session 1 (1,200 tokens).",
        "Kept, with copies of what they inherit: 2 (1,200 tokens)",
    ]
    assert purge_text(row(4, None), [], PurgeMode.REROOT) == "This deletes session 4 (1,200 tokens)."


def test_purge_at_a_terminal_asks_and_goes_by_the_answer(daemon: LiveDaemon, session: int, tmp_path: Path) -> None:
    with daemon.client() as client:
        fork = client.make(requests.Fork(session, 2, None))
    command = [*COMMAND, "session", "purge", str(session), "--cascade", "--socket", str(daemon.socket)]
    environment = clean_environment(tmp_path) | {"NO_COLOR": "1"}
    for answer, code in (("n", 1), ("y", 0)):
        with PseudoTerminal(command, environment) as terminal:
            terminal.wait_for("Delete for good? [y/N]")
            assert '"Name three rivers."' in terminal.output
            assert "and 1 descendant" in terminal.output
            terminal.type(f"{answer}\r")
            assert terminal.wait_end() == code
        with daemon.client() as client:
            assert (session in client.list_ids()) is (code == 1)
    assert f"purged 2 sessions: {fork}, {session}" in terminal.output
