"""What filling in the middle refuses, and with which words. Over every transport."""

from pathlib import Path

import pytest
from tests.fixtures.refusal_stage import TRANSPORTS, Listeners, Refusal, check, own_stage
from tests.fixtures.session_core import SessionCore, text_of
from tests.fixtures.vocabulary_gguf import write_vocabulary

from superfluid.chat.tokenizer import LlamaTokenizer
from superfluid.config import CompletionConfig
from superfluid.errors import EngineFaultError, QueueFullError
from superfluid.native import requests, responses
from superfluid.native.protocol import Request

pytestmark = pytest.mark.asyncio(loop_scope="module")

GAP = requests.Complete("a", "c", 0, 16)


async def _draining(core: SessionCore) -> Request:
    core.counter.is_draining = True
    return GAP


async def _loading(core: SessionCore) -> Request:
    core.backend.is_loading = True
    return GAP


async def _full(core: SessionCore) -> Request:
    core.backend.refusal = QueueFullError("Too many requests are waiting.")
    return GAP


async def _broken(core: SessionCore) -> Request:
    core.backend.refusal = EngineFaultError("The engine could not continue this generation.")
    return GAP


ROWS = [
    Refusal("draining", _draining, "the server is shutting down and takes no new requests"),
    Refusal("loading", _loading, "still loading"),
    Refusal("queue full", _full, "Too many requests are waiting."),
    Refusal("engine fault", _broken, "The engine could not continue this generation."),
]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_request_is_refused_in_these_words(listeners: Listeners, row: Refusal, transport: str) -> None:
    await check(listeners, row, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_model_without_the_tokens_for_it_is_refused(listeners: Listeners, tmp_path: Path, transport: str) -> None:
    async with listeners.stage() as on:
        on.core.infill.attach_text(text_of(LlamaTokenizer(str(write_vocabulary(tmp_path / "v.gguf", kind="bpe")))))
        message = "this model cannot fill in the middle: its vocabulary has no tokens for it"
        assert await on.ask(transport, GAP) == responses.Err(message)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_client_that_asks_too_often_is_throttled_and_told_when_to_come_back(transport: str) -> None:
    async with own_stage(completion=CompletionConfig(rate=0.5, burst=1)) as on:
        on.core.backend.answer = lambda _: "b"
        if transport == "rpc":
            # One bucket for all of it, whatever the connection.
            assert isinstance(await on.ask("rpc", GAP), responses.Completion)
            assert await on.ask("rpc", GAP) == responses.Throttled(2000)
            on.core.clock.seconds += 2
            assert isinstance(await on.ask("rpc", GAP), responses.Completion)
        else:
            # Every connection has its own.
            for _ in range(3):
                assert isinstance(await on.ask(transport, GAP), responses.Completion)
        if transport == "socket":
            client = await on.socket()
            assert isinstance(await client.call(GAP), responses.Completion)
            assert await client.call(GAP) == responses.Throttled(2000)
            await client.close()
