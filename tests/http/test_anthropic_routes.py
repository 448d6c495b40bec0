"""Anthropic's routes in the application: what the layers around them refuse comes in Anthropic's form."""

from typing import Any

import httpx
import pytest
from tests.fixtures.http_server import FrontEnd
from tests.fixtures.scripted_models import ScriptedModel, says

from superfluid.config import HttpConfig, HttpQosConfig, Secret
from superfluid.domain.request import QosClass

PATHS = ["/v1/messages", "/v1/messages/count_tokens"]
HELLO: dict[str, Any] = {"model": "scripted", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}


def _error(response: httpx.Response) -> tuple[int, str]:
    body = response.json()
    assert set(body) == {"type", "error"}
    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message"}
    assert body["error"]["message"]
    return response.status_code, body["error"]["type"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("config", "headers", "expected"),
    [
        (HttpConfig(api_key=Secret("sesame")), {}, (401, "authentication_error")),
        (HttpConfig(), {"origin": "http://evil.example"}, (403, "permission_error")),
        (HttpConfig(), {"x-superfluid-qos": "royal"}, (400, "invalid_request_error")),
        (HttpConfig(), {"x-superfluid-batch-invariant": "true"}, (403, "permission_error")),
        (HttpConfig(max_body_bytes=20), {}, (413, "request_too_large")),
    ],
)
async def test_refusal_of_a_layer_comes_in_the_form_of_the_dialect(
    path: str, config: HttpConfig, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    async with FrontEnd(config=config).client() as client:
        assert _error(await client.post(path, json=HELLO, headers=headers)) == expected


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("header", [{"x-api-key": "sesame"}, {"authorization": "Bearer sesame"}])
async def test_key_is_taken_from_either_header(path: str, header: dict[str, str]) -> None:
    headers = {**header, "anthropic-version": "2023-06-01", "anthropic-beta": "x"}
    async with FrontEnd(config=HttpConfig(api_key=Secret("sesame"))).client() as client:
        assert (await client.post(f"{path}?beta=true", json=HELLO, headers=headers)).status_code == 200


@pytest.mark.parametrize("path", PATHS)
async def test_too_many_requests_of_an_address_are_told_when_to_come_back(path: str) -> None:
    async with FrontEnd(config=HttpConfig(rate_limit_rpm=1)).client() as client:
        assert (await client.post(path, json=HELLO)).status_code == 200
        response = await client.post(path, json=HELLO)
    assert _error(response) == (429, "rate_limit_error")
    assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":"scripted"}', b'{"model":"nobody","messages":5}'])
async def test_body_that_is_none_is_refused_in_the_form_of_the_dialect(path: str, body: bytes) -> None:
    async with FrontEnd().client() as client:
        assert _error(await client.post(path, content=body)) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v1/messages", (405, "invalid_request_error")),
        ("GET", "/v1/messages/count_tokens", (405, "invalid_request_error")),
        ("POST", "/v1/messages/batches", (404, "not_found_error")),
        ("POST", "/v1/messages/", (404, "not_found_error")),
    ],
)
async def test_route_that_is_none_is_refused_in_the_form_of_the_dialect(
    method: str, path: str, expected: tuple[int, str]
) -> None:
    async with FrontEnd().client() as client:
        assert _error(await client.request(method, path)) == expected


async def test_unforeseen_failure_is_an_api_error() -> None:
    def fail(request: object) -> Any:
        raise ValueError("secret")

    async with FrontEnd(ScriptedModel(fail)).client() as client:
        response = await client.post("/v1/messages", json=HELLO)
    assert _error(response) == (500, "api_error")
    assert "secret" not in response.text


async def test_class_of_the_header_reaches_the_request() -> None:
    front = FrontEnd(config=HttpConfig(qos=HttpQosConfig()))
    async with front.client() as client:
        await client.post("/v1/messages", json=HELLO, headers={"x-superfluid-qos": "interactive"})
    assert front.model.requests[0].qos is QosClass.INTERACTIVE


async def test_answer_carries_the_warm_header_and_is_logged_like_a_chat() -> None:
    front = FrontEnd(ScriptedModel(lambda request: says("Hello", " world", warm_tokens=4)))
    async with front.client() as client:
        response = await client.post("/v1/messages", json=HELLO)
    assert response.headers["x-superfluid-warm"] == "4"
    (timing,) = front.log
    assert (timing.route, timing.model, timing.finish) == ("POST /v1/messages", "scripted", "stop")
    assert (timing.prompt_tokens, timing.cached_tokens, timing.completion_tokens) == (7, 4, 2)
