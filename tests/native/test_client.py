"""The blocking client against a scripted server on a real socket."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fixtures.short_paths import short_directory

from superfluid.domain.events import GenParams
from superfluid.errors import ConnectionLostError, RequestRefusedError, ServerUnreachableError
from superfluid.native import postcard, requests, responses
from superfluid.native.client import SessionClient
from superfluid.native.frames import MAX_FRAME_BYTES, encode_frame
from superfluid.native.protocol import Response

Script = Callable[[socket.socket], None]


@pytest.fixture
def path() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory / "s.sock"


def serve_one(path: Path, script: Script) -> threading.Thread:
    """Runs ``script`` on the first connection to ``path``, then closes it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def run() -> None:
        connection, _ = listener.accept()
        with listener, connection:
            script(connection)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def frame(response: Response) -> bytes:
    return encode_frame(postcard.response_codec().encode(response))


def answering(*replies: Response) -> Script:
    """Answers that many requests, in order."""

    def script(connection: socket.socket) -> None:
        with connection.makefile("rb") as reader:
            for reply in replies:
                (length,) = struct.unpack("<I", reader.read(4))
                reader.read(length)
                connection.sendall(frame(reply))

    return script


def wait_for(hold: threading.Event) -> None:
    assert hold.wait(30)


def test_ask_returns_the_reply_of_the_type(path: Path) -> None:
    thread = serve_one(path, answering(responses.Created(7)))
    with SessionClient(path) as client:
        created = client.ask(requests.Create(None, GenParams(0.5, 1.0, 0.0, 0, 1)), responses.Created)
    thread.join()
    assert created == responses.Created(7)


def test_ask_when_the_server_refuses_raises_its_message(path: Path) -> None:
    thread = serve_one(path, answering(responses.Err("unknown session 9")))
    with SessionClient(path) as client, pytest.raises(RequestRefusedError, match=r"^unknown session 9$"):
        client.ask(requests.Read(9, 0), responses.Events)
    thread.join()


def test_ask_when_another_reply_comes_is_a_lost_connection(path: Path) -> None:
    thread = serve_one(path, answering(responses.Ack()))
    with SessionClient(path) as client, pytest.raises(ConnectionLostError, match=r"answered Ack where Events was due"):
        client.ask(requests.Read(9, 0), responses.Events)
    thread.join()


def test_ask_all_gives_one_reply_a_request_in_order_refusals_included(path: Path) -> None:
    expected = [responses.Err("no") if number % 7 == 0 else responses.Meta(number) for number in range(40)]
    thread = serve_one(path, answering(*expected))
    with SessionClient(path) as client:
        replies = client.ask_all([requests.Read(number, 0) for number in range(40)])
    thread.join()
    assert replies == expected


@pytest.mark.parametrize("name", ["absent.sock", "no/such/directory.sock"])
def test_client_with_nobody_there_names_the_path_and_the_remedy(tmp_path: Path, name: str) -> None:
    with pytest.raises(ServerUnreachableError) as raised:
        SessionClient(tmp_path / name)
    assert str(tmp_path / name) in raised.value.message
    assert "`superfluid serve` starts one" in raised.value.message


def test_client_with_a_socket_file_that_nobody_listens_on_names_the_path(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(str(path))
    with pytest.raises(ServerUnreachableError, match=r"no server answers at .*/s.sock"):
        SessionClient(path)


def test_client_with_a_path_too_long_for_a_socket_says_so(tmp_path: Path) -> None:
    with pytest.raises(ServerUnreachableError, match=r"cannot reach a server at .*too long"):
        SessionClient(tmp_path / ("x" * 200))


def test_ask_when_the_server_closes_is_a_lost_connection(path: Path) -> None:
    thread = serve_one(path, lambda connection: None)
    with SessionClient(path) as client:
        thread.join()
        with pytest.raises(ConnectionLostError, match=r"lost the server at .*s.sock"):
            client.ask(requests.List(), responses.Sessions)


def test_ask_when_the_server_is_silent_ends_at_its_deadline(path: Path) -> None:
    hold = threading.Event()
    thread = serve_one(path, lambda connection: wait_for(hold))
    silent = pytest.raises(ConnectionLostError, match=r"has not answered for 0\.05 s")
    with SessionClient(path, reply_seconds=0.05) as client, silent:
        client.ask(requests.List(), responses.Sessions)
    hold.set()
    thread.join()


@pytest.mark.parametrize(
    "garbage", [b"\x01\x00\x00\x00\xff", struct.pack("<I", MAX_FRAME_BYTES + 1)], ids=["payload", "length"]
)
def test_ask_when_something_else_answers_is_a_lost_connection(path: Path, garbage: bytes) -> None:
    def script(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(garbage)

    thread = serve_one(path, script)
    with SessionClient(path) as client, pytest.raises(ConnectionLostError, match=r"is no superfluid server"):
        client.ask(requests.List(), responses.Sessions)
    thread.join()


def test_receive_with_nothing_there_returns_none(path: Path) -> None:
    hold = threading.Event()
    thread = serve_one(path, lambda connection: wait_for(hold))
    with SessionClient(path) as client:
        assert client.receive(0) is None
        assert client.receive(0.01) is None
        hold.set()
    thread.join()


def test_receive_takes_frames_that_come_in_pieces_and_several_at_once(path: Path) -> None:
    whole = frame(responses.Created(300))

    def script(connection: socket.socket) -> None:
        connection.sendall(whole[:3])
        connection.sendall(whole[3:] + whole + whole[:5])
        connection.sendall(whole[5:])

    thread = serve_one(path, script)
    with SessionClient(path) as client:
        assert [client.receive(5) for _ in range(3)] == [responses.Created(300)] * 3
    thread.join()


def test_send_refuses_what_no_frame_holds_and_the_connection_stays_of_use(path: Path) -> None:
    thread = serve_one(path, answering(responses.Ack()))
    with SessionClient(path) as client:
        with pytest.raises(RequestRefusedError, match=r"and a frame holds 67108864"):
            client.send(requests.PutMedia(bytes(MAX_FRAME_BYTES), "image/png"))
        with pytest.raises(RequestRefusedError, match=r"cannot be sent"):
            client.send(requests.AppendMessage(1, 1, "half a surrogate pair \ud800"))
        assert client.ask(requests.SetBackgroundRate(2), responses.Ack) == responses.Ack()
    thread.join()
