"""Which tier a session is said to be in, over its life: real daemons, a real engine with one lane."""

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.client_commands import run_client
from tests.fixtures.live_daemon import Calls, LiveDaemon, RefusedError
from tests.fixtures.tiny_gguf import write_tiny_model

from superfluid.domain.events import PurgeMode
from superfluid.native import requests, responses

OPTIONS = ("--max-batch", "1", "--max-context", "2048", "--flash-attn", "off")
FIRST = " ".join(f"stone {number} lies in the river" for number in range(40))
SECOND = " ".join(f"tree {number} stands on the hill" for number in range(40))
SECONDS = 20.0


def slots(daemon: LiveDaemon) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.http_port}/slots") as page:
        (entry,) = json.load(page)
        assert isinstance(entry, dict)
        return entry


def in_slots(daemon: LiveDaemon) -> dict[str, list[int]]:
    """The sessions by tier."""
    entry = slots(daemon)
    tiers = {"lane": "lanes", "memory": "host_cache", "disk": "disk_cache"}
    return {name: [part["session"] for part in entry[key]] for name, key in tiers.items()}


def turn(client: Calls, session: int, text: str) -> int:
    """The tokens that are computed then: all but the last one drawn."""
    client.append(session, text)
    for _ in client.stream(session, 12):
        pass
    return client.inspect(session).summary.tokens - 1


def warmth(client: Calls, session: int) -> responses.Warmth:
    reply = client.ask(requests.Warmth(session))
    assert isinstance(reply, responses.Warmth)
    return reply


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.01)


def test_session_is_in_a_lane_then_in_memory_then_on_the_disk_and_nowhere_when_it_is_purged(tmp_path: Path) -> None:
    daemon = LiveDaemon(tmp_path, write_tiny_model(tmp_path / "tiny.gguf", seed=3), *OPTIONS)
    with daemon:
        with daemon.client() as client:
            first, second = client.create(), client.create()
            tokens = turn(client, first, FIRST)
            wait_for(lambda: warmth(client, first).lane == tokens)
            assert in_slots(daemon)["lane"] == [first]
            assert slots(daemon)["lanes"][0]["kv_tokens"] == tokens
            turn(client, second, SECOND)
            wait_for(lambda: in_slots(daemon)["lane"] == [second])
            wait_for(lambda: warmth(client, first) == responses.Warmth(0, tokens, tokens))
            assert first in in_slots(daemon)["memory"]
            listed = json.loads(run_client(daemon, "session", "list", "--json").out)
            assert {row["id"]: row["warmth"]["memory"] for row in listed}[first] == tokens
        daemon.kill()

        daemon.start()
        with daemon.client() as client:
            wait_for(lambda: warmth(client, first) == responses.Warmth(0, 0, tokens))
            assert in_slots(daemon) | {"disk": []} == {"lane": [], "memory": [], "disk": []}
            turn(client, first, "And then?")
            turn(client, second, "And then?")
            wait_for(lambda: first in in_slots(daemon)["memory"])
            client.ask(requests.Purge(first, 0, PurgeMode.CASCADE))
            assert not any(first in sessions for sessions in in_slots(daemon).values())
            assert second in in_slots(daemon)["lane"]
            with pytest.raises(RefusedError, match="purged"):
                warmth(client, first)


def test_fork_is_warm_through_its_parent(tmp_path: Path) -> None:
    daemon = LiveDaemon(tmp_path, write_tiny_model(tmp_path / "tiny.gguf", seed=3), *OPTIONS, "--no-park")
    with daemon, daemon.client() as client:
        parent = client.create()
        tokens = turn(client, parent, FIRST)
        fork = client.make(requests.Fork(parent, 2, None))
        inherited = client.inspect(fork).summary.tokens
        wait_for(lambda: warmth(client, parent).lane == tokens)
        told = warmth(client, fork)
        assert inherited * 7 // 8 <= told.lane <= inherited
        assert told.disk == 0
