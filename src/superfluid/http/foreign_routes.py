"""What to say to who asks for a route of llama-server, Ollama, vLLM or OpenAI that is not served here. Pure."""

import difflib
import re
from collections.abc import Iterable, Mapping

_TEXT_ONLY = "this server generates text only"
_CHAT = "POST /v1/chat/completions is the nearest"
_COMPLETIONS = "POST /v1/completions is the nearest"
_ONE_MODEL = "a server serves the one model that it was started with"
_HEALTH = "GET /health is the nearest"
_PROPS = "GET /props is the nearest"

UNSERVED: Mapping[str, str] = {
    "/v1/embeddings": f"there is no model for embeddings: {_TEXT_ONLY}",
    "/v1/rerank": f"there is no model for ranking: {_TEXT_ONLY}",
    **dict.fromkeys(
        ["/v1/audio/transcriptions", "/v1/audio/translations"], f"there is no model for speech: {_TEXT_ONLY}"
    ),
}
"""Routes that no model here could serve: POST is refused as a wrong request, not as a wrong address."""

_EXACT: Mapping[str, str] = {
    "/v1": "it is a base URL; GET /v1/models is a route",
    **dict.fromkeys(["/completion", "/completions", "/v1/completion", "/generate"], _COMPLETIONS),
    **dict.fromkeys(["/chat", "/v1/chat", "/v1/chat/completion"], _CHAT),
    "/chat/completions": f"{_CHAT}: a client's base URL ends in /v1",
    **dict.fromkeys(["/models", "/api/v0/models", "/api/v1/models"], "GET /v1/models is the nearest"),
    "/infill": "POST /v1/completions with a suffix fills in the middle",
    "/v1/responses": f"the Responses API is not there yet; {_CHAT}",
    **dict.fromkeys(
        ["/messages", "/v1/complete", "/v1/message"],
        "POST /v1/messages is the nearest; the base URL of Anthropic's client has no /v1",
    ),
    "/tokenize": "POST /v1/tokenize is the nearest",
    **dict.fromkeys(
        ["/detokenize", "/v1/detokenize", "/apply-template"],
        "POST /v1/tokenize turns text into tokens, and nothing turns them back",
    ),
    **dict.fromkeys(["/healthz", "/livez", "/readyz", "/ping", "/ready", "/v1/health", "/api/health"], _HEALTH),
    **dict.fromkeys(["/version", "/v1/version", "/server_info", "/v1/props"], _PROPS),
    **dict.fromkeys(["/load", "/v1/slots"], "GET /slots is the nearest"),
    "/lora-adapters": "GET /v1/lora is the nearest",
    **dict.fromkeys(["/v1/models/load", "/v1/models/unload", "/models/load", "/models/unload"], _ONE_MODEL),
    **dict.fromkeys(["/docs", "/redoc", "/openapi.json"], "the README lists the routes"),
    **dict.fromkeys(["/ui", "/chat-ui", "/index.html"], "there is no page to chat on; `superfluid chat` is for that"),
}
_BEGINNINGS: Iterable[tuple[str, str]] = (
    *((path, _TEXT_ONLY) for path in ("/embed", "/v1/embed", "/rerank", "/v1/rerank", "/score")),
    *((path, _TEXT_ONLY) for path in ("/pooling", "/classify", "/v1/score", "/v1/audio", "/v1/images", "/v1/moder")),
    *((path, "there are no files and batches here") for path in ("/v1/files", "/v1/batches", "/v1/messages/batches")),
    ("/v1/v1/", "a client's base URL has one /v1 too many"),
    ("/web/", "the session API has a port of its own: superfluid serve --web ADDR:PORT"),
    ("/v1/responses/", _EXACT["/v1/responses"]),
    ("/slots/", "GET /slots tells about all lanes; prefixes are kept without being asked"),
    ("/api/v0/", "an OpenAI client's base URL ends in /v1"),
    ("/api/", "of Ollama's API there are chat, generate, tags, show, ps and version"),
)


def route_hint(path: str, known: Iterable[str]) -> str | None:
    """The clause of the error for ``path``, which is none of the ``known`` routes; None if there is nothing to say."""
    plain = re.sub("/+", "/", path).rstrip("/").lower() or "/"
    if plain in _EXACT:
        return _EXACT[plain]
    for beginning, hint in _BEGINNINGS:
        if plain.startswith(beginning):
            return hint
    nearest = difflib.get_close_matches(plain, [route for route in known if "{" not in route], n=1, cutoff=0.8)
    return f"the nearest is {nearest[0]}" if nearest else None
