"""The headers that choose a request's scheduling class."""

from typing import Any

import pytest
from tests.fixtures.http_server import FrontEnd

from superfluid.config import HttpConfig, HttpQosConfig
from superfluid.domain.request import GenerationRequest, QosClass

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETIONS = "/v1/completions"
ONCE: dict[str, Any] = {"model": "scripted", "prompt": "Once"}


def _front(**qos: Any) -> FrontEnd:
    return FrontEnd(config=HttpConfig(qos=HttpQosConfig(**qos)))


async def _started(front: FrontEnd, headers: dict[str, str], **fields: Any) -> list[GenerationRequest]:
    async with front.client() as client:
        response = await client.post(CHAT, json={**HELLO, **fields}, headers=headers)
    assert response.status_code == 200, response.text
    return front.model.requests


@pytest.mark.parametrize(
    ("value", "qos"),
    [
        ("interactive", QosClass.INTERACTIVE),
        ("Interactive_Chat", QosClass.INTERACTIVE),
        ("1", QosClass.COMPLETION),
        (" background ", QosClass.BACKGROUND),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_header_chooses_the_class(value: str, qos: QosClass, is_stream: bool) -> None:
    (request,) = await _started(_front(), {"X-Superfluid-QoS": value}, stream=is_stream)
    assert (request.qos, request.is_batch_invariant) == (qos, False)


async def test_all_replies_of_a_request_have_its_class() -> None:
    requests = await _started(_front(), {"x-superfluid-qos": "background"}, n=3)
    assert [request.qos for request in requests] == [QosClass.BACKGROUND] * 3


@pytest.mark.parametrize("default", list(QosClass))
async def test_request_without_the_header_has_the_operators_default(default: QosClass) -> None:
    (request,) = await _started(_front(default=default), {})
    assert request.qos is default


@pytest.mark.parametrize("value", ["true", "1", "Yes", "ON"])
async def test_running_alone_is_granted_where_the_operator_allows_it(value: str) -> None:
    (request,) = await _started(_front(allows_batch_invariant=True), {"x-superfluid-batch-invariant": value})
    assert request.is_batch_invariant


@pytest.mark.parametrize("value", ["false", "0", "no", "off"])
async def test_not_running_alone_needs_no_permission(value: str) -> None:
    (request,) = await _started(_front(), {"x-superfluid-batch-invariant": value})
    assert not request.is_batch_invariant


@pytest.mark.parametrize(("path", "body"), [(CHAT, HELLO), (COMPLETIONS, ONCE)])
@pytest.mark.parametrize(
    ("header", "value", "status", "code"),
    [
        ("x-superfluid-qos", "urgent", 400, "invalid_value"),
        ("x-superfluid-qos", "", 400, "invalid_value"),
        ("x-superfluid-batch-invariant", "perhaps", 400, "invalid_value"),
        ("x-superfluid-batch-invariant", "true", 403, "permission_refused"),
    ],
)
async def test_header_that_means_nothing_or_is_not_allowed_is_refused(
    path: str, body: dict[str, Any], header: str, value: str, status: int, code: str
) -> None:
    front = _front()
    async with front.client() as client:
        response = await client.post(path, json=body, headers={header: value})
    assert response.status_code == status
    assert (response.json()["error"]["code"], response.json()["error"]["param"]) == (code, header)
    assert front.model.requests == []


async def test_headers_that_the_operator_has_switched_off_are_not_read() -> None:
    front = _front(has_headers=False, default=QosClass.COMPLETION)
    (request,) = await _started(front, {"x-superfluid-qos": "urgent", "x-superfluid-batch-invariant": "true"})
    assert (request.qos, request.is_batch_invariant) == (QosClass.COMPLETION, False)


@pytest.mark.parametrize(("path", "is_checked"), [("/v1/models", True), ("/props", True), ("/health", False)])
async def test_pages_that_name_the_models_check_the_headers_too(path: str, is_checked: bool) -> None:
    async with _front().client() as client:
        good = await client.get(path, headers={"x-superfluid-qos": "agent"})
        bad = await client.get(path, headers={"x-superfluid-qos": "urgent"})
    assert good.status_code == 200
    assert bad.status_code == (400 if is_checked else 200)
