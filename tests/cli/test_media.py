"""``superfluid media`` against a scripted server, and once against a real one."""

import hashlib
import json
from pathlib import Path

import pytest
from tests.fixtures.client_commands import run_client, run_command
from tests.fixtures.live_daemon import LiveDaemon
from tests.fixtures.scripted_socket import scripted_socket

from superfluid.native import requests, responses
from superfluid.native.frames import MAX_FRAME_BYTES
from superfluid.native.protocol import Request, Response


def pool(request: Request) -> Response:
    match request:
        case requests.PutMedia(content):
            return responses.Media(hashlib.sha256(content).hexdigest())
        case requests.GcMedia():
            return responses.Gc(2, 3)
        case _:
            return responses.Err("not expected")


def test_put_prints_the_hash_alone_and_sends_the_bytes_with_their_kind(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x00\xff\x80")
    with scripted_socket(pool) as server:
        ended = run_command("media", "put", tmp_path / "a.png", "--socket", server.path)
        as_json = run_command("media", "put", tmp_path / "a.png", "--json", f"--socket={server.path}")
        assert server.asked[0] == requests.PutMedia(b"\x00\xff\x80", "image/png")
    expected = hashlib.sha256(b"\x00\xff\x80").hexdigest()
    assert (ended.code, ended.out, ended.err) == (0, expected + "\n", "")
    assert json.loads(as_json.out) == {"hash": expected, "bytes": 3}


def test_gc_prints_what_it_kept_and_removed() -> None:
    with scripted_socket(pool) as server:
        ended = run_command("media", "gc", "--socket", server.path)
        as_json = run_command("media", "gc", "--json", "--socket", server.path)
    assert (ended.code, ended.out, ended.err) == (0, "kept 2, removed 3\n", "")
    assert json.loads(as_json.out) == {"kept": 2, "removed": 3}


def test_put_of_a_file_that_is_not_there_exits_1(tmp_path: Path) -> None:
    ended = run_command("media", "put", tmp_path / "absent.png")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == f"error: cannot read {tmp_path / 'absent.png'}: No such file or directory\n"


def test_put_of_a_file_too_large_for_a_frame_is_not_sent(tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(MAX_FRAME_BYTES + 1)
    with scripted_socket(pool) as server:
        ended = run_command("media", "put", large, "--socket", server.path)
        assert server.asked == []
    assert ended.code == 1
    assert "and a frame holds 67108864" in ended.err


@pytest.mark.parametrize("words", [["put"], ["put", "a", "b"], ["gc", "--yes"]])
def test_wrong_usage_shows_the_help_and_exits_2(words: list[str]) -> None:
    ended = run_command("media", *words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"Usage: superfluid media {words[0]} ")


def test_media_alone_shows_its_commands_on_stderr_and_exits_2() -> None:
    ended = run_command("media")
    assert (ended.code, ended.out) == (2, "")
    assert "  put  Store a file and print its hash." in ended.err


def test_put_and_gc_reach_a_real_pool(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"picture")
    with LiveDaemon(tmp_path) as daemon:
        put = run_client(daemon, "media", "put", tmp_path / "a.png")
        gc = run_client(daemon, "media", "gc", "--json")
    assert (put.code, put.out) == (0, hashlib.sha256(b"picture").hexdigest() + "\n")
    assert json.loads(gc.out) == {"kept": 0, "removed": 1}
