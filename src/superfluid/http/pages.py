"""The pages that generate nothing: health, metrics, models, the root. Runs in the daemon; touches no engine."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from superfluid.clock import Clock
from superfluid.domain.statistics import KeyStatistics, ModelStatistics
from superfluid.errors import MethodNotAllowedError, ModelLoadingError, RouteNotFoundError, RouteRetiredError
from superfluid.http.errors import RETRY_AFTER_SECONDS, path_error_body
from superfluid.http.foreign_routes import route_hint
from superfluid.http.key_metrics import key_rows
from superfluid.http.responses import TEXT, Header, send_error, send_response
from superfluid.http.status import SessionOf, props_page, slots_entry
from superfluid.sessions.interface import AdapterDirectory, ModelDirectory, ServedModel

MetricsPage = Callable[[], tuple[bytes, str]]
KeyStatisticsOf = Callable[[Scope], Sequence[KeyStatistics]]
"""What the asker may see of the policy's keys."""


class StatusSource(Struct, frozen=True):
    """Where the status pages look: the default model's numbers, and the session of a running job."""

    statistics: Callable[[], ModelStatistics]
    session_of: SessionOf
    max_request_bytes: int


class MethodTable:
    """The endpoint of one path: a handler per method. HEAD is answered wherever GET is; the server drops the body."""

    def __init__(self, handlers: Mapping[str, ASGIApp]) -> None:
        self._handlers = dict(handlers)
        if "GET" in self._handlers:
            self._handlers.setdefault("HEAD", self._handlers["GET"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handlers.get(scope["method"])
        if handler is not None:
            await handler(scope, receive, send)
            return
        allowed = ", ".join(sorted(self._handlers))
        hint = route_hint(scope["path"], ())
        problem = f"{scope['path']} answers {allowed}, not {scope['method']}"
        error = MethodNotAllowedError(problem if hint is None else f"{problem}; {hint}")
        await send_error(send, error, path_error_body(scope["path"], error), [(b"allow", allowed.encode())])


class UnknownRoute:
    """The endpoint of all paths that there is no other for. ``known`` are those of the others."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = list(known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hint = route_hint(scope["path"], self._known)
        problem = f"there is no route {scope['path']}"
        raise RouteNotFoundError(problem if hint is None else f"{problem}; {hint}")


class Pages:
    """Each method is an ASGI endpoint."""

    def __init__(
        self,
        models: ModelDirectory,
        metrics: MetricsPage,
        status: StatusSource,
        clock: Clock,
        adapters: AdapterDirectory | None = None,
        key_statistics: KeyStatisticsOf = lambda _: (),
    ) -> None:
        self._models = models
        self._adapters = adapters
        self._metrics = metrics
        self._status = status
        self._clock = clock
        self._key_statistics = key_statistics

    async def health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """503 until the default model can answer. Needs no key."""
        models = self._models.list_models()
        is_ready = bool(models) and models[0].is_ready
        report = {
            "status": "ok" if is_ready else "loading",
            "models_loaded": sum(model.is_ready for model in models),
            "models_known": len(models),
        }
        headers: list[Header] = [] if is_ready else [(b"retry-after", b"%d" % RETRY_AFTER_SECONDS)]
        await send_response(send, 200 if is_ready else 503, msgspec.json.encode(report), headers=headers)

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, content_type = self._metrics()
        await send_response(send, 200, body + key_rows(self._key_statistics(scope)), content_type.encode("latin-1"))

    async def slots(self, scope: Scope, receive: Receive, send: Send) -> None:
        models = self._models.list_models()
        status = self._status
        model_id = models[0].model_id if models else ""
        entry = slots_entry(model_id, status.statistics(), status.session_of, now_unix=self._clock.unix())
        await send_response(send, 200, msgspec.json.encode([entry]))

    async def retired_slots(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise RouteRetiredError("slots are not saved and restored by hand here: prefixes are kept without being asked")

    async def props(self, scope: Scope, receive: Receive, send: Send) -> None:
        models = self._models.list_models()
        if not models:
            raise ModelLoadingError("the model is still loading")
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("model")
        model = self._models.resolve(asked[-1]) if asked else models[0]
        page = props_page(model, models, max_request_bytes=self._status.max_request_bytes)
        await send_response(send, 200, msgspec.json.encode(page))

    async def list_models(self, scope: Scope, receive: Receive, send: Send) -> None:
        entries = [model_entry(model) for model in self._models.list_models()]
        if self._adapters is not None:
            entries += [
                {**model_entry(adapter), "parent": adapter.base_id} for adapter in self._adapters.list_adapters()
            ]
        ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {}
        page = {"object": "list", "data": entries, "has_more": False, **ends}
        await send_response(send, 200, msgspec.json.encode(page))

    async def show_model(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["model"]
        if not name:
            raise RouteNotFoundError(f"there is no route {scope['path']}; the nearest is /v1/models")
        model = self._models.resolve(name)
        await send_response(send, 200, msgspec.json.encode(model_entry(model)))

    async def root(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_response(send, 200, b"superfluid is running\n", TEXT)


def model_entry(model: ServedModel) -> dict[str, Any]:
    """The model as the lists of OpenAI and of Anthropic show it: clients pass over what they do not know. What only a
    loaded model knows is left out until then."""
    entry: dict[str, Any] = {
        "id": model.model_id,
        "object": "model",
        "created": model.created_unix,
        "owned_by": "superfluid",
        "type": "model",
        "display_name": model.model_id,
        "created_at": datetime.fromtimestamp(model.created_unix, UTC),
        "loaded": model.is_ready,
        "architecture": {"input_modalities": ["text"]},
    }
    if model.is_ready:
        entry["meta"] = {"n_ctx": model.facts.window_tokens}
        entry["max_input_tokens"] = model.facts.window_tokens
    return entry
