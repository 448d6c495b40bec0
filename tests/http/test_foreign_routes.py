import re

import pytest

from superfluid.http.foreign_routes import _BEGINNINGS, _EXACT, route_hint

ROUTES = [
    "/", "/health", "/metrics", "/props", "/slots", "/slots/{slot}/save", "/v1/models", "/v1/models/{model:path}",
    "/v1/lora", "/v1/tokenize", "/v1/chat/completions", "/v1/completions",
    "/v1/messages",
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/completion", "POST /v1/completions is the nearest"),
        ("/chat/completions", "a client's base URL ends in /v1"),
        ("/v1/v1/chat/completions", "one /v1 too many"),
        ("//v1/chat/completions", "the nearest is /v1/chat/completions"),
        ("/v1/chat/completions/", "the nearest is /v1/chat/completions"),
        ("/V1/Models", "the nearest is /v1/models"),
        ("/v1/embeddings", "text only"),
        ("/v1/audio/transcriptions", "text only"),
        ("/v1/responses/resp_1/cancel", "Responses API is not there yet"),
        ("/messages", "POST /v1/messages"),
        ("/v1/messages/batches", "no files and batches"),
        ("/api/me", "of Ollama's API there are chat"),
        ("/infill", "with a suffix"),
        ("/tokenize", "POST /v1/tokenize"),
        ("/web/rpc", "--web ADDR:PORT"),
        ("/helth", "the nearest is /health"),
    ],
)
def test_route_of_another_server_gets_a_hint(path: str, hint: str) -> None:
    assert hint in (route_hint(path, ROUTES) or "")


@pytest.mark.parametrize("path", ["/", "/nothing", "/favicon.ico", "/v1/frobnicate", "/slot/{slot}/save"])
def test_route_that_nobody_has_gets_no_hint(path: str) -> None:
    assert route_hint(path, ["/slots/{slot}/save"]) is None


def test_route_hints_name_routes_that_exist() -> None:
    hints = [*_EXACT.values(), *(hint for _, hint in _BEGINNINGS)]
    named = {path for hint in hints for path in re.findall(r"(?:GET|POST) (/[\w/]+)", hint)}
    assert len(named) > 5
    assert named <= set(ROUTES)
