"""Reading bodies under a limit and parsing the big ones elsewhere."""

import threading
from typing import Any

import pytest

from superfluid.errors import PayloadTooLargeError
from superfluid.http.bodies import OFF_LOOP_BYTES, ClientGoneError, parse_body, read_body


class Feed:
    """``receive`` over given messages; counts how many were taken."""

    def __init__(self, *chunks: bytes, is_cut: bool = False) -> None:
        last = len(chunks) - 1
        self._messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": chunk, "more_body": is_cut or index < last}
            for index, chunk in enumerate(chunks)
        ]
        if is_cut:
            self._messages.append({"type": "http.disconnect"})
        self.taken = 0

    async def __call__(self) -> dict[str, Any]:
        self.taken += 1
        return self._messages[self.taken - 1]


async def test_read_body_joins_the_chunks() -> None:
    assert await read_body({"headers": []}, Feed(b"ab", b"", b"c"), 3) == b"abc"


async def test_read_body_announced_too_long_is_refused_before_reading() -> None:
    feed = Feed(b"abcd")
    with pytest.raises(PayloadTooLargeError):
        await read_body({"headers": [(b"content-length", b"4")]}, feed, 3)
    assert feed.taken == 0


async def test_read_body_growing_too_long_is_refused_on_the_way() -> None:
    feed = Feed(b"ab", b"cd", b"ef")
    with pytest.raises(PayloadTooLargeError):
        await read_body({"headers": []}, feed, 3)
    assert feed.taken == 2


async def test_read_body_cut_short_by_its_client_is_nobodys_error() -> None:
    with pytest.raises(ClientGoneError):
        await read_body({"headers": []}, Feed(b"ab", is_cut=True), 3)


@pytest.mark.parametrize(("size", "is_on_loop"), [(OFF_LOOP_BYTES, True), (OFF_LOOP_BYTES + 1, False)])
async def test_parse_body_leaves_the_event_loop_for_big_bodies(size: int, is_on_loop: bool) -> None:
    thread = await parse_body(b" " * size, lambda body: threading.get_ident())
    assert (thread == threading.get_ident()) is is_on_loop
