"""A small call between two turns of a long conversation, on a real daemon with one lane: that stays warm."""

import http.client
import json
import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.live_daemon import LiveDaemon
from tests.fixtures.tiny_gguf import write_tiny_model

OPTIONS = ("--max-batch", "1", "--max-context", "2048", "--flash-attn", "off")
TEXT = " ".join(f"stone {number} lies in the river" for number in range(40))
UTILITY = {
    "a few words": [{"role": "user", "content": "Name this chat."}],
    "its own system prompt": [
        {"role": "system", "content": "You write titles of three words, and nothing else."},
        {"role": "user", "content": "stone 1 lies in the river"},
    ],
}
SECONDS = 20.0
COPIED = "host_cache_entries"
WRITTEN = "superfluid_parks_total"

Start = Callable[..., LiveDaemon]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def make(*options: str) -> LiveDaemon:
        return LiveDaemon(tmp_path, write_tiny_model(tmp_path / "tiny.gguf", seed=3), *OPTIONS, *options)

    return make


def port_of(daemon: LiveDaemon) -> int:
    return int(re.findall(r"listening on http://127\.0\.0\.1:(\d+)", daemon.log)[-1])


def chat(daemon: LiveDaemon, messages: list[dict[str, str]]) -> tuple[str, dict[str, Any]]:
    """The reply and its usage."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(daemon), timeout=SECONDS)
    connection.request("GET", "/v1/models")
    model = json.load(connection.getresponse())["data"][0]["id"]
    body = {"model": model, "messages": messages, "max_tokens": 12, "temperature": 0}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    answer = json.load(connection.getresponse())
    connection.close()
    return answer["choices"][0]["message"]["content"], answer["usage"]


def page(daemon: LiveDaemon, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port_of(daemon)}{path}") as answer:
        text: str = answer.read().decode()
    return text


def metric(daemon: LiveDaemon, name: str) -> int:
    """A series of /metrics, or a number of /slots."""
    metrics = re.search(rf"^{name}(?:\{{[^}}]*\}})? (\d+)", page(daemon, "/metrics"), re.MULTILINE)
    found = metrics or re.search(rf'"{name}": ?(\d+)', page(daemon, "/slots"))
    return 0 if found is None else int(found[1])


def wait_for(daemon: LiveDaemon, name: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not metric(daemon, name):
        assert time.monotonic() < deadline, f"{name} stays at 0"
        time.sleep(0.01)


@pytest.mark.parametrize("utility", UTILITY.values(), ids=UTILITY)
@pytest.mark.parametrize(
    ("options", "awaited"),
    [
        ((), None),
        ((), COPIED),
        (("--host-cache-gb", "0"), None),
        (("--host-cache-gb", "0"), WRITTEN),
        (("--prefix-disk-gb", "0"), None),
    ],
    ids=["at once", "later", "no host cache, at once", "no host cache, later", "no disk, at once"],
)
def test_conversation_over_http_is_warm_after_a_utility_call(
    start: Start, options: tuple[str, ...], awaited: str | None, utility: list[dict[str, str]]
) -> None:
    with start(*options) as daemon:
        conversation = [{"role": "user", "content": TEXT}]
        reply, usage = chat(daemon, conversation)
        if awaited is not None:
            wait_for(daemon, awaited)
        chat(daemon, utility)
        conversation += [{"role": "assistant", "content": reply}, {"role": "user", "content": "And then?"}]
        if options[:1] == ("--host-cache-gb",):
            wait_for(daemon, WRITTEN)
        _, again = chat(daemon, conversation)
        assert again["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 2


@pytest.mark.parametrize("utility", UTILITY.values(), ids=UTILITY)
@pytest.mark.parametrize("options", [(), ("--host-cache-gb", "0"), ("--no-park",)], ids=" ".join)
def test_session_is_warm_after_a_utility_call(
    start: Start, options: tuple[str, ...], utility: list[dict[str, str]]
) -> None:
    with start(*options) as daemon, daemon.client() as client:
        session = client.create()
        for text in (TEXT, "And then?"):
            before = metric(daemon, "superfluid_warm_prefix_tokens_total")
            held = len(client.inspect(session).tokens)
            client.append(session, text)
            for _ in client.stream(session, 12):
                pass
            warm = metric(daemon, "superfluid_warm_prefix_tokens_total") - before
            chat(daemon, utility)
            if options[:1] == ("--host-cache-gb",):
                wait_for(daemon, WRITTEN)
        assert warm >= held - 2
