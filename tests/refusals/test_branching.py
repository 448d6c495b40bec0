"""What creating, forking, trimming and rebasing refuse, and with which words. Over every transport."""

import pytest
from tests.fixtures.refusal_stage import TRANSPORTS, Listeners, Refusal, check, refused
from tests.fixtures.session_core import PARAMS, USER, SessionCore

from superfluid.domain.events import Drop, RebaseEdit, Replace
from superfluid.native import requests, responses
from superfluid.native.protocol import Request

pytestmark = pytest.mark.asyncio(loop_scope="module")

BEYOND = 2**64 - 1


async def _three_messages(core: SessionCore) -> None:
    """Session 1 with events 0 to 3."""
    assert await core.chat((USER, "a"), (USER, "b"), (USER, "c")) == 1


def _rebase(name: str, edits: tuple[RebaseEdit, ...], message: str) -> Refusal:
    async def ask(core: SessionCore) -> Request:
        await _three_messages(core)
        return requests.Rebase(1, edits, None)

    return Refusal(f"rebase {name}", ask, message)


ROWS = [
    refused("create under a parent that is not there", requests.Create(9, PARAMS), "unknown session 9"),
    refused("fork at 0", requests.Fork(1, 0, None), "event 0 is no fork point: this session allows 1 to 2"),
    refused("fork past the end", requests.Fork(1, 3, None), "event 3 is no fork point: this session allows 1 to 2"),
    refused(
        "fork far past the end",
        requests.Fork(1, BEYOND, PARAMS),
        f"event {BEYOND} is no fork point: this session allows 1 to 2",
    ),
    refused("trim to 0", requests.Trim(1, 0), "event 0 is no fork point: this session allows 1 to 2"),
    refused("trim past the end", requests.Trim(1, 3), "event 3 is no fork point: this session allows 1 to 2"),
    _rebase("without edits", (), "a rebase needs at least one edit"),
    _rebase("of event 0", (Drop(0, 2),), "edit 0 touches event 0, which every session keeps"),
    _rebase("of event 0 alone", (Replace(0, 1, 1, "x"),), "edit 0 touches event 0, which every session keeps"),
    _rebase("of nothing", (Drop(2, 2),), "edit 0 covers nothing: 2 to 2"),
    _rebase("of a reversed range", (Drop(3, 2),), "edit 0 covers nothing: 3 to 2"),
    _rebase("past the end", (Drop(1, 2), Drop(3, 5)), "edit 1 ends at 5, behind the session's 4 events"),
    _rebase("far past the end", (Drop(1, BEYOND),), f"edit 0 ends at {BEYOND}, behind the session's 4 events"),
    _rebase("that overlaps", (Drop(1, 3), Drop(2, 4)), "edit 1 overlaps or precedes the one before it"),
    _rebase("of one range twice", (Drop(1, 2), Drop(1, 2)), "edit 1 overlaps or precedes the one before it"),
    _rebase("out of order", (Drop(3, 4), Drop(1, 2)), "edit 1 overlaps or precedes the one before it"),
    _rebase(
        "by a tool's message",
        (Replace(1, 2, 3, "x"),),
        "role 3 cannot be appended: use 0 (system), 1 (user) or 2 (assistant)",
    ),
    _rebase(
        "by a role that is none",
        (Drop(1, 2), Replace(2, 3, 4, "x")),
        "role 4 cannot be appended: use 0 (system), 1 (user) or 2 (assistant)",
    ),
]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_request_is_refused_in_these_words(listeners: Listeners, row: Refusal, transport: str) -> None:
    await check(listeners, row, transport)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_refused_request_leaves_no_session_behind(listeners: Listeners, row: Refusal) -> None:
    async with listeners.stage() as on:
        request = await row.ask(on.core)
        assert isinstance(await on.ask("socket", request), responses.Err)
        assert await on.ask("socket", requests.List()) == responses.Sessions((1,))


@pytest.mark.parametrize(
    "edits",
    [
        (Drop(1, 2), Drop(2, 3)),
        (Replace(1, 2, 1, "x"), Drop(2, 4)),
        (Drop(1, 4),),
        (Replace(3, 4, 0, ""),),
    ],
)
async def test_ranges_that_touch_or_reach_the_end_are_taken(
    listeners: Listeners, edits: tuple[RebaseEdit, ...]
) -> None:
    async with listeners.stage() as on:
        await _three_messages(on.core)
        assert await on.ask("socket", requests.Rebase(1, edits, None)) == responses.Created(2)


async def test_fork_and_trim_are_taken_at_both_ends(listeners: Listeners) -> None:
    async with listeners.stage() as on:
        await _three_messages(on.core)
        for number, event in enumerate((1, 4, 1, 4), start=2):
            request = requests.Fork(1, event, None) if number < 4 else requests.Trim(1, event)
            assert await on.ask("socket", request) == responses.Created(number)
