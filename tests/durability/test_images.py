"""Images on a real daemon with a tiny vision model: seen, shared by forks, kept over restarts, swept when gone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.images import picture
from tests.fixtures.live_daemon import Calls, LiveDaemon, RefusedError
from tests.fixtures.tiny_gguf import write_tiny_model
from tests.fixtures.tiny_vision import write_tiny_vision

from superfluid.domain.events import Generated, Replace
from superfluid.native import requests, responses

RED, BLUE = picture(1), picture(2)
TOKENS = 12
OPTIONS = ("--flash-attn", "off", "--max-batch", "2", "--max-context", "1024", "--threads", "1")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LiveDaemon]:
    """In exact mode, with the projector beside the model."""
    with LiveDaemon(tmp_path, write_tiny_vision(tmp_path).model, *OPTIONS) as started:
        yield started


def put(client: Calls, content: bytes) -> str:
    reply = client.ask(requests.PutMedia(content, "image/png"))
    assert isinstance(reply, responses.Media)
    return reply.hash


def show(client: Calls, blob: str, *, before: str = "A picture of noise follows, look at it.") -> int:
    """A session that has been shown an image and asked something."""
    session = client.create()
    client.append(session, before)
    client.ask(requests.AppendImage(session, 1, blob, "Look:", "What is it?"))
    client.append(session, "Well?")
    return session


def reply(client: Calls, session: int) -> list[int]:
    """What the model says."""
    spans = [event.body.span for event in client.stream(session, TOKENS) if isinstance(event.body, Generated)]
    return [token for span in spans for token in span]


def test_reply_depends_on_the_image_and_survives_fork_kill_and_restart(daemon: LiveDaemon) -> None:
    with daemon.client() as client:
        red, blue = put(client, RED), put(client, BLUE)
        assert put(client, RED) == red
        first = show(client, red)
        length = len(client.read(first))
        expected = reply(client, first)
        assert reply(client, show(client, red)) == expected
        assert reply(client, show(client, blue)) != expected
        fork = client.make(requests.Fork(first, length, None))
        assert reply(client, fork) == expected
        assert daemon.kill_worker()
        assert reply(client, client.make(requests.Fork(first, length, None))) == expected
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        assert reply(client, client.make(requests.Fork(first, length, None))) == expected
        edited = client.make(requests.Rebase(first, (Replace(1, 2, 1, "Hm."),), None))
        inspected = client.inspect(edited)
        assert len(inspected.tokens) < len(client.inspect(first).tokens)
        reply(client, edited)


def test_worker_that_dies_over_an_image_is_replaced_and_the_reply_goes_on(daemon: LiveDaemon) -> None:
    with daemon.client() as client:
        red = put(client, RED)
        expected = reply(client, show(client, red))
        stream = client.stream(show(client, red), TOKENS)
        tokens: list[int] = []
        for event in stream:
            if isinstance(event.body, Generated):
                tokens += event.body.span
                if len(tokens) == 2:
                    assert daemon.kill_worker()
        assert tokens == expected


def test_media_go_when_nobody_shows_them(daemon: LiveDaemon) -> None:
    with daemon.client() as client:
        red, blue = put(client, RED), put(client, BLUE)
        show(client, red)
        swept = client.ask(requests.GcMedia())
        assert swept == responses.Gc(1, 1)
        assert [path.name for path in (daemon.sessions / "media").iterdir()] == [red]
        with pytest.raises(RefusedError, match="no blob"):
            client.ask(requests.AppendImage(client.create(), 1, blue, "", ""))


def test_what_is_no_image_is_refused_and_serving_goes_on(daemon: LiveDaemon) -> None:
    with daemon.client() as client:
        session = client.create()
        for content, reason in [(b"hello", "no PNG"), (RED[:150], "damaged"), (b"", "empty")]:
            with pytest.raises(RefusedError, match=reason):
                client.ask(requests.AppendImage(session, 1, put(client, content), "", ""))
        assert len(client.read(session)) == 1
        client.ask(requests.AppendImage(session, 1, put(client, RED), "", ""))


def test_large_media_pass_the_socket_and_the_web_listener(daemon: LiveDaemon) -> None:
    large = bytes(range(256)) * (20 << 12)
    with daemon.client() as client:
        blob = put(client, large)
    assert (daemon.sessions / "media" / blob).read_bytes() == large
    assert (daemon.sessions / "media" / blob).stat().st_mode & 0o777 == 0o600
    assert put(daemon.web_client(), large[: 3 << 20]) != blob


def test_text_model_refuses_images_with_the_reason(tmp_path: Path) -> None:
    with LiveDaemon(tmp_path, write_tiny_model(tmp_path / "m.gguf"), *OPTIONS) as daemon, daemon.client() as client:
        blob = put(client, RED)
        with pytest.raises(RefusedError, match="--mmproj"):
            client.ask(requests.AppendImage(client.create(), 1, blob, "", ""))


def test_projector_beside_a_model_that_it_does_not_fit_leaves_that_without_images(tmp_path: Path) -> None:
    write_tiny_vision(tmp_path)
    with LiveDaemon(tmp_path, write_tiny_model(tmp_path / "m.gguf"), *OPTIONS) as daemon, daemon.client() as client:
        with pytest.raises(RefusedError, match="does not fit this model"):
            client.ask(requests.AppendImage(client.create(), 1, put(client, RED), "", ""))
        session = client.create()
        client.append(session, "hello")
        assert reply(client, session)


def test_session_with_an_image_waits_for_a_model_that_sees(daemon: LiveDaemon, tmp_path: Path) -> None:
    with daemon.client() as client:
        session = show(client, put(client, RED))
    daemon.kill()
    (tmp_path / "mmproj-tiny.gguf").unlink()
    daemon.start()
    with daemon.client() as client:
        with pytest.raises(RefusedError, match="sees no images"):
            reply(client, session)
        assert client.inspect(session).tokens


def test_named_projector_that_does_not_fit_ends_the_start(tmp_path: Path) -> None:
    model, projector = write_tiny_model(tmp_path / "m.gguf"), write_tiny_vision(tmp_path).projector
    daemon = LiveDaemon(tmp_path, model, *OPTIONS, "--mmproj", str(projector))
    with pytest.raises(AssertionError, match="does not fit this model"), daemon:
        pass


def test_banner_says_that_the_model_sees(daemon: LiveDaemon) -> None:
    assert "sees images (idefics3)" in daemon.log
