"""The official client against the real server on loopback."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from tests.fixtures.http_server import FrontEnd
from tests.fixtures.scripted_models import ScriptedModel, Step, says

from superfluid import errors
from superfluid.config import HttpConfig, Secret
from superfluid.domain.reply import (
    Channel,
    Finish,
    ReplyFinished,
    ReplyStarted,
    TextDelta,
    TokenAlternative,
    TokenLogprob,
    ToolCallArguments,
    ToolCallFinished,
    ToolCallStarted,
)

HELLO: Any = [{"role": "user", "content": "Hi"}]
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL: list[Step] = [
    [ReplyStarted(7, 2), TextDelta(Channel.REASONING, "hm", 1)],
    [ToolCallStarted(0, "call_1", "add", 3), ToolCallArguments(0, '{"a":', 4)],
    [ToolCallArguments(0, "1}", 5), ToolCallFinished(0, "call_1", "add", '{"a":1}', True, 6)],
    [ReplyFinished(Finish.END_OF_TURN, 7, 2, 6)],
]
SCORED: list[Step] = [
    [TextDelta(Channel.TEXT, "Hi", 1, (TokenLogprob(TokenAlternative(1, b"Hi", -0.25), ()),))],
    [ReplyFinished(Finish.LENGTH, 7, 0, 1)],
]


@asynccontextmanager
async def _client(front: FrontEnd, key: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
    async with front.serve() as (host, port):
        base_url = f"http://{host}:{port}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=60) as client:
            yield client


async def test_client_reads_a_whole_answer() -> None:
    front = FrontEnd(ScriptedModel(lambda request: says("Hello", " world", reasoning=["hm"], warm_tokens=3)))
    async with _client(front) as client:
        answer = await client.chat.completions.create(model="scripted", messages=HELLO)
    assert answer.id == "chatcmpl-superfluid-1"
    assert answer.choices[0].message.content == "Hello world"
    assert (answer.choices[0].message.model_extra or {})["reasoning_content"] == "hm"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 10
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


async def test_client_reads_a_stream_with_usage() -> None:
    async with _client(FrontEnd(ScriptedModel(lambda request: says("Hel", "lo")))) as client:
        stream = await client.chat.completions.create(
            model="scripted", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2


async def test_client_reads_calls_whole_and_streamed() -> None:
    front = FrontEnd(ScriptedModel(lambda request: CALL))
    async with _client(front) as client:
        answer = await client.chat.completions.create(model="scripted", messages=HELLO, tools=TOOLS)
        async with client.chat.completions.stream(model="scripted", messages=HELLO, tools=TOOLS) as stream:
            streamed = await stream.get_final_completion()
    for completion in (answer, streamed):
        assert completion.choices[0].finish_reason == "tool_calls"
        (call,) = completion.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert (call.id, call.function.name, call.function.arguments) == ("call_1", "add", '{"a":1}')


async def test_client_reads_logprobs_whole_and_streamed() -> None:
    async with _client(FrontEnd(ScriptedModel(lambda request: SCORED))) as client:
        answer = await client.chat.completions.create(model="scripted", messages=HELLO, logprobs=True)
        stream = await client.chat.completions.create(model="scripted", messages=HELLO, logprobs=True, stream=True)
        scores = [chunk.choices[0].logprobs async for chunk in stream]
    for logprobs in (answer.choices[0].logprobs, scores[1]):
        assert logprobs is not None
        assert logprobs.content is not None
        assert (logprobs.content[0].token, logprobs.content[0].bytes) == ("Hi", [72, 105])
        assert logprobs.content[0].logprob == -0.25


async def test_client_reads_text_completions_whole_and_streamed() -> None:
    async with _client(FrontEnd(ScriptedModel(lambda request: says(" upon", " a")))) as client:
        answer = await client.completions.create(model="scripted", prompt="Once", echo=True)
        stream = await client.completions.create(model="scripted", prompt="Once", stream=True)
        texts = [chunk.choices[0].text async for chunk in stream]
    assert answer.choices[0].text == "Once upon a"
    assert "".join(texts) == " upon a"


async def test_client_lists_models() -> None:
    async with _client(FrontEnd()) as client:
        models = await client.models.list()
        model = await client.models.retrieve("scripted")
    assert [entry.id for entry in models.data] == [model.id] == ["scripted"]


@pytest.mark.parametrize(
    ("refusal", "expected", "code"),
    [
        (errors.ContextLengthExceededError("too long"), openai.BadRequestError, "context_length_exceeded"),
        (errors.InvalidRequestError("bad"), openai.BadRequestError, None),
        (errors.QueueFullError("full"), openai.InternalServerError, "queue_full"),
        (errors.WorkerFailedError("dead"), openai.InternalServerError, "worker_failed"),
    ],
)
async def test_client_raises_its_class_for_each_refusal(
    refusal: errors.SuperfluidError, expected: type[openai.APIStatusError], code: str | None
) -> None:
    front = FrontEnd()
    front.model.refusal = refusal
    async with _client(front) as client:
        with pytest.raises(expected) as failure:
            await client.chat.completions.create(model="scripted", messages=HELLO)
    assert failure.value.code == code
    assert refusal.message in failure.value.message


async def test_client_raises_not_found_for_an_unknown_model() -> None:
    async with _client(FrontEnd()) as client:
        with pytest.raises(openai.NotFoundError) as failure:
            await client.chat.completions.create(model="nobody", messages=HELLO)
    assert (failure.value.code, failure.value.param) == ("model_not_found", "model")


async def test_client_raises_bad_request_for_a_field_out_of_range() -> None:
    async with _client(FrontEnd()) as client:
        with pytest.raises(openai.BadRequestError) as failure:
            await client.chat.completions.create(model="scripted", messages=HELLO, temperature=9)
    assert failure.value.param == "temperature"


async def test_client_with_a_wrong_key_raises_authentication_error_and_with_the_right_one_is_served() -> None:
    config = HttpConfig(api_key=Secret("sesame"))
    async with _client(FrontEnd(config=config), key="wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
        assert (await client.with_options(api_key="sesame").models.list()).data


async def test_client_sending_too_much_gets_413() -> None:
    front = FrontEnd(config=HttpConfig(max_body_bytes=1000))
    long: Any = [{"role": "user", "content": "x" * 500_000}]
    async with _client(front) as client:
        with pytest.raises(openai.APIStatusError) as failure:
            await client.chat.completions.create(model="scripted", messages=long)
        assert failure.value.status_code == 413
        assert (await client.models.list()).data


async def test_client_raises_for_a_stream_that_fails_on_the_way() -> None:
    steps: list[Step] = [[TextDelta(Channel.TEXT, "so far", 1)], errors.EngineFaultError("broken")]
    async with _client(FrontEnd(ScriptedModel(lambda request: steps))) as client:
        stream = await client.chat.completions.create(model="scripted", messages=HELLO, stream=True)
        with pytest.raises(openai.APIError, match="broken"):
            _ = [chunk async for chunk in stream]


async def test_client_that_wants_what_no_model_can_do_gets_a_bad_request_though_it_sends_much() -> None:
    async with _client(FrontEnd()) as client:
        with pytest.raises(openai.BadRequestError) as embedding:
            await client.embeddings.create(model="scripted", input="Hi")
        with pytest.raises(openai.BadRequestError) as speech:
            await client.audio.transcriptions.create(model="scripted", file=("a.wav", bytes(3_000_000)))
    assert embedding.value.code == speech.value.code == "unsupported_model"
