"""The client against a real daemon: what each side thinks the other does."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from superfluid_client import (
    Client,
    ConnectionLost,
    Drop,
    Finish,
    PurgeMode,
    RequestRefused,
    Sampling,
    SessionBusy,
    TreeNode,
    Unauthorized,
    UnknownSession,
)
from tests.client.real_server import EXAMPLES, RealServer, environment

WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
FREE_SPACE_CALL = '<tool_call>\n{"name": "free_space", "arguments": {"path": "/"}}\n</tool_call>'
SCRIPT = {
    "replies": [
        {"when": "It rains.", "text": "Take an umbrella."},
        {"when": "weather", "text": CALL},
        {"when": "are free", "text": "Plenty."},
        {"when": "does not allow", "text": "A pity."},
        {"when": "free space", "text": FREE_SPACE_CALL},
        {"when": "think", "text": "<think>\nGrüße\n</think>\n\nÜber alles."},
        {"when": "babble"},
        {"text": "Rhine, Rhône, Po."},
    ],
    "step_seconds": 0.005,
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with RealServer(tmp_path_factory.mktemp("home"), SCRIPT) as server:
        yield server


@pytest.fixture
def sf(daemon: RealServer) -> Client:
    return daemon.sf


def test_real_conversation_streams_and_reads_back(sf: Client) -> None:
    session = sf.session(Sampling(seed=1), system="Be brief.")
    session.user("Name three rivers.")
    chunks = list(session.stream(max_tokens=64))
    assert len(chunks) > 1
    assert {chunk.kind for chunk in chunks} == {"text"}
    assert session.last_reply is not None
    assert "".join(chunk.text for chunk in chunks) == session.last_reply.text == "Rhine, Rhône, Po."
    assert session.last_reply.finish is Finish.END_OF_TURN
    assert [(message.role, message.text) for message in session.messages()] == [
        ("system", "Be brief."),
        ("user", "Name three rivers."),
        ("assistant", "Rhine, Rhône, Po."),
    ]
    assert session.messages()[-1].finish is Finish.END_OF_TURN


@pytest.mark.parametrize("provisional", [False, True])
def test_real_reasoning_comes_in_its_own_chunks(sf: Client, provisional: bool) -> None:
    session = sf.session()
    session.user("Please think.")
    stream = session.stream(64, provisional=provisional)
    shown = {"text": "", "reasoning": ""}
    for chunk in stream:
        shown[chunk.kind] += chunk.text
    assert shown == {"text": stream.reply.text, "reasoning": stream.reply.reasoning}
    assert "Grüße" in stream.reply.reasoning
    assert stream.reply.text.strip() == "Über alles."
    reply = session.messages()[-1]
    assert (reply.text, reply.reasoning) == (stream.reply.text, stream.reply.reasoning)


def test_real_tool_call_is_answered(sf: Client) -> None:
    session = sf.session(system="Use the tools.", tools=[WEATHER])
    session.user("How is the weather in Paris?")
    (call,) = session.generate(256).tool_calls
    assert (call.name, call.json()) == ("get_weather", {"city": "Paris"})
    assert session.open_tool_calls() == [call]
    session.tool_result(call, "It rains.")
    assert session.open_tool_calls() == []
    assert session.generate(64).text == "Take an umbrella."
    assert [message.role for message in session.messages()] == ["system", "user", "assistant", "tool", "assistant"]


def test_real_branches_share_and_replace(sf: Client) -> None:
    session = sf.session(Sampling(temperature=0.5, seed=2**64 - 1))
    question = session.user("Name three rivers.")
    session.generate(64)
    fork = session.fork_after(question, seed=2**64 - 2)
    assert fork.events()[:2] == session.events()[:2]
    assert fork.inspect().sampling == Sampling(temperature=0.5, seed=2**64 - 2)
    fork.user("And lakes?")
    assert fork.generate(64).warm_prefix > 0
    assert session.fork().messages() == session.messages()
    assert [message.text for message in session.edit(question, "Name two.").messages()] == ["Name two."]
    kept = session.edit(question, "Name two.", keep_rest=True)
    assert [message.text for message in kept.messages()] == ["Name two.", "Rhine, Rhône, Po."]
    assert session.trim(2).messages() == session.messages()[:1]
    assert session.rebase([Drop(1, 2)]).messages()[0].role == "assistant"
    assert TreeNode(fork.id, session.id, 2) in sf.tree()
    assert session.inspect().sampling == Sampling(temperature=0.5, seed=2**64 - 1)


def test_real_listings_and_metrics_answer(sf: Client) -> None:
    session = sf.session()
    session.user("Hello")
    assert session.id in sf.session_ids()
    assert (session.id, session.event_count()) in [(summary.id, summary.events) for summary in sf.sessions()]
    assert "superfluid" in sf.metrics()
    sf.set_log_level("info")
    with pytest.raises(RequestRefused):
        sf.set_log_level("no=such=level")


def test_real_reply_cut_and_continued_is_the_uncut_one(sf: Client) -> None:
    session, whole = sf.session(Sampling(seed=9)), sf.session(Sampling(seed=9))
    for each in (session, whole):
        each.user("Please babble.")
    first = session.generate(20)
    assert (first.finish, first.tokens) == (Finish.LENGTH, 20)
    session.generate(30)
    assert session.messages()[-1].text == whole.generate(50).text


def test_real_loop_left_early_frees_the_session(sf: Client) -> None:
    session = sf.session()
    session.user("Please babble.")
    for chunk in session.stream(5_000):
        assert chunk.text
        break
    session.user("Enough. Name three rivers.")
    assert session.last_reply is not None
    assert session.last_reply.finish is Finish.CANCELLED
    assert session.generate(64).text == "Rhine, Rhône, Po."


async def test_real_task_cancelled_in_a_stream_frees_the_session(daemon: RealServer) -> None:
    async with daemon.async_client() as client:
        session = await client.session()
        await session.user("Please babble.")
        has_begun = asyncio.Event()

        async def read() -> None:
            async for _ in session.stream(5_000):
                has_begun.set()

        task = asyncio.create_task(read())
        await has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await session.user("Enough. Name three rivers.")
        assert (await session.generate(64)).text == "Rhine, Rhône, Po."
        cut = next(message for message in await session.messages() if message.role == "assistant")
        assert cut.finish is Finish.CANCELLED


def test_real_stream_closed_unread_frees_the_session(sf: Client) -> None:
    session = sf.session()
    session.user("Please babble.")
    session.stream(5_000).close()
    session.user("Enough. Name three rivers.")
    assert session.generate(64).text == "Rhine, Rhône, Po."


def test_real_cancel_from_another_thread_ends_the_stream(sf: Client) -> None:
    session = sf.session()
    session.user("Please babble.")
    stream = session.stream(5_000)
    next(stream)
    canceller = threading.Thread(target=sf.get(session.id).cancel)
    canceller.start()
    for _ in stream:
        pass
    canceller.join(30)
    assert stream.reply.finish is Finish.CANCELLED
    assert session.cancel() is False


def test_real_busy_session_refuses_and_goes_on(sf: Client) -> None:
    session = sf.session()
    session.user("Please babble.")
    with session.stream(5_000) as stream:
        next(stream)
        with pytest.raises(SessionBusy):
            session.generate(5)
        with pytest.raises(SessionBusy):
            session.user("Hello?")
        assert next(stream).text
    assert stream.reply.finish is Finish.CANCELLED


def test_real_forks_stream_at_the_same_time(sf: Client) -> None:
    session = sf.session()
    question = session.user("Name three rivers.")
    forks = [session.fork_after(question, seed=seed) for seed in range(6)]
    with ThreadPoolExecutor(len(forks)) as pool:
        replies = list(pool.map(lambda fork: fork.generate(64).text, forks))
    assert replies == ["Rhine, Rhône, Po."] * 6


def test_real_refusals_are_their_own_exceptions(sf: Client) -> None:
    with pytest.raises(UnknownSession):
        sf.get(10**9)
    with pytest.raises(UnknownSession):
        sf.session().client.call("Inspect", {"session": 10**9})
    with pytest.raises(Unauthorized):
        Client(sf.url, token="0" * 64).session_ids()
    with pytest.raises(RequestRefused):
        sf.call("NoSuchRequest", {"a": 1})
    with pytest.raises(RequestRefused):
        sf.session().generate(5)


def test_real_session_outlives_sigkill_and_its_client_object(tmp_path: Path) -> None:
    with RealServer(tmp_path, SCRIPT) as server:
        session = server.sf.session(Sampling(seed=3))
        session.user("Please babble.")
        stream = session.stream(5_000)
        for _ in range(10):
            next(stream)
        server.kill()
        with pytest.raises(ConnectionLost):
            list(stream)
        seen = stream.reply.events
        server.start()
        log = session.events()
        assert [event for event in log if event in seen] == list(seen)
        before = session.messages()[-1].text
        after = session.generate(10).text
        assert session.messages()[-1].text == before + after
        assert after


def test_example_pull_the_plug_shows_its_three_things(tmp_path: Path) -> None:
    arguments = ["--runtime", "fake", "--tokens", "4000", "--kill-after", "200"]
    output = run_example("pull_the_plug.py", tmp_path, *arguments)
    assert output.count("✔") == 3
    assert "4000 tokens" in output


def test_example_fanout_answers_from_warm_forks(daemon: RealServer) -> None:
    output = run_example("fanout.py", daemon.home, "--url", daemon.url)
    assert output.count("Rhine, Rhône, Po.") == 3
    assert " 0 tokens of the prompt" not in output
    assert re.search(r"Together: [\d,]+ of [\d,]+ prompt tokens were shared \(\d\d%\)", output)


@pytest.mark.parametrize(
    ("answer", "result", "state"), [("y", "GB are free", "succeeded"), ("n", "does not allow", "succeeded")]
)
def test_example_permission_asks_before_it_runs_a_function(
    daemon: RealServer, answer: str, result: str, state: str
) -> None:
    output = run_example("permission.py", daemon.home, "free space?", "--url", daemon.url, typed=f"{answer}\n")
    assert 'May I run free_space {"path": "/"}' in output
    assert f"free_space, {state}" in output
    log = daemon.sf.get(daemon.sf.session_ids()[-1]).events()
    assert result in next(event.text for event in log if event.kind == "ToolResult")
    assert [event.fields["granted"] for event in log if event.kind == "PermissionResponse"] == [answer == "y"]


def test_example_follow_shows_a_session_until_it_is_purged(daemon: RealServer) -> None:
    session = daemon.sf.session(system="Be brief.")
    session.user("Name three rivers.")
    session.generate(64)
    purging = threading.Timer(1.0, session.purge, [PurgeMode.REROOT])
    purging.start()
    output = run_example("follow.py", daemon.home, "--url", daemon.url, "--socket", str(daemon.socket))
    purging.join()
    assert output.splitlines() == [
        f"Session {session.id}. Ctrl-C ends.",
        "",
        "[Created]",
        "system: Be brief.",
        "user: Name three rivers.",
        "assistant: Rhine, Rhône, Po.",
        "[Purged]",
    ]


def run_example(name: str, home: Path, *arguments: str, typed: str = "") -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    environ = {**environment(home), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, env=environ, input=typed, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
