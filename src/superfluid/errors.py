"""The error tree, shared by all processes. It answers whose fault a failure is; it knows nothing of HTTP.

Each leaf has a stable ``code``. ``http/errors.py`` maps every leaf to a status and a body for each dialect.

    SuperfluidError
    ├── CallerError              the request must change
    │   ├── InvalidRequestError, InvalidValueError, UnsupportedParameterError, UnsupportedInputError
    │   ├── CompletionRateLimitedError, RateLimitedError, ConcurrencyLimitedError   (or wait)
    │   ├── UnsupportedModelError, FimUnsupportedError
    │   ├── ContextLengthExceededError, TemplateRefusedError
    │   ├── AdapterRefusedError, AdapterNotFoundError
    │   ├── ModelNotFoundError, RouteNotFoundError, MethodNotAllowedError, PayloadTooLargeError
    │   ├── InvalidApiKeyError, OriginRefusedError, PermissionRefusedError, AdminRequiredError
    │   ├── SessionNotFoundError, SessionBusyError, SessionRefusedError
    │   ├── RequestRefusedError      a client's view: the server answered no
    │   └── UsageError           a flag or a setting (exit code 2)
    ├── EnvironmentFaultError    the machine, a file or another program must change
    │   ├── AddressUnavailableError, ModelFileError, ModelLoadError, PullError, EngineLibraryError
    │   ├── StoreError, DamagedRecordError
    │   ├── ServerUnreachableError, ConnectionLostError   a client's view of its server
    │   ├── MalformedCallError   (the model must change)
    │   └── StoreUnavailableError, QueueFullError, ModelLoadingError, ShuttingDownError   (retry later)
    └── InternalFaultError       superfluid must change
        └── WorkerFailedError, EngineFaultError
"""

from typing import ClassVar


class SuperfluidError(Exception):
    """Base of every failure that superfluid names.

    ``message`` is one sentence for a person; it never carries a secret or a conversation's text.
    ``param`` names the offending field of a request, if there is one.
    """

    code: ClassVar[str] = "error"
    is_retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class CallerError(SuperfluidError):
    """The caller's fault: the same request will fail again."""


class InvalidRequestError(CallerError):
    code = "invalid_request"


class InvalidValueError(CallerError):
    code = "invalid_value"


class UnsupportedParameterError(CallerError):
    code = "unsupported_parameter"


class UnsupportedInputError(CallerError):
    code = "unsupported_input"


class UnsupportedModelError(CallerError):
    """No model here can do what the route is for."""

    code = "unsupported_model"


class FimUnsupportedError(CallerError):
    """A suffix was given, and nothing here can fill in the middle."""

    code = "fim_unsupported"


class CompletionRateLimitedError(CallerError):
    """Completions are asked for more often than the operator allows. ``retry_after_ms`` is at least 1."""

    code = "completion_rate_limited"
    is_retryable = True

    def __init__(self, message: str, *, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class RateLimitedError(CallerError):
    """A key or an address asks more often than the operator allows. ``retry_after_ms`` is at least 1."""

    code = "rate_limit_exceeded"
    is_retryable = True

    def __init__(self, message: str, *, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class ConcurrencyLimitedError(CallerError):
    """A key has as many requests in flight as the operator allows it."""

    code = "concurrency_limit_exceeded"
    is_retryable = True


class ContextLengthExceededError(CallerError):
    code = "context_length_exceeded"


class TemplateRefusedError(CallerError):
    """The model's chat template raised, looped or cannot express the conversation."""

    code = "template_refused"


class ModelNotFoundError(CallerError):
    code = "model_not_found"


class AdapterRefusedError(CallerError):
    """The file is no LoRA adapter, is damaged, or was made for another model; or the name is taken."""

    code = "adapter_refused"


class AdapterNotFoundError(CallerError):
    """No adapter of that name is loaded, or not any more."""

    code = "adapter_not_found"


class RouteNotFoundError(CallerError):
    code = "route_not_found"


class RouteRetiredError(SuperfluidError):
    """A route of other servers that there is no use for here."""

    code = "route_retired"


class MethodNotAllowedError(CallerError):
    code = "method_not_allowed"


class PayloadTooLargeError(CallerError):
    code = "payload_too_large"


class InvalidApiKeyError(CallerError):
    code = "invalid_api_key"


class OriginRefusedError(CallerError):
    code = "origin_refused"


class PermissionRefusedError(CallerError):
    """The operator has not allowed this to this caller."""

    code = "permission_refused"


class AdminRequiredError(CallerError):
    """The key may not use what changes the server for everybody."""

    code = "admin_required"


class UsageError(CallerError):
    """A flag, a setting or a combination of them is wrong. The command line exits with 2."""

    code = "usage"


class SessionNotFoundError(CallerError):
    """No session has that id, or the one that had it was purged."""

    code = "session_not_found"


class SessionBusyError(CallerError):
    """A generation is in flight on the session, and the request would disturb it."""

    code = "session_busy"


class SessionRefusedError(CallerError):
    """The session's own state forbids the request (bounds, versions, open permissions, tool calls)."""

    code = "session_refused"


class RequestRefusedError(CallerError):
    """A client's view: the server refused a request, with this message."""

    code = "request_refused"


class EnvironmentFaultError(SuperfluidError):
    """Something outside superfluid is in the way. The command line exits with 1."""

    code = "environment"


class AddressUnavailableError(EnvironmentFaultError):
    code = "address_unavailable"


class ModelFileError(EnvironmentFaultError):
    """A model file is missing, unreadable, truncated or damaged."""

    code = "model_file"


class ModelLoadError(EnvironmentFaultError):
    """The engine would not load the model, or died while it tried."""

    code = "model_load"


class PullError(EnvironmentFaultError):
    code = "pull"


class EngineLibraryError(EnvironmentFaultError):
    """libllama is missing or does not match the binding."""

    code = "engine_library"


class StoreError(EnvironmentFaultError):
    """The sessions directory cannot be used: locked by another server, read-only, of a newer version."""

    code = "store"


class DamagedRecordError(EnvironmentFaultError):
    """A stored record fails its checksum. The session it belongs to cannot be used; all others can."""

    code = "damaged_record"


class ServerUnreachableError(EnvironmentFaultError):
    """A client's view: no server answers where it looked."""

    code = "server_unreachable"


class ConnectionLostError(EnvironmentFaultError):
    """A client's view: the server went away, fell silent, or does not speak this protocol."""

    code = "connection_lost"


class MalformedCallError(EnvironmentFaultError):
    """The model wrote a tool call that is none, and the client's protocol has no other way to tell of it."""

    code = "malformed_call"


class StoreUnavailableError(EnvironmentFaultError):
    """A write did not reach the disk (full, I/O error). Nothing of it counts; it may succeed later."""

    code = "store_unavailable"
    is_retryable = True


class QueueFullError(EnvironmentFaultError):
    code = "queue_full"
    is_retryable = True


class ModelLoadingError(EnvironmentFaultError):
    code = "model_loading"
    is_retryable = True


class ShuttingDownError(EnvironmentFaultError):
    code = "shutting_down"
    is_retryable = True


class InternalFaultError(SuperfluidError):
    """superfluid's own fault."""

    code = "internal"


class WorkerFailedError(InternalFaultError):
    """The model's process failed three times without a tick between."""

    code = "worker_failed"
    is_retryable = True


class EngineFaultError(InternalFaultError):
    """The engine refused a step of this one generation."""

    code = "engine_fault"
