"""The scripted model's tokens are bytes."""

from typing import Any

import pytest
from starlette.types import Message
from tests.fixtures.http_server import FrontEnd
from tests.fixtures.scripted_models import ScriptedDirectory

from superfluid.errors import ModelLoadingError
from superfluid.http.tokenize import MAX_BODY_BYTES, TokenizePage

ROUTE = "/v1/tokenize"


@pytest.mark.parametrize(
    "body", [{"content": "hé"}, {"text": "hé"}, {"content": "hé", "text": "other", "model": "any"}]
)
async def test_tokenize_answers_the_tokens_and_their_count(body: dict[str, Any]) -> None:
    async with FrontEnd().client() as client:
        response = await client.post(ROUTE, json=body)
    assert (response.status_code, response.json()) == (200, {"tokens": [104, 195, 169], "count": 3})


async def test_tokenize_takes_an_empty_text_and_one_that_is_parsed_off_the_event_loop() -> None:
    async with FrontEnd().client() as client:
        empty = await client.post(ROUTE, json={"content": ""})
        large = await client.post(ROUTE, json={"content": "x" * 100_000})
    assert (empty.json()["count"], large.json()["count"]) == (0, 100_000)


@pytest.mark.parametrize(
    ("content", "status", "param"),
    [
        (b"{}", 400, "content"),
        (b'{"content": null}', 400, "content"),
        (b'{"content": 5}', 400, "content"),
        (b"", 400, None),
        (b"x" * (MAX_BODY_BYTES + 1), 413, None),
    ],
)
async def test_tokenize_refuses_what_is_no_text(content: bytes, status: int, param: str | None) -> None:
    async with FrontEnd().client() as client:
        response = await client.post(ROUTE, content=content)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


async def test_tokenize_before_there_is_a_model_says_that_it_loads() -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b'{"content": "x"}'}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    with pytest.raises(ModelLoadingError):
        await TokenizePage(ScriptedDirectory())({"type": "http", "headers": []}, receive, send)
