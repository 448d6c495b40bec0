"""What appending refuses, and with which words. Over every transport."""

import pytest
from tests.fixtures.refusal_stage import TRANSPORTS, Listeners, Refusal, check, refused
from tests.fixtures.session_core import PARAMS, SessionCore, text_with_template

from superfluid.domain.events import BlockKind
from superfluid.native import requests, responses
from superfluid.native.protocol import Request

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROLES = "use 0 (system), 1 (user) or 2 (assistant)"
LATE = "AppendSystem must come before any other turn"
NO_TURNS = "this model's chat template does not write a conversation turn by turn"
BAD_TOOLS = [
    "",
    "{",
    "null",
    "[]",
    '"f"',
    "{}",
    '{"name":""}',
    '{"name":7}',
    '{"type":"custom","name":"f"}',
    '{"type":"function","function":null}',
    '{"function":[]}',
    '{"function":{"description":"nameless"}}',
    '{"function":{"name":"f","parameters":"none"}}',
    '{"name":"f","parameters":[]}',
    '{"name":"f","input_schema":1}',
]
GOOD_TOOL = '{"type":"function","function":{"name":"f"}}'


def _empty(name: str, request: Request, message: str) -> Refusal:
    """About session 1, which has no input yet."""

    async def ask(core: SessionCore) -> Request:
        assert await core.sessions.create(None, PARAMS) == 1
        return request

    return Refusal(name, ask, message)


async def _fork_with_input(core: SessionCore) -> Request:
    session = await core.chat()
    fork = await core.sessions.fork(session, 2, None)
    return requests.AppendSystem(fork, "x", ())


async def _raw_input(core: SessionCore) -> Request:
    session = await core.sessions.create(None, PARAMS)
    await core.sessions.append(session, "x", ())
    return requests.AppendSystem(session, None, (GOOD_TOOL,))


ROWS = [
    _empty("nothing", requests.Append(1, None, ()), "an append needs text or a span of tokens"),
    _empty("text without tokens", requests.Append(1, "", ()), "the text has no tokens"),
    _empty("token that is none", requests.Append(1, None, (1, 268)), "token ids must be below 268"),
    _empty("largest number as a token", requests.Append(1, "x", (2**32 - 1,)), "token ids must be below 268"),
    _empty("message of a tool", requests.AppendMessage(1, 3, "x"), f"role 3 cannot be appended: {ROLES}"),
    _empty(
        "message of nobody", requests.AppendMessage(1, 2**32 - 1, "x"), f"role {2**32 - 1} cannot be appended: {ROLES}"
    ),
    _empty("system turn of nothing", requests.AppendSystem(1, None, ()), "AppendSystem needs text or tools"),
    *(
        _empty(
            f"tool {text!r}",
            requests.AppendSystem(1, "x", (GOOD_TOOL, GOOD_TOOL, text, "also bad")),
            "tool 2 is not a function declaration",
        )
        for text in BAD_TOOLS
    ),
    _empty("first tool", requests.AppendSystem(1, None, ("{}",)), "tool 0 is not a function declaration"),
    refused("late system turn", requests.AppendSystem(1, "x", ()), LATE),
    Refusal("system turn behind inherited input", _fork_with_input, LATE),
    Refusal("system turn behind raw input", _raw_input, LATE),
    _empty("block of nobody", requests.AppendBlock(1, 4, 1, "{}"), "a block cannot have role 4: use 0 to 3"),
    _empty("block of kind 0", requests.AppendBlock(1, 1, 0, "{}"), "there is no block kind 0: use 1 to 7"),
    _empty("block of kind 8", requests.AppendBlock(1, 1, 8, "{}"), "there is no block kind 8: use 1 to 7"),
]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_request_is_refused_in_these_words(listeners: Listeners, row: Refusal, transport: str) -> None:
    await check(listeners, row, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "request_",
    [
        requests.AppendMessage(1, 1, "x"),
        requests.AppendSystem(1, "x", ()),
        requests.AppendBlock(1, 1, BlockKind.WORKSPACE_REF, '{"path":"a"}'),
    ],
    ids=lambda request: type(request).__name__,
)
async def test_turn_for_a_model_without_turns_is_refused(
    listeners: Listeners, request_: Request, transport: str
) -> None:
    row = _empty("no chat template", request_, NO_TURNS)
    await check(listeners, row, transport, text=text_with_template(None))


async def test_model_without_turns_takes_raw_text_and_blocks_that_are_not_shown(listeners: Listeners) -> None:
    async with listeners.stage(text=text_with_template(None)) as on:
        await on.core.sessions.create(None, PARAMS)
        for request in (requests.Append(1, "x", ()), requests.AppendBlock(1, 1, BlockKind.PROGRESS, "{}")):
            assert isinstance(await on.ask("socket", request), responses.Committed)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "request_",
    [requests.Append(1, "x", ()), requests.AppendMessage(1, 1, "x"), requests.AppendSystem(1, "x", ())],
    ids=lambda request: type(request).__name__,
)
async def test_append_while_the_model_loads_is_refused(listeners: Listeners, request_: Request, transport: str) -> None:
    async with listeners.stage() as on:
        await on.core.sessions.create(None, PARAMS)
        on.core.backend.is_loading = True
        assert await on.ask(transport, request_) == responses.Err("still loading")


async def test_records_without_tokens_do_not_make_a_system_turn_late(listeners: Listeners) -> None:
    async with listeners.stage() as on:
        session = await on.core.sessions.create(None, PARAMS)
        await on.core.sessions.set_meta(session, 0, "title", None)
        await on.core.sessions.append_block(session, 1, BlockKind.PROGRESS, "{}")
        reply = await on.ask("socket", requests.AppendSystem(session, None, (GOOD_TOOL,)))
        assert isinstance(reply, responses.Committed)
