"""The key policy and the rate of an address, through the whole application."""

import asyncio
import logging
from typing import Any

import httpx
import msgspec
import pytest
from tests.fixtures.http_server import FrontEnd
from tests.fixtures.scripted_models import ScriptedModel

from superfluid.config import HttpConfig, HttpQosConfig, PolicyKey, Secret
from superfluid.domain.reply import Channel, TextDelta
from superfluid.domain.request import QosClass
from superfluid.errors import RateLimitedError
from superfluid.http.admission import IDLE_SECONDS, MAX_ADDRESSES, AddressLimiter

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
MODELS = "/v1/models"
LORA = "/v1/lora/load"
GLOBAL = {"authorization": "Bearer global"}


def _key(name: str = "ci", **fields: Any) -> PolicyKey:
    return PolicyKey(name=name, secret=Secret(f"{name}-secret"), **fields)


def _as(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-secret"}


def _front(*keys: PolicyKey, model: ScriptedModel | None = None, **config: Any) -> FrontEnd:
    http = HttpConfig(api_key=Secret("global"), key_policy=keys, **config)
    return FrontEnd(*([] if model is None else [model]), config=http)


async def _outcome(client: httpx.AsyncClient, path: str, headers: dict[str, str]) -> tuple[int, str | None]:
    response = await client.get(path, headers=headers)
    return response.status_code, response.json()["error"]["code"] if response.status_code >= 400 else None


async def _rows(client: httpx.AsyncClient, headers: dict[str, str], path: str = "/metrics") -> dict[str, int]:
    page = (await client.get(path, headers=headers)).text
    return {
        series: int(value)
        for series, value in (line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("superfluid_key_"))
    }


# ---- who gets in


async def test_every_key_opens_and_no_other_does() -> None:
    async with _front(_key("a"), _key("b")).client() as client:
        for headers in (_as("a"), _as("b"), {"x-api-key": "b-secret"}, GLOBAL):
            assert (await client.get(MODELS, headers=headers)).status_code == 200
        for headers in (_as("c"), {}, {"x-api-key": "a"}):
            assert await _outcome(client, "/nowhere", headers) == (401, "invalid_api_key")
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/metrics")).status_code == 401


async def test_policy_without_a_global_key_still_asks_for_one() -> None:
    async with FrontEnd(config=HttpConfig(key_policy=(_key(),))).client() as client:
        assert await _outcome(client, MODELS, {}) == (401, "invalid_api_key")
        assert (await client.get(MODELS, headers=_as("ci"))).status_code == 200


# ---- rates


async def test_key_that_spent_its_rate_is_refused_and_told_when_to_return() -> None:
    async with _front(_key(rate_limit_rpm=2)).client() as client:
        for _ in range(2):
            assert (await client.get(MODELS, headers=_as("ci"))).status_code == 200
        response = await client.get(MODELS, headers=_as("ci"))
        error = response.json()["error"]
        assert (response.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
        assert response.headers["retry-after"] in ("29", "30")
        assert "ci-secret" not in response.text
        assert (await client.get(MODELS, headers=GLOBAL)).status_code == 200
        for path in ("/health", "/metrics", "/v1/metrics"):
            assert (await client.get(path, headers=_as("ci"))).status_code == 200


async def test_rate_of_an_address_holds_for_all_who_have_none_of_their_own() -> None:
    async with _front(_key("plain"), _key("paced", rate_limit_rpm=100), rate_limit_rpm=2).client() as client:
        assert (await client.get(MODELS, headers=GLOBAL)).status_code == 200
        assert (await client.get(MODELS, headers=_as("plain"))).status_code == 200
        for headers in (GLOBAL, _as("plain"), {**_as("plain"), "x-forwarded-for": "10.0.0.9"}):
            assert await _outcome(client, MODELS, headers) == (429, "rate_limit_exceeded")
        assert (await client.get(MODELS, headers=_as("paced"))).status_code == 200
        for path in ("/health", "/metrics", "/v1/metrics"):
            assert (await client.get(path, headers=GLOBAL)).status_code == 200


async def test_rate_of_an_address_needs_no_key() -> None:
    async with FrontEnd(config=HttpConfig(rate_limit_rpm=1)).client() as client:
        assert (await client.get(MODELS)).status_code == 200
        assert await _outcome(client, MODELS, {}) == (429, "rate_limit_exceeded")


async def test_foreign_origin_beats_a_bad_key_and_a_bad_key_beats_the_rate() -> None:
    async with _front(rate_limit_rpm=1).client() as client:
        await client.get(MODELS, headers=GLOBAL)
        assert await _outcome(client, MODELS, GLOBAL) == (429, "rate_limit_exceeded")
        assert await _outcome(client, MODELS, _as("nobody")) == (401, "invalid_api_key")
        foreign = {"origin": "https://evil.example", **_as("nobody")}
        response = await client.get(MODELS, headers=foreign)
        assert (response.status_code, response.json()["error"]["code"]) == (403, "origin_refused")
        assert not [name for name in response.headers if name.startswith("access-control")]


async def test_rate_beats_a_body_that_is_too_large() -> None:
    async with _front(rate_limit_rpm=1, max_body_bytes=10).client() as client:
        assert (await client.post(CHAT, json=HELLO, headers=GLOBAL)).status_code == 413
        assert (await client.post(CHAT, json=HELLO, headers=GLOBAL)).status_code == 429


def test_idle_addresses_are_forgotten() -> None:
    limiter = AddressLimiter(1)
    for number in range(5):
        limiter.spend(f"10.0.0.{number}", 0.0)
    limiter.spend("10.0.0.0", IDLE_SECONDS)
    assert len(limiter) == 5
    limiter.spend("10.0.1.0", IDLE_SECONDS + 1)
    assert len(limiter) == 2


def test_addresses_are_bounded_and_the_busy_one_is_remembered() -> None:
    limiter = AddressLimiter(1)
    limiter.spend("busy", 0.0)
    for number in range(MAX_ADDRESSES - 1):
        limiter.spend(str(number), 0.0)
    with pytest.raises(RateLimitedError):
        limiter.spend("busy", 0.0)
    limiter.spend("one more", 0.0)
    assert len(limiter) == MAX_ADDRESSES
    with pytest.raises(RateLimitedError):
        limiter.spend("busy", 0.0)
    limiter.spend("busy", 60.0)


# ---- admin routes


async def test_admin_route_is_for_admins() -> None:
    front = _front(_key("plain"), _key("boss", is_admin=True))
    async with front.client() as client:
        response = await client.post(LORA, json={}, headers=_as("plain"))
        error = response.json()["error"]
        assert (response.status_code, error["type"], error["code"]) == (403, "permission_error", "admin_required")
        for headers in (_as("boss"), GLOBAL):
            assert (await client.post(LORA, json={}, headers=headers)).status_code != 403
        assert (await _rows(client, GLOBAL))['superfluid_key_rejected_total{key="plain",reason="admin"}'] == 1


async def test_asking_for_an_admin_route_costs_rate_and_no_slot() -> None:
    front = _front(_key("own", rate_limit_rpm=1), _key("shared", max_concurrent=1), rate_limit_rpm=1)
    async with front.client() as client:
        assert await _outcome(client, LORA, _as("own")) == (403, "admin_required")
        assert await _outcome(client, LORA, _as("own")) == (429, "rate_limit_exceeded")
        assert await _outcome(client, LORA, _as("shared")) == (403, "admin_required")
        assert await _outcome(client, LORA, _as("shared")) == (429, "rate_limit_exceeded")
        assert (await _rows(client, GLOBAL))['superfluid_key_in_flight{key="shared"}'] == 0


# ---- slots


def _endless() -> ScriptedModel:
    return ScriptedModel(lambda request: [[TextDelta(Channel.TEXT, "a", 1)], asyncio.Event()])


async def _begin(address: tuple[str, int], *, is_stream: bool) -> asyncio.StreamWriter:
    body = msgspec.json.encode({**HELLO, "stream": is_stream})
    _, writer = await asyncio.open_connection(*address)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: ci-secret\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return writer


@pytest.mark.parametrize("is_stream", [False, True])
async def test_request_holds_its_slot_until_its_client_is_gone(is_stream: bool) -> None:
    front = _front(_key(max_concurrent=1), model=_endless())
    async with front.serve() as (host, port), httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
        writer = await _begin((host, port), is_stream=is_stream)
        await asyncio.wait_for(front.model.started.wait(), 5)
        response = await client.get(MODELS, headers=_as("ci"))
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (429, "rate_limit_error")
        assert error["code"] == "concurrency_limit_exceeded"
        assert response.headers["retry-after"] == "1"
        assert (await _rows(client, _as("ci")))['superfluid_key_in_flight{key="ci"}'] == 1
        writer.close()
        await asyncio.wait_for(front.model.replies[0].cancelled.wait(), 5)
        async with asyncio.timeout(30):
            while (await _rows(client, GLOBAL))['superfluid_key_in_flight{key="ci"}']:
                pass
        assert (await client.get(MODELS, headers=_as("ci"))).status_code == 200


async def test_slot_is_free_after_whatever_became_of_the_request() -> None:
    front = _front(_key(max_concurrent=1, rate_limit_rpm=6))
    async with front.client() as client:
        for path, status in ((MODELS, 200), ("/nowhere", 404), ("/slots/1/save", 405), (f"{MODELS}/x", 404)):
            assert (await client.get(path, headers=_as("ci"))).status_code == status
        answer = await client.post(CHAT, json={**HELLO, "stream": True}, headers=_as("ci"))
        assert answer.text.endswith("data: [DONE]\n\n")
        assert (await client.post(CHAT, content=b"{", headers=_as("ci"))).status_code == 400
        assert await _outcome(client, MODELS, _as("ci")) == (429, "rate_limit_exceeded")
        assert (await _rows(client, GLOBAL))['superfluid_key_in_flight{key="ci"}'] == 0


async def test_request_without_a_slot_spends_no_rate() -> None:
    front = _front(_key(max_concurrent=1, rate_limit_rpm=2), model=_endless())
    async with front.serve() as (host, port), httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
        writer = await _begin((host, port), is_stream=True)
        await asyncio.wait_for(front.model.started.wait(), 5)
        for _ in range(3):
            assert await _outcome(client, MODELS, _as("ci")) == (429, "concurrency_limit_exceeded")
        writer.close()
        async with asyncio.timeout(30):
            while (await _rows(client, GLOBAL))['superfluid_key_in_flight{key="ci"}']:
                pass
        assert (await client.get(MODELS, headers=_as("ci"))).status_code == 200


# ---- classes


@pytest.mark.parametrize("has_headers", [True, False])
@pytest.mark.parametrize(
    ("header", "qos"),
    [(None, QosClass.AGENT), ("completion", QosClass.COMPLETION), ("background", QosClass.BACKGROUND)],
)
async def test_key_has_its_class_and_may_ask_up_to_its_best(
    has_headers: bool, header: str | None, qos: QosClass
) -> None:
    config = HttpQosConfig(default=QosClass.BACKGROUND, has_headers=has_headers)
    front = _front(_key(max_qos=QosClass.COMPLETION), qos=config)
    headers = _as("ci") | ({} if header is None else {"x-superfluid-qos": header})
    async with front.client() as client:
        assert (await client.post(CHAT, json=HELLO, headers=headers)).status_code == 200
    assert front.model.requests[0].qos is qos


@pytest.mark.parametrize(
    "header", [{"x-superfluid-qos": "interactive"}, {"x-superfluid-batch-invariant": "true"}], ids=["class", "alone"]
)
async def test_key_that_asks_for_more_than_it_has_is_refused_and_counted(header: dict[str, str]) -> None:
    front = _front(_key(max_qos=QosClass.COMPLETION), qos=HttpQosConfig(allows_batch_invariant=True))
    async with front.client() as client:
        response = await client.post(CHAT, json=HELLO, headers=_as("ci") | header)
        assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")
        assert (await client.post(CHAT, json=HELLO, headers=GLOBAL | header)).status_code == 200
        assert (await _rows(client, GLOBAL))['superfluid_key_rejected_total{key="ci",reason="qos"}'] == 1


async def test_key_with_the_right_may_run_alone() -> None:
    front = _front(_key(allows_batch_invariant=True))
    async with front.client() as client:
        headers = _as("ci") | {"x-superfluid-batch-invariant": "true"}
        assert (await client.post(CHAT, json=HELLO, headers=headers)).status_code == 200
    assert front.model.requests[0].is_batch_invariant


# ---- metrics and log


@pytest.mark.parametrize("path", ["/metrics", "/v1/metrics"])
async def test_key_without_admin_rights_sees_its_own_rows_alone(path: str) -> None:
    async with _front(_key("plain"), _key("boss", is_admin=True)).client() as client:
        own, boss, everything = [await _rows(client, headers, path) for headers in (_as("plain"), _as("boss"), GLOBAL)]
    assert own
    assert all('key="plain"' in series for series in own)
    assert boss == everything
    assert len(everything) == 2 * len(own) == 2 * (1 + 4 + 1)
    assert set(everything.values()) == {0}


async def test_metrics_page_without_a_policy_has_no_rows_of_keys() -> None:
    async with FrontEnd().client() as client:
        assert "superfluid_key_" not in (await client.get("/metrics")).text


async def test_refused_requests_are_counted_among_the_requests() -> None:
    async with _front(_key(rate_limit_rpm=1)).client() as client:
        for _ in range(3):
            await client.get(MODELS, headers=_as("ci"))
        await client.get("/health", headers=_as("ci"))
        rows = await _rows(client, _as("ci"))
    assert rows['superfluid_key_requests_total{key="ci"}'] == 3
    assert rows['superfluid_key_rejected_total{key="ci",reason="rate_limit"}'] == 2


async def test_refusal_is_logged_with_name_and_reason_and_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "superfluid_daemon"):
        async with _front(_key()).client() as client:
            await client.post(LORA, headers=_as("ci"))
    (record,) = [record for record in caplog.records if record.message == "key policy refused a request"]
    assert record.__dict__["fields"] == {"key": "ci", "reason": "admin"}
    assert "ci-secret" not in str(record.__dict__)
