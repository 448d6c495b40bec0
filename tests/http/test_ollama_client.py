"""Ollama's own client, and plain HTTP, against the real server on loopback."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import ollama
import pytest
from tests.fixtures.http_server import FrontEnd
from tests.fixtures.scripted_models import ScriptedModel, Step, says

from superfluid import errors
from superfluid.config import CompletionConfig, HttpConfig, Secret
from superfluid.domain.reply import Channel, Finish, ReplyFinished, TextDelta, ToolCallFinished
from superfluid.domain.request import ChatPrompt, InfillPrompt, QosClass, TextPrompt

HELLO = [{"role": "user", "content": "Hi"}]
CALL: list[Step] = [
    [ToolCallFinished(0, "call_1", "add", '{"a":1}', True, 6)],
    [ReplyFinished(Finish.END_OF_TURN, 7, 2, 6)],
]
BAD_CALL: list[Step] = [
    [ToolCallFinished(0, "call_1", "add", '{"a":', False, 6)],
    [ReplyFinished(Finish.LENGTH, 7, 2, 6)],
]


@asynccontextmanager
async def _client(front: FrontEnd, **arguments: Any) -> AsyncIterator[ollama.AsyncClient]:
    async with front.serve() as (host, port), ollama.AsyncClient(f"http://{host}:{port}", **arguments) as client:
        yield client


async def _streamed(client: ollama.AsyncClient, **fields: Any) -> list[ollama.ChatResponse]:
    return [part async for part in await client.chat("scripted", HELLO, stream=True, **fields)]


def add(a: int, b: int) -> int:
    """Adds.

    Args:
      a: One
      b: The other
    """
    return a + b


async def test_client_reads_a_whole_answer() -> None:
    front = FrontEnd(ScriptedModel(lambda request: says("Hello", " world", reasoning=["hm"], warm_tokens=3)))
    async with _client(front) as client:
        answer = await client.chat("scripted", HELLO, think=True, keep_alive="5m", options={"num_predict": 9})
    assert (answer.message.content, answer.message.thinking) == ("Hello world", "hm")
    assert (answer.done, answer.done_reason) == (True, "stop")
    assert (answer.prompt_eval_count, answer.eval_count) == (7, 3)
    assert answer.total_duration is not None
    assert front.log[0].route == "POST /v1/chat/completions"


async def test_client_reads_a_stream() -> None:
    front = FrontEnd(ScriptedModel(lambda request: says("Hel", "lo")))
    async with _client(front) as client:
        parts = await _streamed(client)
    assert [part.message.content for part in parts] == ["Hel", "lo", ""]
    assert [part.done for part in parts] == [False, False, True]
    assert front.log[0].route == "POST /v1/chat/completions (stream)"


async def test_blocking_client_chats_from_a_thread() -> None:
    async with FrontEnd(ScriptedModel(lambda request: says("Hel", "lo"))).serve() as (host, port):

        def work() -> tuple[str | None, list[str | None]]:
            client = ollama.Client(f"{host}:{port}")
            parts = list(client.chat("scripted", HELLO, stream=True))
            return client.chat("scripted", HELLO).message.content, [part.message.content for part in parts]

        assert await asyncio.to_thread(work) == ("Hello", ["Hel", "lo", ""])


async def test_client_reads_a_call_and_sends_its_result_back() -> None:
    front = FrontEnd(ScriptedModel(lambda request: CALL))
    async with _client(front) as client:
        answer = await client.chat("scripted", HELLO, tools=[add])
        streamed = await _streamed(client, tools=[add])
        result = {"role": "tool", "content": "3", "tool_name": "add"}
        await client.chat("scripted", [*HELLO, answer.message, result], tools=[add])
    for message in (answer.message, streamed[-2].message):
        (call,) = message.tool_calls or []
        assert (call.function.name, call.function.arguments) == ("add", {"a": 1})
    prompt = front.model.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.tools[0]["function"]["name"] == "add"
    assert [message.role for message in prompt.messages] == ["user", "assistant", "tool"]
    assert prompt.messages[2].tool_call_id == prompt.messages[1].tool_calls[0].id


async def test_call_that_is_none_is_an_error_and_no_success_in_the_log() -> None:
    front = FrontEnd(ScriptedModel(lambda request: BAD_CALL))
    async with _client(front) as client:
        with pytest.raises(ollama.ResponseError, match="no JSON object") as failure:
            await client.chat("scripted", HELLO, tools=[add])
        assert failure.value.status_code == 500
        with pytest.raises(ollama.ResponseError, match="no JSON object"):
            await _streamed(client, tools=[add])
    assert front.log == []


async def test_client_generates_from_a_prompt_raw_and_in_the_middle() -> None:
    front = FrontEnd(ScriptedModel(lambda request: says(" upon", " a")))
    async with _client(front) as client:
        answer = await client.generate("scripted", "Once", system="Be brief")
        parts = [part async for part in await client.generate("scripted", "Once", raw=True, stream=True)]
        middle = await client.generate("scripted", "def f(", suffix="return a")
    assert answer.response == middle.response == " upon a"
    assert [part.response for part in parts] == [" upon", " a", ""]
    framed, raw, gap = (request.prompt for request in front.model.requests)
    assert isinstance(framed, ChatPrompt)
    assert isinstance(raw, TextPrompt)
    assert gap == InfillPrompt(prefix="def f(", suffix="return a")
    assert [timing.route for timing in front.log] == [
        "POST /v1/chat/completions",
        "POST /v1/completions (stream)",
        "POST /v1/completions (fim)",
    ]


async def test_gaps_are_metered_and_chats_are_not() -> None:
    front = FrontEnd(completion=CompletionConfig(rate=1, burst=1))
    async with _client(front) as client:
        await client.generate("scripted", "a", suffix="b")
        with pytest.raises(ollama.ResponseError) as failure:
            await client.generate("scripted", "a", suffix="b")
        await client.generate("scripted", "a")
    assert failure.value.status_code == 429


async def test_client_finds_out_what_is_served() -> None:
    async with _client(FrontEnd()) as client:
        assert [model.model for model in (await client.list()).models] == ["scripted"]
        assert (await client.ps()).models[0].context_length == 2048
        shown = await client.show("scripted")
    assert shown.modelinfo is not None
    assert shown.modelinfo["scripted.context_length"] == 2048


async def test_client_that_only_loads_gets_no_generation() -> None:
    front = FrontEnd()
    async with _client(front) as client:
        assert (await client.generate("scripted")).done_reason == "load"
        assert [part.done_reason async for part in await client.chat("scripted", [], stream=True)] == ["load"]
        with pytest.raises(ollama.ResponseError) as failure:
            await client.generate("nobody")
        assert failure.value.status_code == 404
        front.model.is_ready = False
        with pytest.raises(ollama.ResponseError) as failure:
            await client.generate("scripted")
    assert failure.value.status_code == 503
    assert (front.model.requests, front.log) == ([], [])


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (errors.ContextLengthExceededError("too long"), 400),
        (errors.QueueFullError("full"), 503),
        (errors.WorkerFailedError("dead"), 500),
    ],
)
async def test_client_raises_for_each_refusal(refusal: errors.SuperfluidError, status: int, is_stream: bool) -> None:
    front = FrontEnd()
    front.model.refusal = refusal
    async with _client(front) as client:
        with pytest.raises(ollama.ResponseError) as failure:
            await (_streamed(client) if is_stream else client.chat("scripted", HELLO))
    assert (failure.value.status_code, failure.value.error) == (status, refusal.message)


async def test_client_raises_for_a_stream_that_fails_on_the_way() -> None:
    steps: list[Step] = [[TextDelta(Channel.TEXT, "so far", 1)], errors.EngineFaultError("broken")]
    async with _client(FrontEnd(ScriptedModel(lambda request: steps))) as client:
        with pytest.raises(ollama.ResponseError, match="broken"):
            await _streamed(client)


async def test_client_with_a_key_is_served_and_without_one_is_not() -> None:
    config = HttpConfig(api_key=Secret("sesame"))
    async with _client(FrontEnd(config=config), headers={"authorization": "Bearer sesame"}) as client:
        assert (await client.list()).models
    async with _client(FrontEnd(config=config)) as client:
        with pytest.raises(ollama.ResponseError, match="key") as failure:
            await client.list()
    assert failure.value.status_code == 401


async def test_class_of_the_header_is_the_class_of_the_request() -> None:
    front = FrontEnd()
    async with _client(front, headers={"x-superfluid-qos": "interactive"}) as client:
        await client.chat("scripted", HELLO)
    assert front.model.requests[0].qos is QosClass.INTERACTIVE


async def test_stream_is_json_lines_and_survives_a_keep_alive() -> None:
    gate = asyncio.Event()
    steps: list[Step] = [[TextDelta(Channel.TEXT, "a", 1)], gate, *says("b")]
    front = FrontEnd(ScriptedModel(lambda request: steps), config=HttpConfig(keepalive_seconds=0.01))
    body = {"model": "scripted", "messages": HELLO}
    async with (
        front.serve() as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}") as client,
        client.stream("POST", "/api/chat", json=body) as response,
    ):
        assert response.headers["content-type"] == "application/x-ndjson"
        chunks = response.aiter_bytes()
        data = b""
        while not data.endswith(b" "):
            data += await anext(chunks)
        gate.set()
        data += b"".join([chunk async for chunk in chunks])
    assert [bool(line.strip()) for line in data.split(b"\n")] == [True, True, True, False]
    assert data.endswith(b"\n")


async def test_client_that_hangs_up_cancels_its_generation() -> None:
    steps: list[Step] = [[TextDelta(Channel.TEXT, "a", 1)], asyncio.Event()]
    front = FrontEnd(ScriptedModel(lambda request: steps))
    async with _client(front) as client:
        stream: Any = await client.chat("scripted", HELLO, stream=True)
        await anext(stream)
        await stream.aclose()
        await asyncio.wait_for(front.model.replies[0].cancelled.wait(), 10)
