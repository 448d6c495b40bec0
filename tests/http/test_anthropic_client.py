"""The official client against the real server on loopback."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
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
    ToolCallArguments,
    ToolCallFinished,
    ToolCallStarted,
)
from superfluid.domain.request import ChatPrompt

HELLO: Any = [{"role": "user", "content": "Hi"}]
TOOLS: Any = [{"name": "add", "description": "adds", "input_schema": {"type": "object"}}]
CALL: list[Step] = [
    [ReplyStarted(7, 2), TextDelta(Channel.REASONING, "hm", 1)],
    [ToolCallStarted(0, "call_1", "add", 3), ToolCallArguments(0, '{"a":', 4)],
    [ToolCallArguments(0, "1}", 5), ToolCallFinished(0, "call_1", "add", '{"a":1}', True, 6)],
    [ReplyFinished(Finish.END_OF_TURN, 7, 2, 6)],
]


@asynccontextmanager
async def _client(front: FrontEnd, key: str = "none") -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with front.serve() as (host, port):
        base_url = f"http://{host}:{port}"
        async with anthropic.AsyncAnthropic(base_url=base_url, api_key=key, max_retries=0, timeout=60) as client:
            yield client


async def test_client_reads_a_whole_answer() -> None:
    front = FrontEnd(ScriptedModel(lambda request: says("Hello", " world", reasoning=["hm"], warm_tokens=3)))
    async with _client(front) as client:
        answer = await client.messages.create(model="scripted", max_tokens=9, messages=HELLO, system="Be kind.")
    assert answer.id == "msg_superfluid_1"
    thought, text = answer.content
    assert thought.type == "thinking"
    assert (thought.thinking, thought.signature) == ("hm", "")
    assert text.type == "text"
    assert (text.text, answer.stop_reason) == ("Hello world", "end_turn")
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens, answer.usage.output_tokens) == (4, 3, 3)
    assert front.log[0].route == "POST /v1/messages"


def test_client_that_blocks_reads_a_whole_answer_and_a_stream() -> None:
    def talk(base_url: str) -> list[str]:
        client = anthropic.Anthropic(base_url=base_url, api_key="none", max_retries=0, timeout=60)
        answer = client.messages.create(model="scripted", max_tokens=9, messages=HELLO)
        with client.messages.stream(model="scripted", max_tokens=9, messages=HELLO) as stream:
            texts = list(stream.text_stream)
        assert answer.content[0].type == "text"
        return [answer.content[0].text, *texts]

    async def run() -> list[str]:
        async with FrontEnd().serve() as (host, port):
            return await asyncio.to_thread(talk, f"http://{host}:{port}")

    assert asyncio.run(run()) == ["Hello world", "Hello", " world"]


async def test_client_reads_a_stream_event_by_event() -> None:
    front = FrontEnd(ScriptedModel(lambda request: says("Hel", "lo", warm_tokens=3)))
    async with _client(front) as client:
        stream = await client.messages.create(model="scripted", max_tokens=9, messages=HELLO, stream=True)
        kinds = [event.type async for event in stream]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert front.log[0].route == "POST /v1/messages (stream)"


async def test_client_reads_calls_whole_and_streamed() -> None:
    async with _client(FrontEnd(ScriptedModel(lambda request: CALL))) as client:
        answer = await client.messages.create(model="scripted", max_tokens=9, messages=HELLO, tools=TOOLS)
        async with client.messages.stream(model="scripted", max_tokens=9, messages=HELLO, tools=TOOLS) as stream:
            streamed = await stream.get_final_message()
    for message in (answer, streamed):
        thought, call = message.content
        assert thought.type == "thinking"
        assert thought.thinking == "hm"
        assert call.type == "tool_use"
        assert (call.id, call.name, call.input) == ("toolu_1", "add", {"a": 1})
        assert (message.stop_reason, message.usage.cache_read_input_tokens) == ("tool_use", 2)


async def test_client_sends_an_answer_and_its_results_back() -> None:
    front = FrontEnd(ScriptedModel(lambda request: CALL))
    async with _client(front) as client:
        answer = await client.messages.create(model="scripted", max_tokens=9, messages=HELLO, tools=TOOLS)
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "3"}]}
        history: Any = [*HELLO, {"role": "assistant", "content": answer.content}, result]
        await client.messages.create(model="scripted", max_tokens=9, messages=history, tools=TOOLS)
    prompt = front.model.requests[1].prompt
    assert isinstance(prompt, ChatPrompt)
    _, reply, tool = prompt.messages
    assert (reply.reasoning, reply.tool_calls[0].arguments) == ("hm", '{"a":1}')
    assert (tool.role, tool.content, tool.tool_call_id) == ("tool", "3", "toolu_1")


async def test_client_is_told_what_it_pinned() -> None:
    system: Any = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    async with _client(FrontEnd()) as client:
        answer = await client.messages.create(model="scripted", max_tokens=9, messages=HELLO, system=system)
    assert (answer.usage.input_tokens, answer.usage.cache_creation_input_tokens) == (6, 1)
    assert answer.usage.cache_creation is not None
    assert answer.usage.cache_creation.ephemeral_1h_input_tokens == 1


async def test_client_counts_tokens() -> None:
    async with _client(FrontEnd()) as client:
        count = await client.messages.count_tokens(model="scripted", messages=HELLO, system="Be kind.")
    assert count.input_tokens == len("Hi") + len("Be kind.")


async def test_client_lists_models() -> None:
    async with _client(FrontEnd(ScriptedModel(), ScriptedModel(model_id="other"))) as client:
        models = [model async for model in client.models.list()]
        model = await client.models.retrieve("scripted")
    assert [entry.id for entry in models] == ["scripted", "other"]
    assert (model.type, model.display_name, model.created_at.year) == ("model", "scripted", 2023)


@pytest.mark.parametrize(
    ("refusal", "expected", "kind"),
    [
        (errors.ContextLengthExceededError("no"), anthropic.BadRequestError, "invalid_request_error"),
        (errors.TemplateRefusedError("no"), anthropic.BadRequestError, "invalid_request_error"),
        (errors.QueueFullError("no"), anthropic.InternalServerError, "overloaded_error"),
        (errors.ModelLoadingError("no"), anthropic.InternalServerError, "overloaded_error"),
        (errors.ModelLoadError("no"), anthropic.InternalServerError, "api_error"),
        (errors.WorkerFailedError("no"), anthropic.InternalServerError, "api_error"),
    ],
)
async def test_client_raises_its_class_for_each_refusal(
    refusal: errors.SuperfluidError, expected: type[anthropic.APIStatusError], kind: str
) -> None:
    front = FrontEnd()
    front.model.refusal = refusal
    async with _client(front) as client:
        for request in (
            client.messages.create(model="scripted", max_tokens=9, messages=HELLO),
            client.messages.create(model="scripted", max_tokens=9, messages=HELLO, stream=True),
            client.messages.count_tokens(model="scripted", messages=HELLO),
        ):
            with pytest.raises(expected) as failure:
                await request
            assert failure.value.body == {"type": "error", "error": {"type": kind, "message": "no"}}


async def test_client_raises_not_found_for_an_unknown_model() -> None:
    async with _client(FrontEnd()) as client:
        with pytest.raises(anthropic.NotFoundError, match="nobody"):
            await client.messages.create(model="nobody", max_tokens=9, messages=HELLO)
        with pytest.raises(anthropic.NotFoundError, match="nobody"):
            await client.messages.count_tokens(model="nobody", messages=HELLO)


async def test_client_raises_bad_request_for_a_field_out_of_range() -> None:
    async with _client(FrontEnd()) as client:
        with pytest.raises(anthropic.BadRequestError, match="temperature"):
            await client.messages.create(model="scripted", max_tokens=9, messages=HELLO, extra_body={"temperature": 9})


async def test_client_with_a_wrong_key_raises_authentication_error_and_with_the_right_one_is_served() -> None:
    front = FrontEnd(config=HttpConfig(api_key=Secret("sesame")))
    async with _client(front, key="wrong") as client:
        with pytest.raises(anthropic.AuthenticationError) as failure:
            await client.messages.create(model="scripted", max_tokens=9, messages=HELLO)
        right = client.with_options(api_key="sesame")
        assert (await right.messages.create(model="scripted", max_tokens=9, messages=HELLO)).content
    body: Any = failure.value.body
    assert body["error"]["type"] == "authentication_error"


async def test_client_raises_for_a_stream_that_fails_on_the_way() -> None:
    steps: list[Step] = [[TextDelta(Channel.TEXT, "so far", 1)], errors.EngineFaultError("broken")]
    async with _client(FrontEnd(ScriptedModel(lambda request: steps))) as client:
        stream = await client.messages.create(model="scripted", max_tokens=9, messages=HELLO, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="broken"):
            _ = [event async for event in stream]


async def test_client_that_leaves_a_stream_cancels_it() -> None:
    steps: list[Step] = [[TextDelta(Channel.TEXT, "so far", 1)], asyncio.Event()]
    front = FrontEnd(ScriptedModel(lambda request: steps))
    async with _client(front) as client:
        async with client.messages.stream(model="scripted", max_tokens=9, messages=HELLO) as stream:
            async for _ in stream.text_stream:
                break
        await asyncio.wait_for(front.model.replies[0].cancelled.wait(), 10)
