"""The application in process: routes, layers and their order, pages, and what bad input gets."""

from typing import Any

import httpx
import pytest
from tests.fixtures.http_server import FrontEnd
from tests.fixtures.scripted_models import ScriptedModel

from superfluid import errors
from superfluid.config import HttpConfig, Secret
from superfluid.domain.request import ChatPrompt
from superfluid.errors import SuperfluidError

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
KEYED = HttpConfig(api_key=Secret("sesame"))


def _error(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


async def test_health_says_how_many_models_are_loaded() -> None:
    front = FrontEnd(ScriptedModel(), ScriptedModel(model_id="other", is_ready=False))
    async with front.client() as client:
        response = await client.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok", "models_loaded": 1, "models_known": 2})


async def test_health_while_the_model_loads_is_503() -> None:
    async with FrontEnd(ScriptedModel(is_ready=False)).client() as client:
        response = await client.get("/health")
    assert response.status_code == 503
    assert response.json() == {"status": "loading", "models_loaded": 0, "models_known": 1}
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize("path", ["/metrics", "/v1/metrics"])
async def test_metrics_pages_show_what_the_callable_gives(path: str) -> None:
    async with FrontEnd().client() as client:
        response = await client.get(path)
    assert response.content == b"superfluid_ticks_total 1\n"
    assert response.headers["content-type"] == "text/plain; version=0.0.4"


async def test_root_is_friendly() -> None:
    async with FrontEnd().client() as client:
        assert (await client.get("/")).text == "superfluid is running\n"


async def test_models_lists_the_default_first_with_its_window_once_loaded() -> None:
    front = FrontEnd(ScriptedModel(), ScriptedModel(model_id="org/other", is_ready=False))
    async with front.client() as client:
        listing = (await client.get("/v1/models")).json()
        single = (await client.get("/v1/models/org/other")).json()
    assert listing["object"] == "list"
    assert listing["data"][0] == {
        "id": "scripted",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "superfluid",
        "type": "model",
        "display_name": "scripted",
        "created_at": "2023-11-14T22:13:20Z",
        "loaded": True,
        "architecture": {"input_modalities": ["text"]},
        "meta": {"n_ctx": 2048},
        "max_input_tokens": 2048,
    }
    assert listing["data"][1] == single
    assert (single["loaded"], "meta" in single) == (False, False)


async def test_models_of_an_unknown_name_is_404() -> None:
    async with FrontEnd().client() as client:
        response = await client.get("/v1/models/nobody")
    assert (response.status_code, _error(response)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/nothing", "/v1/chat", "/v1/chat/completions/", "/v1/models/"])
async def test_unknown_route_is_404_in_openai_form(path: str) -> None:
    async with FrontEnd().client() as client:
        response = await client.get(path)
    assert (response.status_code, _error(response)["type"]) == (404, "invalid_request_error")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v1/audio/transcriptions", "/v1/audio/translations"])
async def test_route_that_no_model_can_serve_is_a_wrong_request(path: str) -> None:
    async with FrontEnd().client() as client:
        refused = await client.post(path, content=b"no JSON")
        asked = await client.get(path)
    assert (refused.status_code, _error(refused)["code"]) == (400, "unsupported_model")
    assert "generates text only" in _error(refused)["message"]
    assert (asked.status_code, asked.headers["allow"]) == (405, "POST")


async def test_unknown_route_that_another_server_has_is_met_with_the_nearest() -> None:
    async with FrontEnd().client() as client:
        responses = await client.post("/v1/responses", json={})
        near = await client.get("/v1/modles")
        wrong_method = await client.post("/v1/models/load", json={})
    assert _error(responses)["message"].endswith("POST /v1/chat/completions is the nearest")
    assert _error(near)["message"] == "there is no route /v1/modles; the nearest is /v1/models"
    assert "the one model" in _error(wrong_method)["message"]


@pytest.mark.parametrize(("config", "status"), [(HttpConfig(), 404), (KEYED, 401)])
async def test_refusal_under_api_is_in_ollama_form(config: HttpConfig, status: int) -> None:
    async with FrontEnd(config=config).client() as client:
        response = await client.get("/api/nothing")
    assert response.status_code == status
    assert isinstance(response.json()["error"], str)


async def test_wrong_method_under_api_is_in_ollama_form() -> None:
    async with FrontEnd().client() as client:
        response = await client.get("/api/chat")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert "answers POST, not GET" in response.json()["error"]


async def test_wrong_method_is_405_and_names_the_right_one() -> None:
    async with FrontEnd().client() as client:
        response = await client.get(CHAT)
        other = await client.post("/health")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert _error(response)["type"] == "invalid_request_error"
    assert (other.status_code, other.headers["allow"]) == (405, "GET, HEAD")


async def test_key_opens_every_path_and_health_needs_none() -> None:
    async with FrontEnd(config=KEYED).client() as client:
        assert (await client.get("/health")).status_code == 200
        for path in ("/", "/v1/models", "/metrics", "/nothing"):
            refused = await client.get(path)
            assert (refused.status_code, _error(refused)["code"]) == (401, "invalid_api_key")
            assert refused.headers["www-authenticate"] == "Bearer"
        for headers in ({"authorization": "Bearer sesame"}, {"x-api-key": "sesame"}):
            assert (await client.get("/v1/models", headers=headers)).status_code == 200


async def test_refused_origin_beats_a_bad_key_and_guards_even_health() -> None:
    async with FrontEnd(config=KEYED).client() as client:
        for path in ("/health", "/v1/models"):
            response = await client.get(path, headers={"origin": "http://evil.example"})
            assert (response.status_code, _error(response)["code"]) == (403, "origin_refused")
            assert not any(name.startswith("access-control") for name in response.headers)


async def test_bad_key_beats_a_body_over_the_limit() -> None:
    config = HttpConfig(api_key=Secret("sesame"), max_body_bytes=10)
    async with FrontEnd(config=config).client() as client:
        assert (await client.post(CHAT, json=HELLO)).status_code == 401
        response = await client.post(CHAT, json=HELLO, headers={"x-api-key": "sesame"})
    assert (response.status_code, _error(response)["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b'{"model":', 400, None, None),
        (b"", 400, None, None),
        (b'{"messages":[]}', 400, None, "model"),
        (b'{"model":"scripted","messages":[]}', 400, None, "messages"),
        (b'{"model":"scripted","messages":[{"role":"user","content":5}]}', 400, None, "messages[0].content"),
        (
            b'{"model":"scripted","messages":[{"role":"user"}],"temperature":9}',
            400,
            "invalid_value",
            "temperature",
        ),
        (b'{"model":"nobody","messages":[{"role":"user"}]}', 404, "model_not_found", "model"),
    ],
)
async def test_bad_chat_body_gets_one_clear_error(
    body: bytes, status: int, code: str | None, param: str | None
) -> None:
    front = FrontEnd()
    async with front.client() as client:
        response = await client.post(CHAT, content=body)
    error = _error(response)
    assert (response.status_code, error["code"], error["param"]) == (status, code, param)
    assert error["message"]
    assert front.model.requests == []


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.ContextLengthExceededError("too long", param="messages"), 400),
        (errors.TemplateRefusedError("no"), 400),
        (errors.QueueFullError("full"), 503),
        (errors.ModelLoadingError("loading"), 503),
        (errors.ShuttingDownError("bye"), 503),
        (errors.WorkerFailedError("dead"), 500),
    ],
)
async def test_refusal_at_the_start_has_its_own_status(error: SuperfluidError, status: int, is_stream: bool) -> None:
    front = FrontEnd()
    front.model.refusal = error
    async with front.client() as client:
        response = await client.post(CHAT, json={**HELLO, "stream": is_stream})
    assert (response.status_code, _error(response)["message"]) == (status, error.message)
    assert response.headers.get("retry-after") == ("1" if error.is_retryable else None)
    assert front.log == []


async def test_big_body_is_served_like_a_small_one() -> None:
    front = FrontEnd()
    text = "word " * 40_000
    async with front.client() as client:
        response = await client.post(CHAT, json={**HELLO, "messages": [{"role": "user", "content": text}]})
    assert response.status_code == 200
    prompt = front.model.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[0].content == text


async def test_unforeseen_failure_is_a_500_that_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    front = FrontEnd(ScriptedModel(lambda request: [ValueError("secret detail")]))
    async with front.client() as client:
        response = await client.post(CHAT, json=HELLO)
    assert (response.status_code, _error(response)["type"]) == (500, "server_error")
    assert "secret detail" not in response.text
    assert "secret detail" in caplog.text


async def test_health_follows_the_model() -> None:
    front = FrontEnd(ScriptedModel(is_ready=False))
    async with front.client() as client:
        assert (await client.get("/health")).status_code == 503
        front.model.is_ready = True
        assert (await client.get("/health")).status_code == 200
