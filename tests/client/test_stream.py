"""Streams: their pieces, their end, and what leaving them does."""

import threading
from collections.abc import Iterator

import pytest
from superfluid_client import (
    Chunk,
    Client,
    ConnectionLost,
    Finish,
    GenerationFailed,
    ModelLoading,
    SessionBusy,
    UnexpectedReply,
    UnknownSession,
)
from superfluid_client.session import Session
from tests.client.fake_web_server import FakeSession, FakeWebServer, Frame, done, say, wait_until


@pytest.fixture
def session(client: Client) -> Session:
    session = client.session()
    session.user("Name three rivers.")
    return session


def test_stream_yields_a_piece_a_token_and_leaves_the_reply(session: Session) -> None:
    stream = session.stream(max_tokens=64)
    assert list(stream) == [Chunk("text", text) for text in ("Rhine", ", ", "Rhône", ", ", "Po")]
    assert session.last_reply == stream.reply
    assert (stream.reply.text, stream.reply.finish, stream.reply.tokens) == ("Rhine, Rhône, Po", Finish.END_OF_TURN, 5)
    assert list(stream) == []


def test_stream_tells_the_listener_what_is_asked(server: FakeWebServer, session: Session) -> None:
    list(session.stream(3, provisional=True))
    assert server.requests[-1] == ("/web/stream", {"session": 1, "max_tokens": 3, "provisional": True})


def test_stream_cut_at_max_tokens_goes_on_in_the_same_reply(session: Session) -> None:
    assert session.generate(2).finish is Finish.LENGTH
    assert session.generate(64).text == "Rhône, Po"
    assert [message.text for message in session.messages()] == ["Name three rivers.", "Rhine, Rhône, Po"]


def test_stream_provisional_text_is_yielded_once(server: FakeWebServer, session: Session) -> None:
    def model(fake: FakeSession, _: int) -> Iterator[Frame]:
        yield "provisional", {"channel": 1, "text": "hm"}
        yield "provisional", {"channel": 0, "text": "Ye"}
        yield fake.generated("hm", 1)
        yield fake.generated("Yes", 0, 1)
        yield done(2)
        yield "provisional", {"channel": 0, "text": "s"}

    server.model = model
    chunks = list(session.stream(64, provisional=True))
    assert chunks == [Chunk("reasoning", "hm"), Chunk("text", "Ye"), Chunk("text", "s")]


def test_loop_left_early_cancels_and_frees_the_session(server: FakeWebServer, session: Session) -> None:
    server.between_frames = lambda fake: _wait_for_second_frame(fake)
    for chunk in session.stream(64):
        assert chunk.text == "Rhine"
        break
    assert server.last_rpc == {"Cancel": {"session": 1}}
    assert session.last_reply is not None
    assert (session.last_reply.text, session.last_reply.finish) == ("Rhine", Finish.CANCELLED)
    assert session.user("Enough.").kind == "Message"


def _wait_for_second_frame(fake: FakeSession) -> None:
    assert fake.is_cancelled.wait(30)


def test_loop_left_by_an_exception_cancels(server: FakeWebServer, session: Session) -> None:
    server.between_frames = lambda fake: _wait_for_second_frame(fake)

    def interrupted() -> None:
        for _ in session.stream(64):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert server.last_rpc == {"Cancel": {"session": 1}}


def test_with_block_left_early_cancels(server: FakeWebServer, session: Session) -> None:
    server.between_frames = lambda fake: _wait_for_second_frame(fake)
    with session.stream(64) as stream:
        next(stream)
    assert stream.reply.finish is Finish.CANCELLED
    assert list(stream) == []


def test_stream_closed_before_its_first_frame_hangs_up_and_cancels_nobody_else(
    server: FakeWebServer, session: Session
) -> None:
    accepted, hung_up = threading.Event(), threading.Event()

    def model(fake: FakeSession, _: int) -> Iterator[Frame]:
        accepted.set()
        assert hung_up.wait(30)
        # Enough for the socket to notice.
        for _number in range(10_000):
            yield fake.generated("word " * 100)

    server.model = model
    stream = session.stream(64)
    assert accepted.wait(30)
    stream.close()
    hung_up.set()
    # The session is busy until the listener notices; appending waits for that.
    assert session.user("Something else.").kind == "Message"
    assert server.hang_ups.acquire(timeout=30)
    assert not any("Cancel" in body for _, body in server.requests)


def test_stream_of_a_busy_session_is_refused_and_closing_it_leaves_the_other_alone(
    server: FakeWebServer, session: Session
) -> None:
    go_on = threading.Event()
    server.between_frames = lambda _: _wait(go_on)
    first = session.stream(64)
    next(first)
    with pytest.raises(SessionBusy, match="is generating"):
        session.generate(64)
    go_on.set()
    assert len(list(first)) == 4
    assert first.reply.finish is Finish.END_OF_TURN


def _wait(event: threading.Event) -> None:
    assert event.wait(30)


def test_cancel_from_another_thread_ends_the_stream(server: FakeWebServer, session: Session) -> None:
    server.between_frames = lambda fake: _wait_for_second_frame(fake)
    stream = session.stream(64)
    next(stream)
    canceller = threading.Thread(target=session.cancel)
    canceller.start()
    assert list(stream) == []
    canceller.join(30)
    assert stream.reply.finish is Finish.CANCELLED


def test_cancel_of_an_idle_session_is_false(session: Session) -> None:
    assert session.cancel() is False


def test_stream_of_an_unknown_session_is_refused(client: Client) -> None:
    with pytest.raises(UnknownSession):
        client.session_of(99).generate(64)


def test_stream_waits_for_a_model_that_is_loading(server: FakeWebServer, session: Session) -> None:
    server.refusals_while_loading = 2
    assert session.generate(64).text == "Rhine, Rhône, Po"
    assert sum(path == "/web/stream" for path, _ in server.requests) == 3


def test_stream_of_a_model_that_loads_for_too_long_is_refused(server: FakeWebServer, session: Session) -> None:
    server.refusals_while_loading = 1_000
    hasty = Client(server.url, token_file=server.token_file, timeout=0.05)
    with pytest.raises(ModelLoading):
        hasty.session_of(session.id).generate(64)


def test_stream_that_is_refused_leaves_the_last_reply(server: FakeWebServer, session: Session) -> None:
    session.generate(64)
    server.sessions[1].is_busy = True
    with pytest.raises(SessionBusy):
        session.generate(64)
    assert session.last_reply is not None
    assert session.last_reply.text == "Rhine, Rhône, Po"


def test_stream_that_fails_midway_keeps_what_was_committed(server: FakeWebServer, session: Session) -> None:
    def model(fake: FakeSession, _: int) -> Iterator[Frame]:
        yield fake.generated("Rhi")
        yield "error", "the engine refused a step"

    server.model = model
    with pytest.raises(GenerationFailed, match="refused a step"):
        session.generate(64)
    assert session.last_reply is not None
    assert session.last_reply.text == "Rhi"


def test_stream_that_breaks_off_is_lost_and_keeps_what_was_committed(server: FakeWebServer, session: Session) -> None:
    def model(fake: FakeSession, _: int) -> Iterator[Frame]:
        yield fake.generated("Rhi")
        yield "cut", None

    server.model = model
    stream = session.stream(64)
    assert next(stream) == Chunk("text", "Rhi")
    with pytest.raises(ConnectionLost):
        next(stream)
    assert session.last_reply is not None
    assert (session.last_reply.text, session.last_reply.finish) == ("Rhi", Finish.NONE)


@pytest.mark.parametrize("text", ["{", "[]", '{"what":1}', '{"committed":{}}'])
def test_stream_with_a_frame_that_is_none_is_unexpected(server: FakeWebServer, session: Session, text: str) -> None:
    server.model = lambda *_: iter([("raw", text)])
    with pytest.raises(UnexpectedReply):
        session.generate(64)


def test_stream_without_a_summary_is_unexpected(server: FakeWebServer, session: Session) -> None:
    server.model = lambda fake, _: iter([fake.generated("x")])
    with pytest.raises(UnexpectedReply, match="without saying"):
        session.generate(64)


def test_streams_started_together_run_together(server: FakeWebServer, session: Session) -> None:
    server.model = say("a", "b", "c")
    streams = [session.fork(seed=seed).stream(64) for seed in (1, 2, 3)]
    wait_until(lambda: sum(path == "/web/stream" for path, _ in server.requests) == 3)
    assert ["".join(chunk.text for chunk in stream) for stream in streams] == ["abc"] * 3
