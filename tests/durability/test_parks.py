"""States on the disk, with real daemons and engines: warm after a kill, gone after a purge, absent if unwanted."""

import http.client
import json
import re
import time
import urllib.request
from array import array
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.live_daemon import Calls, LiveDaemon
from tests.fixtures.tiny_gguf import write_tiny_model

from superfluid.domain.events import PurgeMode
from superfluid.native import requests, responses

OPTIONS = ("--max-batch", "4", "--max-context", "2048", "--flash-attn", "off")
TEXT = " ".join(f"stone {number} lies in the river" for number in range(40))
OTHER_TEXT = " ".join(f"tree {number} stands on the hill" for number in range(40))
SECONDS = 20.0


@pytest.fixture
def daemon(tmp_path: Path) -> LiveDaemon:
    return LiveDaemon(tmp_path, write_tiny_model(tmp_path / "tiny.gguf", seed=3), *OPTIONS)


def files(daemon: LiveDaemon) -> list[Path]:
    return sorted((daemon.sessions / "kv").glob("*.kv"))


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.01)


def http_port(daemon: LiveDaemon) -> int:
    found = re.findall(r"listening on http://127\.0\.0\.1:(\d+)", daemon.log)
    return int(found[-1])


def chat(daemon: LiveDaemon, messages: list[dict[str, str]]) -> tuple[str, dict[str, Any]]:
    """The reply and its usage."""
    port = http_port(daemon)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as models:
        model = json.load(models)["data"][0]["id"]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    body = {"model": model, "messages": messages, "max_tokens": 12, "temperature": 0}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    answer = json.load(connection.getresponse())
    connection.close()
    return answer["choices"][0]["message"]["content"], answer["usage"]


def session_turn(client: Calls, session: int, text: str) -> None:
    client.append(session, text)
    for _ in client.stream(session, 12):
        pass


def cached_tokens(daemon: LiveDaemon) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port(daemon)}/metrics") as page:
        text = page.read().decode()
    found = re.search(r"^superfluid_warm_prefix_tokens_total (\d+)$", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_session_and_stateless_conversation_are_warm_after_a_kill(daemon: LiveDaemon) -> None:
    with daemon:
        with daemon.client() as client:
            session = client.create()
            session_turn(client, session, TEXT)
        conversation = [{"role": "user", "content": OTHER_TEXT}]
        reply, usage = chat(daemon, conversation)
        assert usage["prompt_tokens_details"]["cached_tokens"] < 40
        wait_for(lambda: len(files(daemon)) == 2)
        daemon.kill()

        daemon.start()
        with daemon.client() as client:
            inspection = client.inspect(session)
            tier = inspection.tier
            assert isinstance(tier, responses.Parked)
            assert tier.covered == inspection.summary.tokens - 1
            session_turn(client, session, "And then?")
        assert cached_tokens(daemon) >= tier.covered
        conversation += [{"role": "assistant", "content": reply}, {"role": "user", "content": "And then?"}]
        _, again = chat(daemon, conversation)
        assert again["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"]


def test_purged_session_leaves_no_token_in_any_file_and_its_neighbour_stays_warm(daemon: LiveDaemon) -> None:
    with daemon:
        with daemon.client() as client:
            secret, other = client.create(), client.create()
            session_turn(client, secret, TEXT)
            session_turn(client, other, OTHER_TEXT)
            wait_for(lambda: len(files(daemon)) == 2)
            tokens = list(client.inspect(secret).tokens)
            packed = array("i", tokens[200:220]).tobytes()
            assert any(packed in path.read_bytes() for path in files(daemon))
            client.ask(requests.Purge(secret, 0, PurgeMode.CASCADE))
            assert len(files(daemon)) == 1
            assert not any(packed in path.read_bytes() for path in daemon.sessions.rglob("*") if path.is_file())
            assert isinstance(client.inspect(other).tier, responses.Parked)
        daemon.kill()
        daemon.start()
        with daemon.client() as client:
            assert isinstance(client.inspect(other).tier, responses.Parked)
        assert not any(packed in path.read_bytes() for path in daemon.sessions.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("options", "kinds"), [(("--no-park",), "r"), (("--prefix-disk-gb", "0"), "s"), ((), "rs")], ids=str
)
def test_kinds_of_states_are_kept_as_the_flags_say(tmp_path: Path, options: tuple[str, ...], kinds: str) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", seed=3)
    with LiveDaemon(tmp_path, model, *OPTIONS, *options) as live:
        with live.client() as client:
            session_turn(client, client.create(), TEXT)
        chat(live, [{"role": "user", "content": OTHER_TEXT}])
        wait_for(lambda: len(files(live)) == len(kinds))
    # Whatever was not written by now is written at the stop.
    assert "".join(path.name[0] for path in files(live)) == kinds
    assert {path.stat().st_mode & 0o777 for path in files(live)} == {0o600}
    assert (live.sessions / "kv").stat().st_mode & 0o777 == 0o700

    with LiveDaemon(tmp_path, model, *OPTIONS, "--no-park", "--prefix-disk-gb", "0"):
        assert files(live) == []


def test_directory_that_is_emptied_under_a_running_server_costs_warmth_only(daemon: LiveDaemon) -> None:
    with daemon, daemon.client() as client:
        session = client.create()
        session_turn(client, session, TEXT)
        wait_for(lambda: files(daemon))
        for path in files(daemon):
            path.unlink()
        session_turn(client, session, "And then?")
        wait_for(lambda: files(daemon))
