"""The generating routes: whole answers, the access log, failures on the way, hang-ups on a real connection."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.fixtures.http_server import FrontEnd
from tests.fixtures.scripted_models import ScriptedModel, Step, says

from superfluid.config import CompletionConfig, HttpConfig
from superfluid.domain.reply import Channel, Finish, ReplyFinished, ReplyStarted, TextDelta
from superfluid.domain.request import GenerationRequest, InfillPrompt, QosClass
from superfluid.errors import EngineFaultError, FimUnsupportedError

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
ONCE: dict[str, Any] = {"model": "scripted", "prompt": "Once"}


def _choices(text: str) -> list[dict[str, Any]]:
    return [
        msgspec.json.decode(line.removeprefix("data: "))["choices"][0]
        for line in text.splitlines()
        if line.startswith("data: {")
    ]


async def test_answer_carries_the_warm_header_and_is_logged() -> None:
    front = FrontEnd(ScriptedModel(lambda request: says("Hello", " world", warm_tokens=4)))
    async with front.client() as client:
        response = await client.post(CHAT, json=HELLO)
    assert response.json()["choices"][0]["message"]["content"] == "Hello world"
    assert response.headers["x-superfluid-warm"] == "4"
    (timing,) = front.log
    assert (timing.route, timing.model, timing.finish) == ("POST /v1/chat/completions", "scripted", "stop")
    assert (timing.prompt_tokens, timing.cached_tokens, timing.completion_tokens) == (7, 4, 2)
    assert timing.first_token_seconds is not None
    assert timing.decode_tokens == 1
    assert 0 <= timing.first_token_seconds <= timing.total_seconds


@pytest.mark.parametrize(
    ("path", "body", "route"),
    [
        (CHAT, HELLO, "POST /v1/chat/completions (stream)"),
        ("/v1/completions", ONCE, "POST /v1/completions (stream)"),
    ],
)
async def test_stream_is_logged_under_its_own_route(path: str, body: dict[str, Any], route: str) -> None:
    front = FrontEnd(ScriptedModel(lambda request: says("a", "b", "c", finish=Finish.LENGTH)))
    async with front.client() as client:
        response = await client.post(path, json={**body, "stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.text.endswith("\n\ndata: [DONE]\n\n")
    (timing,) = front.log
    assert (timing.route, timing.completion_tokens, timing.decode_tokens, timing.finish) == (route, 3, 2, "length")


async def test_completion_gets_no_warm_header_and_its_own_route() -> None:
    front = FrontEnd()
    async with front.client() as client:
        response = await client.post("/v1/completions", json=ONCE)
    assert response.json()["choices"][0]["text"] == "Hello world"
    assert "x-superfluid-warm" not in response.headers
    assert front.log[0].route == "POST /v1/completions"


async def test_stream_whose_batch_holds_text_and_end_delivers_both() -> None:
    batch: list[Step] = [[ReplyStarted(7, 0), TextDelta(Channel.TEXT, "all", 1), ReplyFinished(Finish.LENGTH, 7, 0, 1)]]
    front = FrontEnd(ScriptedModel(lambda request: batch))
    async with front.client() as client:
        response = await client.post(CHAT, json={**HELLO, "stream": True})
    role, text, last = _choices(response.text)
    assert (text["delta"], last["finish_reason"]) == ({"content": "all"}, "length")
    assert role["delta"]["role"] == "assistant"
    assert front.log[0].first_token_seconds is not None


async def test_several_replies_run_at_the_same_time() -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    order = iter([(gates[0], gates[1]), (gates[1], gates[0])])

    def script(request: GenerationRequest) -> list[Step]:
        # Each reply opens the other's gate before it waits at its own: one after the other they would wait for ever.
        own, other = next(order)
        other.set()
        return [own, *says(f"seed {request.sampling.seed}")]

    front = FrontEnd(ScriptedModel(script))
    async with front.client() as client:
        response = await asyncio.wait_for(client.post(CHAT, json={**HELLO, "n": 2, "seed": 5}), 5)
    contents = [choice["message"]["content"] for choice in response.json()["choices"]]
    assert contents == ["seed 5", "seed 6"]
    assert response.json()["usage"]["completion_tokens"] == 2
    assert len(front.log) == 1


async def test_one_failing_reply_of_several_fails_the_request_and_cancels_the_others() -> None:
    steps: list[list[Step]] = [[asyncio.Event()], [EngineFaultError("broken")]]
    scripts = iter(steps)
    front = FrontEnd(ScriptedModel(lambda request: next(scripts)))
    async with front.client() as client:
        response = await client.post(CHAT, json={**HELLO, "n": 2})
    assert (response.status_code, response.json()["error"]["message"]) == (500, "broken")
    assert front.model.replies[0].cancelled.is_set()
    assert front.log == []


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (EngineFaultError("broken"), "broken"),
        (ValueError("secret detail"), "superfluid failed to finish this answer; its log has the details"),
    ],
)
async def test_stream_that_fails_on_the_way_ends_with_an_error_frame(failure: Exception, message: str) -> None:
    steps: list[Step] = [[TextDelta(Channel.TEXT, "so far", 1)], failure]
    front = FrontEnd(ScriptedModel(lambda request: steps))
    async with front.client() as client:
        response = await client.post(CHAT, json={**HELLO, "stream": True})
    assert response.status_code == 200
    *_, error, done, _ = response.text.split("\n\n")
    assert msgspec.json.decode(error.removeprefix("data: "))["error"]["message"] == message
    assert done == "data: [DONE]"
    assert front.log == []


async def test_stream_without_an_end_is_an_error_and_is_not_logged() -> None:
    front = FrontEnd(ScriptedModel(lambda request: says("a")[:-1]))
    async with front.client() as client:
        response = await client.post(CHAT, json={**HELLO, "stream": True})
    assert "broke off" in response.text
    assert front.log == []


async def test_generation_that_the_server_cancels_is_no_success() -> None:
    front = FrontEnd(ScriptedModel(lambda request: says("a", finish=Finish.CANCELLED)))
    async with front.client() as client:
        whole = await client.post(CHAT, json=HELLO)
        stream = await client.post(CHAT, json={**HELLO, "stream": True})
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "shutting_down")
    assert '"code":"shutting_down"' in stream.text
    assert front.log == []


async def _send(address: tuple[str, int], body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    return reader, writer


@pytest.mark.parametrize("is_stream", [False, True])
async def test_hang_up_cancels_the_generation_at_once(is_stream: bool) -> None:
    front = FrontEnd(ScriptedModel(lambda request: [[TextDelta(Channel.TEXT, "a", 1)], asyncio.Event()]))
    async with front.serve() as address:
        _, writer = await _send(address, msgspec.json.encode({**HELLO, "stream": is_stream}))
        await asyncio.wait_for(front.model.started.wait(), 5)
        assert not front.model.replies[0].cancelled.is_set()
        writer.close()
        await asyncio.wait_for(front.model.replies[0].cancelled.wait(), 5)
    assert front.log == []


async def test_quiet_stream_gets_comments_and_then_its_text() -> None:
    gate = asyncio.Event()
    front = FrontEnd(ScriptedModel(lambda request: [gate, *says("late")]), config=HttpConfig(keepalive_seconds=0.02))
    async with front.serve() as address:
        reader, writer = await _send(address, msgspec.json.encode({**HELLO, "stream": True}))
        for _ in range(2):
            await asyncio.wait_for(reader.readuntil(b": keep-alive\n\n"), 5)
        gate.set()
        rest = await asyncio.wait_for(reader.readuntil(b"data: [DONE]\n\n"), 5)
        writer.close()
    assert b'"content":"late"' in rest


async def test_body_announced_over_the_limit_is_refused_without_being_sent() -> None:
    front = FrontEnd(config=HttpConfig(max_body_bytes=100))
    async with front.serve() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n{")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)
        writer.close()
    assert b" 413 " in head


async def test_chunked_body_over_the_limit_is_refused_on_the_way() -> None:
    front = FrontEnd(config=HttpConfig(max_body_bytes=10))
    async with front.serve() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"c\r\n" + b"x" * 12 + b"\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)
        writer.close()
    assert b" 413 " in head


# ---- filling in the middle

GAP: dict[str, Any] = {**ONCE, "suffix": "end", "max_tokens": 8}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_request_with_a_suffix_is_logged_under_its_own_route(is_stream: bool) -> None:
    front = FrontEnd()
    async with front.client() as client:
        response = await client.post("/v1/completions", json={**GAP, "stream": is_stream})
    assert response.status_code == 200
    assert front.log[0].route == "POST /v1/completions (fim)"
    assert front.model.requests[0].prompt == InfillPrompt(prefix="Once", suffix="end")


async def test_request_with_a_suffix_is_metered_by_address_and_key_before_the_model_is_looked_for() -> None:
    front = FrontEnd(completion=CompletionConfig(rate=0.1, burst=2))
    async with front.client() as client:
        for _ in range(2):
            response = await client.post("/v1/completions", json={**GAP, "model": "nobody"})
            assert response.status_code == 404
        refused = await client.post("/v1/completions", json=GAP)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
        assert refused.json()["error"]["code"] == "completion_rate_limited"
        other_key = await client.post("/v1/completions", json=GAP, headers={"authorization": "Bearer other"})
        assert other_key.status_code == 200
        assert (await client.post("/v1/completions", json=ONCE)).status_code == 200
    assert front.infill_counters.throttled == 1


async def test_request_with_a_suffix_whose_mode_is_wrong_costs_nothing() -> None:
    front = FrontEnd(completion=CompletionConfig(rate=0.1, burst=1))
    async with front.client() as client:
        response = await client.post("/v1/completions", json={**GAP, "fim_mode": "no"})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_value")
        assert (await client.post("/v1/completions", json=GAP)).status_code == 200


async def test_model_that_cannot_fill_in_is_a_400_that_names_the_suffix() -> None:
    front = FrontEnd()
    front.model.refusal = FimUnsupportedError("no tokens for it", param="suffix")
    async with front.client() as client:
        response = await client.post("/v1/completions", json=GAP)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("fim_unsupported", "suffix")


async def test_request_with_a_suffix_does_not_look_at_the_scheduling_headers() -> None:
    front = FrontEnd()
    async with front.client() as client:
        response = await client.post("/v1/completions", json=GAP, headers={"x-superfluid-qos": "nonsense"})
    assert response.status_code == 200
    assert front.model.requests[0].qos is QosClass.COMPLETION
