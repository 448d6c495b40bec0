"""A reply that was cut, by whatever, goes on with the tokens of the uncut one: llama.cpp in exact mode."""

from collections.abc import Iterator

import pytest
from tests.fixtures.live_daemon import Calls, LiveDaemon
from tests.fixtures.tiny_gguf import write_tiny_model

from superfluid.domain.events import Event, Generated, GenParams
from superfluid.domain.reply import Finish
from superfluid.native import requests, responses

SAMPLED = GenParams(0.8, 0.95, 0.0, 40, 2**63 + 11)
LENGTH = 48
# Deep enough that a reply takes a quarter of a second, so that it can be cut while it is going on.
SLOW_LAYERS = 120
ATTEMPTS = 10


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    home = tmp_path_factory.mktemp("continuation")
    model = write_tiny_model(home / "tiny.gguf", seed=3, layers=SLOW_LAYERS)
    options = ("--flash-attn", "off", "--max-batch", "4", "--max-context", "1024", "--stream-interval-ms", "0")
    with LiveDaemon(home, model, *options) as live:
        yield live


def chat(client: Calls) -> int:
    reply = client.ask(requests.Create(None, SAMPLED))
    assert isinstance(reply, responses.Created)
    client.append(reply.session, "Tell me a long story about rivers, please.")
    return reply.session


def drawn(client: Calls, session: int) -> list[int]:
    """The tokens of the session's reply."""
    bodies = [event.body for event in client.read(session)]
    return [token for body in bodies if isinstance(body, Generated) for token in body.span]


@pytest.fixture(scope="module")
def uncut(daemon: LiveDaemon) -> list[int]:
    with daemon.client() as client:
        session = chat(client)
        for _ in client.stream(session, LENGTH):
            pass
        tokens = drawn(client, session)
    assert len(tokens) == LENGTH, "the model must not end its turn early for these tests to mean something"
    return tokens


def finish(client: Calls, session: int) -> list[int]:
    rest = LENGTH - len(drawn(client, session))
    for _ in client.stream(session, rest):
        pass
    return drawn(client, session)


def test_reply_cut_at_max_tokens_goes_on_as_if_uncut(daemon: LiveDaemon, uncut: list[int]) -> None:
    with daemon.client() as client:
        session = chat(client)
        for count in (1, 2, 11, 20):
            *_, last = client.stream(session, count)
            assert isinstance(last.body, Generated)
            assert last.body.finish == 2
        assert drawn(client, session) == uncut[:34]
        assert finish(client, session) == uncut


def test_cancelled_reply_goes_on_as_if_uncut(daemon: LiveDaemon, uncut: list[int]) -> None:
    with daemon.client() as client, daemon.client() as other:
        for _ in range(ATTEMPTS):
            session = chat(client)
            for number, event in enumerate(client.stream(session, LENGTH)):
                if number == 0:
                    other.call(requests.Cancel(session))
                last = event
            assert isinstance(last.body, Generated)
            if last.body.finish == Finish.CANCELLED:
                break
        assert isinstance(last.body, Generated)
        assert last.body.finish == Finish.CANCELLED
        assert finish(client, session) == uncut


def test_fork_in_the_middle_of_a_reply_goes_on_as_its_parent_did(daemon: LiveDaemon, uncut: list[int]) -> None:
    with daemon.client() as client:
        session = chat(client)
        for _ in client.stream(session, LENGTH):
            pass
        events: list[Event] = [event for event in client.read(session) if isinstance(event.body, Generated)]
        fork = client.make(requests.Fork(session, events[len(events) // 2].event_id, None))
        assert finish(client, fork) == uncut


def test_reply_cut_by_a_killed_worker_goes_on_as_if_uncut(daemon: LiveDaemon, uncut: list[int]) -> None:
    with daemon.client() as client:
        for _ in range(ATTEMPTS):
            before = daemon.log.count("jobs=1")
            session = chat(client)
            for number, _ in enumerate(client.stream(session, LENGTH)):
                if number == 0:
                    assert daemon.kill_worker()
            assert drawn(client, session) == uncut
            # The log tells how many jobs the lost worker had.
            if daemon.log.count("jobs=1") > before:
                return
            finish(client, chat(client))
    pytest.fail("no reply was cut: the worker was faster than the kill each time")


def test_reply_cut_by_a_killed_daemon_goes_on_as_if_uncut(daemon: LiveDaemon, uncut: list[int]) -> None:
    for _ in range(ATTEMPTS):
        with daemon.client() as client:
            session = chat(client)
            told = [next(client.stream(session, LENGTH))]
            daemon.kill()
        daemon.start()
        with daemon.client() as client:
            log = client.read(session)
            assert [event for event in log if event in told] == told
            was_cut = len(drawn(client, session)) < LENGTH
            assert finish(client, session) == uncut
        if was_cut:
            return
    pytest.fail("no reply was cut: the daemon was faster than the kill each time")
