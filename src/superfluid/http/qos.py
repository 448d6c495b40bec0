"""The scheduling class of an HTTP request: what its headers ask for and what they may ask. Pure; in the daemon."""

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from superfluid.config import HttpQosConfig
from superfluid.domain.request import GenerationRequest, QosClass
from superfluid.domain.scheduling import CLASS_NAMES, parse_class
from superfluid.errors import InvalidValueError, PermissionRefusedError
from superfluid.http.key_policy import holder_of
from superfluid.http.responses import header_values

CLASS_HEADER = "x-superfluid-qos"
ALONE_HEADER = "x-superfluid-batch-invariant"
_SWITCH = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


class RequestedQos(msgspec.Struct, frozen=True):
    """How a request is scheduled."""

    qos: QosClass
    is_batch_invariant: bool

    def of(self, request: GenerationRequest) -> GenerationRequest:
        return msgspec.structs.replace(request, qos=self.qos, is_batch_invariant=self.is_batch_invariant)


def requested_qos(scope: Scope, config: HttpQosConfig) -> RequestedQos:
    """Raises InvalidValueError for a header that means nothing, PermissionRefusedError for what is not allowed.

    A key of the policy has rules of its own, which ``config`` yields to.
    """
    holder = holder_of(scope)
    if holder is None:
        return _granted_qos(scope, config)
    try:
        return _granted_qos(scope, holder.qos)
    except PermissionRefusedError:
        holder.note_refusal("qos")
        raise


def _granted_qos(scope: Scope, config: HttpQosConfig) -> RequestedQos:
    if not config.has_headers:
        return RequestedQos(config.default, is_batch_invariant=False)
    return RequestedQos(_class(scope, config), is_batch_invariant=_is_batch_invariant(scope, config))


def with_checked_headers(page: ASGIApp, config: HttpQosConfig) -> ASGIApp:
    """``page``, for which the headers mean nothing, refusing those that would be refused elsewhere: a client that asks
    for the models first learns at once that its class is none."""

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        requested_qos(scope, config)
        await page(scope, receive, send)

    return endpoint


def _class(scope: Scope, config: HttpQosConfig) -> QosClass:
    text = _header(scope, CLASS_HEADER)
    if text is None:
        return config.default
    qos = parse_class(text)
    if qos is None:
        raise InvalidValueError(f"{CLASS_HEADER} must be one of {', '.join(CLASS_NAMES)}", param=CLASS_HEADER)
    if qos < config.best:
        raise PermissionRefusedError(f"this key may ask for {CLASS_NAMES[config.best]} at best", param=CLASS_HEADER)
    return qos


def _is_batch_invariant(scope: Scope, config: HttpQosConfig) -> bool:
    text = _header(scope, ALONE_HEADER)
    if text is None:
        return False
    wanted = _SWITCH.get(text.strip().lower())
    if wanted is None:
        raise InvalidValueError(f"{ALONE_HEADER} must be true or false", param=ALONE_HEADER)
    if wanted and not config.allows_batch_invariant:
        raise PermissionRefusedError(
            "running alone keeps everybody else waiting: the operator of this server has not allowed it",
            param=ALONE_HEADER,
        )
    return wanted


def _header(scope: Scope, name: str) -> str | None:
    """The header's value; of several the last."""
    values = header_values(scope, name.encode())
    return values[-1].decode("latin-1") if values else None
