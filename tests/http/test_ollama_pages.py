"""The routes of Ollama's API that generate nothing."""

import hashlib

import httpx
import msgspec
import pytest
from tests.fixtures.adapters import AdapterHouse
from tests.fixtures.http_server import FrontEnd
from tests.fixtures.scripted_models import FACTS, ScriptedModel

from superfluid.domain.request import SamplingOverrides
from superfluid.version import __version__

DETAILS = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "135M",
    "quantization_level": "Q4_K - Medium",
}


class KnownModel(ScriptedModel):
    """A model that is described as llama.cpp describes one."""

    facts = msgspec.structs.replace(
        FACTS,
        architecture="llama",
        description="llama 135M Q4_K - Medium",
        weights_bytes=98_000_000,
        parameters=134_515_008,
        trained_window_tokens=8192,
    )


@pytest.fixture
def front() -> FrontEnd:
    return FrontEnd(KnownModel(), ScriptedModel(model_id="org/other", is_ready=False))


async def test_version_says_whose_it_is(front: FrontEnd) -> None:
    async with front.client() as client:
        page = (await client.get("/api/version")).json()
    assert page == {"version": __version__, "server": "superfluid", "compatibility": "ollama-inference"}


async def test_tags_list_every_model_loaded_or_not(front: FrontEnd) -> None:
    async with front.client() as client:
        first, second = (await client.get("/api/tags")).json()["models"]
    assert first == {
        "name": "scripted",
        "model": "scripted",
        "modified_at": "2023-11-14T22:13:20Z",
        "size": 98_000_000,
        "digest": hashlib.sha256(b"scripted").hexdigest(),
        "details": DETAILS,
    }
    assert (second["name"], second["size"], second["details"]["family"]) == ("org/other", 0, "")


async def test_ps_lists_what_is_loaded_with_its_window(front: FrontEnd) -> None:
    async with front.client() as client:
        (entry,) = (await client.get("/api/ps")).json()["models"]
    assert (entry["name"], entry["context_length"], entry["expires_at"][:4]) == ("scripted", 2048, "9999")


async def test_adapters_are_listed_with_the_model_below_them() -> None:
    house = AdapterHouse()
    await house.load_adapter("sql", "/adapters/sql.gguf")
    async with FrontEnd(house.model, adapters=house).client() as client:
        _, tag = (await client.get("/api/tags")).json()["models"]
        shown = (await client.post("/api/show", json={"model": "scripted:sql"})).json()
    assert (tag["name"], tag["details"]["parent_model"]) == ("scripted:sql", "scripted")
    assert shown["details"]["parent_model"] == "scripted"


@pytest.mark.parametrize("field", ["model", "name"])
async def test_show_tells_what_the_model_is_and_can(front: FrontEnd, field: str) -> None:
    front.model.capabilities = {"completion": True, "tools": True, "reasoning": "no markers", "infill": True}
    front.model.sampling_defaults = SamplingOverrides(temperature=0.2, top_k=40)
    async with front.client() as client:
        page = (await client.post("/api/show", json={field: "scripted"})).json()
    assert page == {
        "modified_at": "2023-11-14T22:13:20Z",
        "details": DETAILS,
        "model_info": {
            "general.architecture": "llama",
            "general.parameter_count": 134_515_008,
            "llama.context_length": 2048,
            "llama.trained_context_length": 8192,
            "llama.vocab_size": 256,
        },
        "superfluid": {"model": "scripted", "loaded": True},
        "capabilities": ["completion", "tools", "insert"],
        "parameters": "temperature 0.2\ntop_k 40",
        "template": "{{ messages }}",
    }


async def test_show_when_verbose_says_why_not(front: FrontEnd) -> None:
    async with front.client() as client:
        page = (await client.post("/api/show", json={"model": "scripted", "verbose": True})).json()
    assert page["superfluid"]["capabilities"] == {"chat": True, "audio": "text only"}


async def test_show_of_a_model_that_loads_says_so(front: FrontEnd) -> None:
    async with front.client() as client:
        page = (await client.post("/api/show", json={"model": "org/other"})).json()
    assert page["superfluid"] == {"model": "org/other", "loaded": False}
    assert "capabilities" not in page


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{}", 400, "names no model"),
        (b"", 400, "empty"),
        (b'{"model":5}', 400, "expected"),
        (b'{"model":"nobody"}', 404, "nobody"),
        (b'{"model":"' + b"x" * 100_000 + b'"}', 413, "larger"),
    ],
)
async def test_show_refuses_in_ollamas_form(front: FrontEnd, body: bytes, status: int, says: str) -> None:
    async with front.client() as client:
        response = await client.post("/api/show", content=body)
    assert response.status_code == status
    assert says in _error(response)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/api/pull", 501),
        ("POST", "/api/push", 501),
        ("POST", "/api/create", 501),
        ("POST", "/api/copy", 501),
        ("DELETE", "/api/delete", 501),
        ("HEAD", "/api/blobs/sha256:29fd", 501),
        ("POST", "/api/blobs/sha256:29fd", 501),
        ("POST", "/api/embed", 400),
        ("POST", "/api/embeddings", 400),
    ],
)
async def test_route_that_cannot_be_had_says_so(front: FrontEnd, method: str, path: str, status: int) -> None:
    async with front.client() as client:
        response = await client.request(method, path, json={"model": "scripted"})
    assert response.status_code == status
    assert method == "HEAD" or _error(response)


async def test_root_and_discovery_answer_head(front: FrontEnd) -> None:
    async with front.client() as client:
        for path in ("/", "/api/tags", "/api/version"):
            assert (await client.head(path)).status_code == 200


def _error(response: httpx.Response) -> str:
    body = response.json()
    assert set(body) == {"error"}
    assert isinstance(body["error"], str)
    return str(body["error"])
