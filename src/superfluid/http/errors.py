"""The one table from error leaf to HTTP status and dialect body. Pure; a test fails if a leaf has no row."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from superfluid import errors

RETRY_AFTER_SECONDS = 1


class ErrorRow(NamedTuple):
    """How a failure looks from outside. ``code`` is ``None`` where the status says it all."""

    status: int
    openai_type: str
    code: str | None


def _caller(code: str | None = None, status: int = 400) -> ErrorRow:
    return ErrorRow(status, "invalid_request_error", code)


def _server(status: int, code: str | None = None) -> ErrorRow:
    return ErrorRow(status, "server_error", code)


ERROR_ROWS: Mapping[type[errors.SuperfluidError], ErrorRow] = {
    errors.InvalidRequestError: _caller(),
    errors.InvalidValueError: _caller("invalid_value"),
    errors.UnsupportedParameterError: _caller("unsupported_parameter"),
    errors.UnsupportedInputError: _caller("unsupported_input"),
    errors.UnsupportedModelError: _caller("unsupported_model"),
    errors.FimUnsupportedError: _caller("fim_unsupported"),
    errors.CompletionRateLimitedError: _caller("completion_rate_limited", 429),
    errors.RateLimitedError: ErrorRow(429, "rate_limit_error", "rate_limit_exceeded"),
    errors.ConcurrencyLimitedError: ErrorRow(429, "rate_limit_error", "concurrency_limit_exceeded"),
    errors.ContextLengthExceededError: _caller("context_length_exceeded"),
    errors.TemplateRefusedError: _caller(),
    errors.ModelNotFoundError: _caller("model_not_found", 404),
    errors.AdapterRefusedError: _caller("adapter_refused"),
    errors.AdapterNotFoundError: _caller("adapter_not_found", 404),
    errors.RouteNotFoundError: _caller(None, 404),
    errors.RouteRetiredError: _server(501, "route_retired"),
    errors.MethodNotAllowedError: _caller(None, 405),
    errors.PayloadTooLargeError: _caller("payload_too_large", 413),
    errors.InvalidApiKeyError: ErrorRow(401, "authentication_error", "invalid_api_key"),
    errors.OriginRefusedError: ErrorRow(403, "permission_error", "origin_refused"),
    errors.PermissionRefusedError: ErrorRow(403, "permission_error", "permission_refused"),
    errors.AdminRequiredError: ErrorRow(403, "permission_error", "admin_required"),
    errors.SessionNotFoundError: _caller(),
    errors.SessionBusyError: _caller(),
    errors.SessionRefusedError: _caller(),
    errors.UsageError: _caller(),
    errors.RequestRefusedError: _caller(),
    errors.AddressUnavailableError: _server(500),
    errors.ModelFileError: _server(503, "model_file"),
    errors.ModelLoadError: _server(503, "model_load"),
    errors.PullError: _server(503, "pull"),
    errors.EngineLibraryError: _server(503, "engine_library"),
    errors.StoreError: _server(500, "store"),
    errors.DamagedRecordError: _server(500, "damaged_record"),
    errors.ServerUnreachableError: _server(503, "server_unreachable"),
    errors.ConnectionLostError: _server(503, "connection_lost"),
    errors.MalformedCallError: _server(500, "malformed_call"),
    errors.StoreUnavailableError: _server(503, "store_unavailable"),
    errors.QueueFullError: _server(503, "queue_full"),
    errors.ModelLoadingError: _server(503, "model_loading"),
    errors.ShuttingDownError: _server(503, "shutting_down"),
    errors.WorkerFailedError: _server(500, "worker_failed"),
    errors.EngineFaultError: _server(500, "engine_fault"),
    # The inner nodes, for whoever raises one of them as it is.
    errors.CallerError: _caller(),
    errors.EnvironmentFaultError: _server(503),
    errors.InternalFaultError: _server(500),
    errors.SuperfluidError: _server(500),
}


_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def error_row(error: errors.SuperfluidError) -> ErrorRow:
    """The row of the error's class, or of the nearest class above it."""
    return next(ERROR_ROWS[node] for node in type(error).__mro__ if node in ERROR_ROWS)


def retry_headers(error: errors.SuperfluidError) -> list[tuple[bytes, bytes]]:
    """``Retry-After`` for what may succeed later, in whole seconds."""
    if not error.is_retryable:
        return []
    seconds = RETRY_AFTER_SECONDS
    if isinstance(error, errors.CompletionRateLimitedError | errors.RateLimitedError):
        seconds = math.ceil(error.retry_after_ms / 1000)
    return [(b"retry-after", b"%d" % seconds)]


def openai_error_body(error: errors.SuperfluidError, *, param: str | None = None) -> bytes:
    """The whole body of a refused request. ``param`` replaces the error's."""
    row = error_row(error)
    members = {"message": error.message, "type": row.openai_type, "param": param or error.param, "code": row.code}
    return msgspec.json.encode({"error": members})


def ollama_error_body(error: errors.SuperfluidError) -> bytes:
    """As Ollama writes it: the message alone."""
    return msgspec.json.encode({"error": error.message})


def anthropic_error_body(error: errors.SuperfluidError) -> bytes:
    """As Anthropic writes it, whole or in a stream."""
    members = {"type": _anthropic_type(error), "message": error.message}
    return msgspec.json.encode({"type": "error", "error": members})


def path_error_body(path: str, error: errors.SuperfluidError) -> bytes:
    """In the language of whoever asks for ``path``, where no dialect has been reached."""
    if path.startswith("/api/"):
        return ollama_error_body(error)
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return anthropic_error_body(error)
    return openai_error_body(error)


def _anthropic_type(error: errors.SuperfluidError) -> str:
    status = error_row(error).status
    if status == 503 and error.is_retryable:
        return "overloaded_error"
    return _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def openai_error_frame(error: errors.SuperfluidError) -> bytes:
    """What ends an event stream that had begun: one frame with the error, then the end mark."""
    row = error_row(error)
    members = {"message": error.message, "type": row.openai_type}
    if row.code is not None:
        members["code"] = row.code
    if error.param is not None:
        members["param"] = error.param
    return b"data: " + msgspec.json.encode({"error": members}) + b"\n\ndata: [DONE]\n\n"
