"""What replies say of tokens guessed ahead, over HTTP: a real server with the fake engine in its worker."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.http_daemon import HttpDaemon, streamed_text

from superfluid.domain.reply import Finish, ReplyFinished
from superfluid.http.openai_frames import guess_extras

_SAID = "one two three four five six seven eight nine ten, " * 8
_SPECULATION = ("--speculate", "prompt-lookup", "--no-spec-throughput-gate", "--spec-min-yield", "0")
_NOTHING_REPEATED = "".join(chr(code) for code in range(33, 126))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "script.json").write_text(
        json.dumps({"replies": [{"when": "plainly", "text": _NOTHING_REPEATED}, {"text": _SAID}]})
    )
    return home


@pytest.fixture(scope="module")
def daemon(home: Path) -> Iterator[HttpDaemon]:
    with HttpDaemon(home, str(home / "script.json"), "--runtime", "fake", *_SPECULATION, model="fake") as daemon:
        yield daemon


def _check(spec: dict[str, Any], completion_tokens: int) -> None:
    assert set(spec) == {"proposed", "accepted", "acceptance_rate"}
    assert 0 < spec["accepted"] <= spec["proposed"]
    assert spec["accepted"] < completion_tokens
    assert spec["acceptance_rate"] == pytest.approx(spec["accepted"] / spec["proposed"], abs=1e-4)


def test_answer_tells_how_many_guesses_were_right(daemon: HttpDaemon) -> None:
    _, answer = daemon.chat("Count.", temperature=0)
    assert answer["choices"][0]["message"]["content"] == _SAID
    _check(answer["superfluid"]["spec"], answer["usage"]["completion_tokens"])
    assert set(answer["usage"]) == {
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_tokens_details",
    }


def test_stream_tells_it_in_its_last_chunk_only(daemon: HttpDaemon) -> None:
    frames = daemon.stream("Count.", temperature=0)
    told = [frame for frame in frames if "superfluid" in frame]
    assert told == frames[-1:]
    assert "warm" in told[0]["superfluid"]
    _check(told[0]["superfluid"]["spec"], told[0]["usage"]["completion_tokens"])


def test_answer_with_several_replies_tells_the_sum(daemon: HttpDaemon) -> None:
    _, one = daemon.chat("Count.", temperature=0)
    _, three = daemon.chat("Count.", temperature=0, n=3)
    assert [choice["message"]["content"] for choice in three["choices"]] == [_SAID] * 3
    assert three["superfluid"]["spec"]["proposed"] > 2 * one["superfluid"]["spec"]["proposed"]
    _check(three["superfluid"]["spec"], three["usage"]["completion_tokens"])


def test_completion_tells_it_too(daemon: HttpDaemon) -> None:
    body = {"model": "fake", "prompt": "ab" * 100, "max_tokens": 60, "temperature": 0}
    with daemon.request("POST", "/v1/completions", body) as response:
        answer = json.loads(response.read())
    proposed = answer.get("superfluid", {}).get("spec", {}).get("proposed", 0)
    assert (proposed > 0) == ("superfluid" in answer)
    assert answer["usage"]["completion_tokens"] == 60


@pytest.mark.parametrize("fields", [{}, {"logprobs": True}], ids=["nothing to copy", "scores"])
def test_answer_for_which_nothing_was_guessed_tells_nothing(daemon: HttpDaemon, fields: dict[str, Any]) -> None:
    _, answer = daemon.chat("Count." if fields else "Speak plainly.", temperature=0, **fields)
    assert "superfluid" not in answer
    frames = daemon.stream("Count." if fields else "Speak plainly.", temperature=0, **fields)
    assert set(frames[-1]["superfluid"]) == {"warm"}


def test_stop_string_inside_a_right_guess_ends_the_reply_there(daemon: HttpDaemon) -> None:
    """The second time it is said it comes out of a guess, with more behind it."""
    stop = "six"
    head = _SAID.split(stop)[0]
    _, answer = daemon.chat(_SAID + "Count.", temperature=0, stop=[stop])
    assert answer["choices"][0]["message"]["content"] == head
    assert answer["choices"][0]["finish_reason"] == "stop"
    # The fake vocabulary has a token for each byte.
    assert answer["usage"]["completion_tokens"] == len(head + stop)
    assert answer["superfluid"]["spec"]["accepted"] <= len(head + stop)


@pytest.mark.parametrize("limit", [1, 2, 50, 101, 102, 103])
def test_limit_inside_a_right_guess_ends_the_reply_there(daemon: HttpDaemon, limit: int) -> None:
    _, answer = daemon.chat("Count.", temperature=0, max_tokens=limit)
    assert answer["choices"][0]["message"]["content"] == _SAID[:limit]
    assert answer["usage"]["completion_tokens"] == limit
    assert answer["choices"][0]["finish_reason"] == "length"


def test_server_that_guesses_gives_the_sampled_text_of_one_that_does_not(
    daemon: HttpDaemon, home: Path, tmp_path: Path
) -> None:
    """At this temperature the script is only the likeliest text."""
    sampled = {"temperature": 1.0, "max_tokens": 80, "ignore_eos": True}
    with HttpDaemon(tmp_path, str(home / "script.json"), "--runtime", "fake") as plain:
        for seed in range(3):
            body = {"prompt": "abcdefgh" * 12, "seed": seed, **sampled}
            texts = []
            for server in (daemon, plain):
                with server.request("POST", "/v1/completions", {"model": server.model, **body}) as response:
                    texts.append(json.loads(response.read())["choices"][0]["text"])
            assert texts[0] == texts[1]


@pytest.mark.parametrize("way", ["prompt-lookup", "draft-model"])
def test_reply_with_guesses_goes_on_when_its_worker_is_killed(tmp_path: Path, way: str) -> None:
    script = tmp_path / "slow.json"
    script.write_text(json.dumps({"replies": [{"text": _SAID}], "step_seconds": 0.02}))
    draft = tmp_path / "draft.json"
    draft.write_text(json.dumps({"replies": [{"text": _SAID}], "step_seconds": 0.002}))
    strategy = way if way == "prompt-lookup" else f"{way}:{draft}"
    options = ("--runtime", "fake", "--speculate", strategy, *_SPECULATION[2:])
    with HttpDaemon(tmp_path, str(script), *options) as daemon:
        first = daemon.worker_pid()
        frames = daemon.stream(
            "Count.", temperature=0, on_text=lambda count: os.kill(first, signal.SIGKILL) if count == 8 else None
        )
        assert daemon.worker_pid() != first
    assert streamed_text(frames) == _SAID
    assert frames[-1]["usage"]["completion_tokens"] == len(_SAID) + 1
    _check(frames[-1]["superfluid"]["spec"], len(_SAID) + 1)


def test_extras_of_replies_without_guesses_are_none() -> None:
    plain = ReplyFinished(Finish.LENGTH, 5, 0, 7)
    assert guess_extras([plain, plain]) == {}
    guessed = ReplyFinished(Finish.LENGTH, 5, 0, 7, guessed_tokens=3, right_guesses=1)
    assert guess_extras([plain, guessed]) == {"spec": {"proposed": 3, "accepted": 1, "acceptance_rate": 0.3333}}
