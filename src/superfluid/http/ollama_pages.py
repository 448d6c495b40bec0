"""The routes of Ollama's API that generate nothing: what is served, what it is, and what is refused. In the daemon."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

from superfluid.domain.model import ModelFacts
from superfluid.errors import RouteRetiredError, SuperfluidError, UnsupportedInputError
from superfluid.http.bodies import ClientGoneError, read_body
from superfluid.http.json_codec import decode_body, encode
from superfluid.http.ollama_records import timestamp
from superfluid.http.ollama_types import ShowBody
from superfluid.http.request_fields import required_model
from superfluid.http.responses import send_response
from superfluid.sessions.interface import AdapterDirectory, ModelDirectory, ServedModel
from superfluid.version import __version__

MAX_BODY_BYTES: Final = 64 * 1024
# Ollama's own way of saying that a model stays.
_NEVER: Final = "9999-12-31T23:59:59Z"
_CAPABILITIES: Final = {"completion": "completion", "tools": "tools", "reasoning": "thinking", "infill": "insert"}
"""What a model can do by superfluid's names and by Ollama's. No ``vision``: these routes take no images."""
_ONE_MODEL: Final = "this server serves the one model that it was started with"
_NO_MODELS: Final = (RouteRetiredError, f"models are neither made nor removed over HTTP: {_ONE_MODEL}")
_NO_EMBEDDINGS: Final = (UnsupportedInputError, "this server makes no embeddings: it generates text only")
Refusal = tuple[type[SuperfluidError], str]
REFUSALS: Final[Mapping[str, Refusal]] = {
    "/api/pull": (RouteRetiredError, "models are fetched on the command line: superfluid pull"),
    "/api/push": (RouteRetiredError, "this server publishes no models"),
    **dict.fromkeys(["/api/create", "/api/copy", "/api/delete", "/api/blobs/{digest:path}"], _NO_MODELS),
    **dict.fromkeys(["/api/embed", "/api/embeddings"], _NO_EMBEDDINGS),
}
"""By path, whatever the method."""


class RefusedRoute:
    """The endpoint of a route that Ollama has and that cannot be had here."""

    def __init__(self, refusal: Refusal) -> None:
        self._error, self._message = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise self._error(self._message)


class OllamaPages:
    """Each method is an ASGI endpoint."""

    def __init__(self, models: ModelDirectory, adapters: AdapterDirectory | None = None) -> None:
        self._models = models
        self._adapters = adapters

    async def version(self, scope: Scope, receive: Receive, send: Send) -> None:
        page = {"version": __version__, "server": "superfluid", "compatibility": "ollama-inference"}
        await send_response(send, 200, encode(page))

    async def tags(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything a request can name, loaded or not."""
        await send_response(send, 200, encode({"models": [_tag(*known) for known in self._known()]}))

    async def running(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``/api/ps``. Where the weights lie is not known, so no ``size_vram``."""
        entries = [
            {**_tag(model, parent), "expires_at": _NEVER, "context_length": model.facts.window_tokens}
            for model, parent in self._known()
            if model.is_ready
        ]
        await send_response(send, 200, encode({"models": entries}))

    async def show(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            raw = await read_body(scope, receive, MAX_BODY_BYTES)
        except ClientGoneError:
            return
        body = decode_body(_show_decoder, raw)
        model = self._models.resolve(required_model(body.model or body.name))
        parent = next((parent for known, parent in self._known() if known is model), "")
        await send_response(send, 200, encode(show_page(model, parent, is_verbose=bool(body.verbose))))

    def _known(self) -> list[tuple[ServedModel, str]]:
        """Each with the id of the model that it is an adapter of, or nothing."""
        adapters = () if self._adapters is None else self._adapters.list_adapters()
        known: list[tuple[ServedModel, str]] = [(model, "") for model in self._models.list_models()]
        return known + [(adapter, adapter.base_id) for adapter in adapters]


_show_decoder = msgspec.json.Decoder(ShowBody)


def show_page(model: ServedModel, parent: str, *, is_verbose: bool) -> dict[str, Any]:
    """What is known of one model. ``is_verbose`` adds why it cannot do what it cannot."""
    facts = model.facts if model.is_ready else None
    page: dict[str, Any] = {
        "modified_at": timestamp(model.created_unix),
        "details": _details(parent, facts),
        "model_info": {} if facts is None else _model_info(facts),
        "superfluid": {"model": model.model_id, "loaded": facts is not None},
    }
    if facts is None:
        return page
    record = dict(model.capabilities)
    page["capabilities"] = [theirs for ours, theirs in _CAPABILITIES.items() if record.get(ours) is True]
    page["parameters"] = _parameters(model)
    if model.template_text is not None:
        page["template"] = model.template_text
    if is_verbose:
        page["superfluid"]["capabilities"] = record
    return page


def _tag(model: ServedModel, parent: str) -> dict[str, Any]:
    """A file has no digest that is known without reading all of it: it is that of the name, as a stand-in."""
    facts = model.facts if model.is_ready else None
    return {
        "name": model.model_id,
        "model": model.model_id,
        "modified_at": timestamp(model.created_unix),
        "size": 0 if facts is None else facts.weights_bytes,
        "digest": hashlib.sha256(model.model_id.encode("utf-8", "replace")).hexdigest(),
        "details": _details(parent, facts),
    }


def _details(parent: str, facts: ModelFacts | None) -> dict[str, Any]:
    """The size and the quantization are words of llama.cpp's description, which begins with the architecture."""
    details: dict[str, Any] = {
        "parent_model": parent,
        "format": "gguf",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": "",
    }
    if facts is not None:
        _, _, rest = facts.description.partition(" ")
        size, _, quantization = rest.partition(" ")
        details |= {"family": facts.architecture, "families": [facts.architecture]}
        details |= {"parameter_size": size, "quantization_level": quantization}
    return details


def _model_info(facts: ModelFacts) -> dict[str, Any]:
    """``context_length`` is what a request can use here, and not what the model was trained for: clients size their
    prompts by it."""
    return {
        "general.architecture": facts.architecture,
        "general.parameter_count": facts.parameters,
        f"{facts.architecture}.context_length": facts.window_tokens,
        f"{facts.architecture}.trained_context_length": facts.trained_window_tokens,
        f"{facts.architecture}.vocab_size": facts.vocabulary_tokens,
    }


def _parameters(model: ServedModel) -> str:
    """The sampling that requests start from, a line each."""
    defaults = model.sampling_defaults
    names = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty")
    values = [(name, getattr(defaults, name)) for name in names]
    return "\n".join(f"{name} {value:g}" for name, value in values if value is not None)
