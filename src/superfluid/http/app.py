"""The ASGI application: the layers every request passes, and the route table. Runs in the daemon.

Layers, outermost first: browser guard, admission (key, its policy, the address's rate), route, body limit (in the
generating routes), handler. Plain ASGI all the way, so that nothing buffers a stream.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from superfluid.clock import Clock, SystemClock
from superfluid.config import HttpConfig
from superfluid.domain.statistics import ModelStatistics
from superfluid.errors import InternalFaultError, ShuttingDownError, SuperfluidError, UnsupportedModelError
from superfluid.http.admission import Admission
from superfluid.http.anthropic import MessagesDialect
from superfluid.http.anthropic_count import CountTokensPage
from superfluid.http.dialect import Dialect
from superfluid.http.errors import path_error_body
from superfluid.http.foreign_routes import UNSERVED
from superfluid.http.generation import GenerationContext, GenerationEndpoint, RecordGeneration
from superfluid.http.guards import BrowserGuard
from superfluid.http.lora import LoraPages
from superfluid.http.ollama import ollama_dialects
from superfluid.http.ollama_pages import REFUSALS, OllamaPages, RefusedRoute
from superfluid.http.openai import ChatDialect
from superfluid.http.openai_completions import CompletionsDialect
from superfluid.http.pages import MethodTable, MetricsPage, Pages, StatusSource, UnknownRoute
from superfluid.http.qos import with_checked_headers
from superfluid.http.responses import send_error
from superfluid.http.status import SessionOf
from superfluid.http.tokenize import TokenizePage
from superfluid.sessions.interface import AdapterDirectory, ModelDirectory
from superfluid.sessions.metering import CompletionMeter

logger = logging.getLogger("superfluid_daemon")

GENERATING_ROUTES: Mapping[str, Dialect] = {
    "/v1/chat/completions": ChatDialect(),
    "/v1/completions": CompletionsDialect(),
    "/v1/messages": MessagesDialect(),
}


def create_app(
    models: ModelDirectory,
    *,
    config: HttpConfig,
    metrics: MetricsPage,
    record_generation: RecordGeneration,
    statistics: Callable[[], ModelStatistics],
    meter: CompletionMeter,
    adapters: AdapterDirectory | None = None,
    session_of: SessionOf = lambda _: None,
    clock: Clock | None = None,
    hostname: str | None = None,
) -> ASGIApp:
    """The daemon's HTTP front end.

    ``metrics`` gives the page and its content type; ``record_generation`` is called once per generation that succeeded,
    just before its last bytes are sent. ``statistics`` are the default model's; ``session_of`` knows the session of a
    running job. ``meter`` is asked before each request to fill in the middle. All are called on the event loop.
    Without ``adapters`` there are no routes for them. ``hostname`` defaults to the machine's name.
    """
    clock = clock or SystemClock()
    context = GenerationContext(
        models=models,
        record_generation=record_generation,
        clock=clock,
        max_body_bytes=config.max_body_bytes,
        keepalive_seconds=config.keepalive_seconds,
        qos=config.qos,
        meter=meter,
    )
    guard = BrowserGuard(
        config.host,
        has_key=config.has_key,
        hostname=socket.gethostname() if hostname is None else hostname,
    )
    status = StatusSource(statistics, session_of, config.max_body_bytes)
    admission = Admission(config, clock.monotonic)
    pages = Pages(models, metrics, status, clock, adapters, admission.visible_statistics)
    return Application(_router(pages, context, adapters), guard, admission)


def _router(pages: Pages, context: GenerationContext, adapters: AdapterDirectory | None) -> Router:
    dialects = {**GENERATING_ROUTES, **ollama_dialects()}
    ollama = OllamaPages(context.models, adapters)
    tables: dict[str, dict[str, ASGIApp]] = {
        "/": {"GET": pages.root},
        "/health": {"GET": pages.health},
        "/metrics": {"GET": pages.metrics},
        "/v1/metrics": {"GET": pages.metrics},
        "/props": {"GET": with_checked_headers(pages.props, context.qos)},
        "/slots": {"GET": pages.slots},
        "/slots/{slot}/save": {"POST": pages.retired_slots},
        "/slots/{slot}/restore": {"POST": pages.retired_slots},
        "/v1/models": {"GET": with_checked_headers(pages.list_models, context.qos)},
        "/v1/models/{model:path}": {"GET": with_checked_headers(pages.show_model, context.qos)},
        "/v1/messages/count_tokens": {"POST": with_checked_headers(CountTokensPage(context), context.qos)},
        "/v1/tokenize": {"POST": TokenizePage(context.models)},
        **{path: {"POST": GenerationEndpoint(dialect, context)} for path, dialect in dialects.items()},
        **{path: {"POST": RefusedRoute((UnsupportedModelError, why))} for path, why in UNSERVED.items()},
        "/api/version": {"GET": ollama.version},
        "/api/tags": {"GET": ollama.tags},
        "/api/ps": {"GET": ollama.running},
        "/api/show": {"POST": ollama.show},
    }
    if adapters is not None:
        lora = LoraPages(adapters)
        tables["/v1/lora"] = {"GET": lora.list_adapters}
        tables["/v1/lora/load"] = {"POST": lora.load}
        tables["/v1/lora/unload"] = {"POST": lora.unload}
    routes = [Route(path, MethodTable(handlers)) for path, handlers in tables.items()]
    routes += [Route(path, RefusedRoute(refusal)) for path, refusal in REFUSALS.items()]
    return Router(routes, redirect_slashes=False, default=UnknownRoute(tables.keys() - UNSERVED.keys()))


class Application:
    """The layers around the router, and the place where an unforeseen failure becomes an answer."""

    def __init__(self, router: Router, guard: BrowserGuard, admission: Admission) -> None:
        self._router = router
        self._guard = guard
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        response = _WatchedSend(send)
        try:
            self._guard.check(scope)
            with self._admission.admitted(scope):
                await self._router(scope, receive, response)
        except asyncio.CancelledError:
            # Only the server cancels a request, when the time to drain is up: this is the request's end, not an error.
            if not response.has_started:
                await _refuse(scope, response, ShuttingDownError("the server is shutting down"))
        except Exception as error:
            # Supervision point: whatever a request runs into ends this request only. A failure inside a begun answer
            # goes up to the server, which closes the connection.
            if response.has_started:
                raise
            await _refuse(scope, response, error)


class _WatchedSend:
    """``send`` that remembers whether the answer has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False

    async def __call__(self, message: Message) -> None:
        self.has_started = True
        await self._send(message)


async def _refuse(scope: Scope, send: Send, error: Exception) -> None:
    if not isinstance(error, SuperfluidError):
        logger.error("a request failed", exc_info=error)
        error = InternalFaultError("superfluid failed to answer; its log has the details")
    await send_error(send, error, path_error_body(scope["path"], error))
