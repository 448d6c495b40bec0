"""Purges as clients meet them, on both transports, and in a daemon that is killed in the middle of one."""

import json
import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fixtures.live_daemon import Calls, LiveDaemon, RefusedError
from tests.fixtures.traces import traces_of

from superfluid.domain.events import Generated, Purged, PurgeMode
from superfluid.native import requests, responses

SECRET = "the heron's password is marshmallow, and nobody but this session may ever have known"
SECRET_TOKENS = tuple(140 + number * 37 % 116 for number in range(80))
SCRIPT = {"replies": [{"text": f"I know: {SECRET}"}]}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(SCRIPT))
    return path


def traces(daemon: LiveDaemon) -> list[str]:
    return traces_of(daemon.sessions, SECRET, SECRET_TOKENS)


def plant(calls: Calls) -> tuple[int, int]:
    """A session that holds the secret in every way, and a fork from before it did."""
    session = calls.create()
    calls.append(session, "harmless")
    child = calls.make(requests.Fork(session, 2, None))
    calls.ask(requests.Append(session, None, SECRET_TOKENS))
    calls.append(session, SECRET)
    calls.ask(requests.SetMeta(session, 0, SECRET, None))
    said = [event.body.text for event in calls.stream(session, 200) if isinstance(event.body, Generated)]
    assert SECRET in "".join(said)
    return session, child


@pytest.mark.parametrize("mode", list(PurgeMode))
def test_purged_session_is_gone_for_everybody_and_from_the_disk(tmp_path: Path, script: Path, mode: PurgeMode) -> None:
    with LiveDaemon(tmp_path, script) as daemon, daemon.client() as client:
        web = daemon.web_client()
        session, child = plant(client)
        length = len(client.read(session))
        assert traces(daemon)
        (subscribed,) = [client.ask(requests.Subscribe(session, length, provisional=False))]
        assert isinstance(subscribed, responses.Subscribed)
        with pytest.raises(RefusedError, match="conflict"):
            web.ask(requests.Purge(session, 3, mode))
        gone = (child, session) if mode is PurgeMode.CASCADE else (session,)
        assert web.ask(requests.Purge(session, 0, mode)) == responses.Purged(gone)
        last = client.receive()
        assert isinstance(last, responses.SubEvent)
        assert last.event.body == Purged(1, mode)
        assert client.receive() == responses.SubEnded(subscribed.sub, "purged")
        for calls in (client, web):
            with pytest.raises(RefusedError, match="was purged"):
                calls.read(session)
            assert session not in calls.list_ids()
        assert traces(daemon) == []
        daemon.kill()
        assert traces(daemon) == []
        daemon.start()
        assert traces(daemon) == []
        with daemon.client() as again:
            assert again.list_ids() == (() if mode is PurgeMode.CASCADE else (child,))
            if mode is PurgeMode.REROOT:
                assert list(again.stream(child, 5))


@pytest.mark.parametrize("mode", list(PurgeMode))
def test_daemon_killed_in_the_middle_of_a_purge_has_purged_all_or_nothing(
    tmp_path: Path, script: Path, mode: PurgeMode
) -> None:
    chance = random.Random(11)
    with LiveDaemon(tmp_path, script) as daemon:
        for _ in range(5):
            with daemon.client() as client:
                session, child = plant(client)
                purging = threading.Thread(target=_purge, args=(daemon, session, mode))
                purging.start()
                time.sleep(chance.uniform(0, 0.008))
                daemon.kill()
                purging.join(30)
            daemon.start()
            with daemon.client() as client:
                is_purged = session not in client.list_ids()
                assert (child in client.list_ids()) is (mode is PurgeMode.REROOT or not is_purged)
                if not is_purged:
                    assert SECRET in repr(client.read(session))  # what was appended, in one piece
                    client.ask(requests.Purge(session, 0, mode))
                assert traces(daemon) == []
                if mode is PurgeMode.REROOT:
                    assert "harmless" in repr(client.read(child))


def _purge(daemon: LiveDaemon, session: int, mode: PurgeMode) -> None:
    with suppress(OSError), daemon.client() as client:
        client.call(requests.Purge(session, 0, mode))
