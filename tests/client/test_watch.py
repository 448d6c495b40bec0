"""What a watch makes of what the daemon sends, and of its absence."""

import asyncio
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest
from superfluid_client import (
    AsyncWatch,
    Chunk,
    RequestRefused,
    ServerUnreachable,
    SessionPurged,
    UnexpectedReply,
    UnknownSession,
)
from superfluid_client.postcard import encode_subscribe
from tests.client.scripted_network import ScriptedLink, ScriptedNetwork, Step

from superfluid.domain.events import EpochBump, Event, Purged, PurgeMode
from superfluid.native import postcard
from superfluid.native.responses import (
    Created,
    Err,
    Response,
    SubEnded,
    SubEvent,
    SubProvisional,
    Subscribed,
)

PATH = Path("/run/superfluid.sock")
GONE = ConnectionResetError("gone")
REFUSED = ConnectionRefusedError(111, "Connection refused")
SUBSCRIBED = Subscribed(4)
PURGED_EVENT = Event(2, 1, 0, Purged(1, PurgeMode.CASCADE))
PURGED = (SubEvent(4, PURGED_EVENT), SubEnded(4, "purged"))


def frame(*replies: Response) -> bytes:
    payloads = [postcard.response_codec().encode(reply) for reply in replies]
    return b"".join(struct.pack("<I", len(payload)) + payload for payload in payloads)


def events(*ids: int) -> bytes:
    return frame(*(SubEvent(4, Event(event_id, 1, 0, EpochBump())) for event_id in ids))


def link(*steps: Step) -> ScriptedLink:
    """Its first answer is that the subscription was taken."""
    return ScriptedLink([frame(SUBSCRIBED), *steps])


def watch(network: ScriptedNetwork, cursor: int = 0, patience: float = 60.0) -> AsyncWatch:
    return AsyncWatch(1, PATH, network, cursor, None, patience)


async def ids(watching: AsyncWatch) -> list[int]:
    return [event.id async for event in watching]


def subscribed_cursors(links: Iterable[ScriptedLink]) -> list[bytes]:
    return [link.sent[4:] for link in links]


async def test_watch_yields_backlog_and_news_until_the_session_is_purged() -> None:
    only = link(events(0, 1), frame(*PURGED))
    network = ScriptedNetwork(only)
    assert await ids(watch(network)) == [0, 1, 2]
    assert network.addresses == [PATH]
    assert only.sent == b"\x04\x00\x00\x00" + encode_subscribe(1, 0, provisional=False)
    assert only.is_closed


@pytest.mark.parametrize("size", [1, 3, 10])
async def test_watch_reads_frames_cut_anywhere(size: int) -> None:
    content = frame(SUBSCRIBED) + events(0, 1) + frame(*PURGED)
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    assert await ids(watch(ScriptedNetwork(ScriptedLink(pieces)))) == [0, 1, 2]


@pytest.mark.parametrize("end", [GONE, b""])
async def test_watch_goes_on_behind_the_last_event_when_the_daemon_was_away(end: Step) -> None:
    links = [link(events(0), end), link(events(1), end), link(frame(*PURGED))]
    network = ScriptedNetwork(links[0], REFUSED, FileNotFoundError(2, "No such file"), links[1], links[2])
    assert await ids(watch(network)) == [0, 1, 2]
    assert subscribed_cursors(links) == [encode_subscribe(1, cursor, provisional=False) for cursor in (0, 1, 2)]
    assert all(link.is_closed for link in links)


async def test_watch_pauses_longer_and_longer_while_nobody_answers() -> None:
    network = ScriptedNetwork(link(events(0), GONE), *[REFUSED] * 8, link(events(1), GONE), link(frame(*PURGED)))
    assert await ids(watch(network)) == [0, 1, 2]
    assert network.pauses[:9] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0]
    assert network.pauses[9:] == [0.05]


async def test_watch_that_fell_behind_subscribes_again_at_once() -> None:
    links = [link(events(0), frame(SubEnded(4, "lagged"))), link(events(1), frame(*PURGED))]
    network = ScriptedNetwork(*links)
    assert await ids(watch(network)) == [0, 1, 2]
    assert subscribed_cursors(links)[1] == encode_subscribe(1, 1, provisional=False)
    assert network.pauses == []


async def test_watch_whose_publisher_closed_subscribes_again_after_a_pause() -> None:
    network = ScriptedNetwork(link(events(0), frame(SubEnded(4, "publisher closed"))), link(events(1), frame(*PURGED)))
    assert await ids(watch(network)) == [0, 1, 2]
    assert network.pauses == [0.05]


async def test_watch_skips_what_it_has_seen() -> None:
    assert await ids(watch(ScriptedNetwork(link(events(0, 1, 0, 1), frame(*PURGED))))) == [0, 1, 2]


async def test_watch_that_misses_an_event_says_so() -> None:
    watching = watch(ScriptedNetwork(link(events(0, 2))))
    assert (await anext(watching)).id == 0
    with pytest.raises(UnexpectedReply, match="event 1 of session 1 was left out"):
        await anext(watching)
    assert await ids(watching) == []


async def test_watch_of_a_session_purged_meanwhile_ends() -> None:
    network = ScriptedNetwork(link(events(0), GONE), ScriptedLink([frame(Err("session 1 was purged"))]))
    assert await ids(watch(network)) == [0]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("session 1 was purged", SessionPurged),
        ("unknown session 1", UnknownSession),
        ("session 1: the stored record of event 3 is missing", RequestRefused),
    ],
)
async def test_watch_that_is_refused_raises(message: str, kind: type[RequestRefused]) -> None:
    only = ScriptedLink([frame(Err(message))])
    with pytest.raises(kind, match=message):
        await ids(watch(ScriptedNetwork(only)))
    assert only.is_closed


async def test_watch_waits_for_a_daemon_that_stops_or_loads() -> None:
    stopping = ScriptedLink([frame(Err("the server is shutting down and takes no new requests"))])
    loading = ScriptedLink([frame(Err("the model is still loading"))])
    network = ScriptedNetwork(stopping, loading, link(events(0, 1), frame(*PURGED)))
    assert await ids(watch(network)) == [0, 1, 2]
    assert len(network.pauses) == 2


@pytest.mark.parametrize("failure", [REFUSED, FileNotFoundError(2, "No such file or directory")])
async def test_watch_without_a_daemon_at_the_beginning_is_unreachable(failure: OSError) -> None:
    with pytest.raises(ServerUnreachable, match=r"superfluid\.sock: .*(refused|No such file)"):
        await ids(watch(ScriptedNetwork(failure)))


async def test_watch_gives_up_on_a_daemon_that_stays_away() -> None:
    watching = watch(ScriptedNetwork(link(events(0), GONE)), patience=0.0)
    assert (await anext(watching)).id == 0
    with pytest.raises(ServerUnreachable, match="gone"):
        await anext(watching)


async def test_watch_is_patient_from_the_loss_and_not_from_the_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("superfluid_client.async_watch.time.monotonic", lambda: now)
    watching = watch(ScriptedNetwork(link(events(0), GONE), link(events(1))), patience=60.0)
    await anext(watching)
    now = 10_000.0
    assert (await anext(watching)).id == 1


async def test_watch_hands_provisional_text_to_its_callback() -> None:
    shown: list[Chunk] = []
    texts = [SubProvisional(4, 0, "he"), SubProvisional(4, 1, "hm"), SubProvisional(4, 2, "{}")]
    only = link(frame(*texts), events(0, 1), frame(*PURGED))
    watching = AsyncWatch(1, PATH, ScriptedNetwork(only), 0, shown.append, 60.0)
    assert await ids(watching) == [0, 1, 2]
    assert shown == [Chunk("text", "he"), Chunk("reasoning", "hm")]
    assert only.sent[4:] == encode_subscribe(1, 0, provisional=True)


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", frame(Created(1)), b"\x01\x00\x00\x00\x63"])
async def test_watch_of_something_else_than_a_daemon_is_unexpected(garbage: bytes) -> None:
    with pytest.raises(UnexpectedReply):
        await ids(watch(ScriptedNetwork(ScriptedLink([garbage]))))


async def test_watch_that_is_cancelled_while_it_waits_loses_nothing() -> None:
    content = frame(SUBSCRIBED) + events(0)
    only = ScriptedLink([content[:12]])
    watching = watch(ScriptedNetwork(only))
    waiting = asyncio.create_task(watching.next_event())
    await only.is_starving.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    only.steps.extend([content[12:], events(1), frame(*PURGED)])
    assert await ids(watching) == [0, 1, 2]


async def test_watch_that_is_closed_ends() -> None:
    only = link(events(0, 1))
    async with watch(ScriptedNetwork(only), cursor=0) as watching:
        assert (await anext(watching)).id == 0
        assert watching.cursor == 1
    assert only.is_closed
    assert await ids(watching) == []


async def test_watch_that_is_dropped_hangs_up() -> None:
    only = link(events(0))
    async for event in watch(ScriptedNetwork(only)):
        assert event.id == 0
        break
    assert only.is_closed


def test_watch_with_a_cursor_that_is_none_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="no event"):
        watch(ScriptedNetwork(), cursor=-1)
