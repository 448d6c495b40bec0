"""The routes about LoRA adapters, over the use cases with a backend that only takes notes."""

import asyncio
from typing import Any

import httpx
import pytest
from tests.fixtures.adapters import AdapterHouse
from tests.fixtures.http_server import FrontEnd

from superfluid.config import HttpConfig, Secret
from superfluid.errors import AdapterRefusedError, ModelLoadingError


@pytest.fixture
def house() -> AdapterHouse:
    return AdapterHouse()


def _front(house: AdapterHouse, config: HttpConfig | None = None) -> FrontEnd:
    return FrontEnd(house.model, adapters=house, config=config)


async def _post(client: httpx.AsyncClient, path: str, body: Any) -> httpx.Response:
    return await client.post(f"/v1/lora/{path}", json=body)


async def test_loaded_adapter_is_listed_among_its_own_and_among_the_models(house: AdapterHouse) -> None:
    async with _front(house).client() as client:
        loaded = await _post(client, "load", {"name": "sql", "path": "/adapters/sql-v2.gguf"})
        listing = (await client.get("/v1/lora")).json()
        models = (await client.get("/v1/models")).json()["data"]
    entry = {
        "name": "sql",
        "object": "lora",
        "id": "scripted:sql",
        "parent": "scripted",
        "path": "/adapters/sql-v2.gguf",
        "created": 1_800_000_000,
        "loaded": True,
    }
    assert (loaded.status_code, loaded.json()) == (200, entry)
    assert listing == {"object": "list", "data": [entry]}
    assert [(model["id"], model.get("parent")) for model in models] == [
        ("scripted", None),
        ("scripted:sql", "scripted"),
    ]


async def test_name_left_out_is_the_files_own(house: AdapterHouse) -> None:
    async with _front(house).client() as client:
        assert (await _post(client, "load", {"path": "/adapters/sql-v2.gguf"})).json()["id"] == "scripted:sql-v2"


async def test_unloaded_adapter_is_gone_at_once_and_its_name_free(house: AdapterHouse) -> None:
    async with _front(house).client() as client:
        await _post(client, "load", {"path": "/a.gguf"})
        unloaded = await _post(client, "unload", {"name": "a"})
        listing = (await client.get("/v1/lora")).json()["data"]
        again = await _post(client, "load", {"path": "/a.gguf"})
    assert (unloaded.status_code, unloaded.json()["loaded"]) == (200, False)
    assert listing == []
    assert again.status_code == 200
    assert house.calls == [("load", 1, "/a.gguf"), ("unload", 1), ("load", 2, "/a.gguf")]


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        ("load", {}, 400, None, "path"),
        ("load", {"path": 7}, 400, None, "path"),
        ("load", {"path": ""}, 400, "invalid_value", "path"),
        ("load", {"path": "a\0b"}, 400, "invalid_value", "path"),
        ("load", {"path": "/a.gguf", "name": "no spaces"}, 400, "invalid_value", "name"),
        ("load", {"path": "/a.gguf", "name": "a:b"}, 400, "invalid_value", "name"),
        ("load", {"path": "/a.gguf", "name": "latest"}, 400, "invalid_value", "name"),
        ("load", {"path": "/a.gguf", "name": "x" * 65}, 400, "invalid_value", "name"),
        ("load", {"path": "/there.gguf"}, 400, "adapter_refused", "name"),
        ("load", {"path": "/refused.gguf"}, 400, "adapter_refused", "path"),
        ("load", [], 400, None, None),
        ("unload", {}, 400, None, "name"),
        ("unload", {"name": "nobody"}, 404, "adapter_not_found", "name"),
    ],
)
async def test_bad_request_is_refused_in_the_dialects_form(
    house: AdapterHouse, path: str, body: Any, status: int, code: str | None, param: str | None
) -> None:
    house.refused["/refused.gguf"] = AdapterRefusedError("it is for another model", param="path")
    async with _front(house).client() as client:
        await _post(client, "load", {"path": "/there.gguf"})
        response = await _post(client, path, body)
        listing = (await client.get("/v1/lora")).json()["data"]
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"], error["param"]) == (
        status,
        "invalid_request_error",
        code,
        param,
    )
    assert [entry["name"] for entry in listing] == ["there"]


async def test_body_that_is_no_json_or_too_large_is_refused(house: AdapterHouse) -> None:
    async with _front(house).client() as client:
        assert (await client.post("/v1/lora/load", content=b"{")).status_code == 400
        assert (await client.post("/v1/lora/unload", content=b" " * 70_000)).status_code == 413


async def test_routes_need_the_key_when_one_is_set(house: AdapterHouse) -> None:
    async with _front(house, HttpConfig(api_key=Secret("sesame"))).client() as client:
        answers = [
            await client.get("/v1/lora"),
            await _post(client, "load", {"path": "/a.gguf"}),
            await _post(client, "unload", {"name": "a"}),
        ]
    assert [answer.status_code for answer in answers] == [401, 401, 401]
    assert house.calls == []


async def test_other_methods_are_refused_and_name_the_right_one(house: AdapterHouse) -> None:
    async with _front(house).client() as client:
        assert (await client.get("/v1/lora/load")).headers["allow"] == "POST"


async def test_request_goes_to_the_adapter_it_names_and_to_the_model_alone_without(house: AdapterHouse) -> None:
    async with _front(house).client() as client:
        await _post(client, "load", {"path": "/a.gguf"})
        for model in ("scripted:a", "scripted"):
            body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.json()["model"] == model
        missing = await client.post("/v1/chat/completions", json={"model": "scripted:b", "messages": []})
    assert [request.adapter for request in house.model.requests] == [1, 0]
    assert missing.status_code in (400, 404)


async def test_two_loads_of_one_name_at_once_give_one_adapter(house: AdapterHouse) -> None:
    house.gate = asyncio.Event()
    async with _front(house).client() as client:
        first = asyncio.create_task(_post(client, "load", {"path": "/a.gguf"}))
        await house.asked.wait()
        second = await _post(client, "load", {"path": "/a.gguf"})
        house.gate.set()
        assert ((await first).status_code, second.status_code) == (200, 400)
    assert house.calls == [("load", 1, "/a.gguf")]


async def test_load_that_is_cancelled_leaves_nothing_loaded(house: AdapterHouse) -> None:
    house.gate = asyncio.Event()
    task = asyncio.create_task(house.load_adapter("a", "/a.gguf"))
    await house.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert house.calls == [("load", 1, "/a.gguf"), ("unload", 1)]
    assert house.list_adapters() == []


async def test_lost_adapter_is_listed_no_more(house: AdapterHouse) -> None:
    await house.load_adapter("a", "/a.gguf")
    house.adapters.lost(1, AdapterRefusedError("its file is gone"))
    assert house.list_adapters() == []


async def test_worker_that_is_not_there_is_said_to_be_loading(house: AdapterHouse) -> None:
    house.refused["/a.gguf"] = ModelLoadingError("try again")
    async with _front(house).client() as client:
        answer = await _post(client, "load", {"path": "/a.gguf"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
