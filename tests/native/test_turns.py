import asyncio

import pytest
from tests.fixtures.scripted_sessions import PARAMS, ScriptedSessions

from superfluid.errors import SessionNotFoundError
from superfluid.native.turns import begin_turn


async def test_turn_that_was_accepted_is_left_running() -> None:
    api = ScriptedSessions()
    await api.create(None, PARAMS)
    await begin_turn(api, 1, 5)
    assert not (await api.turns.get()).cancelled.is_set()


async def test_cancellation_before_acceptance_cancels_the_turn_afterwards() -> None:
    api = ScriptedSessions()
    await api.create(None, PARAMS)
    api.gate = asyncio.Event()
    beginning = asyncio.create_task(begin_turn(api, 1, 5))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    beginning.cancel()
    await asyncio.wait((beginning,))
    assert beginning.cancelled()
    api.gate.set()
    turn = await api.turns.get()
    await turn.cancelled.wait()


async def test_refusal_is_raised() -> None:
    with pytest.raises(SessionNotFoundError):
        await begin_turn(ScriptedSessions(), 1, 5)


async def test_refusal_after_a_cancellation_is_nobodys_concern() -> None:
    api = ScriptedSessions()
    api.gate = asyncio.Event()
    beginning = asyncio.create_task(begin_turn(api, 1, 5))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    beginning.cancel()
    await asyncio.wait((beginning,))
    api.gate.set()
    await asyncio.sleep(0)
    assert beginning.cancelled()
