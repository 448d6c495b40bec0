"""Routes, refusals and whole answers of the web listener, over real HTTP."""

import asyncio
import json

import httpx
import pytest
from tests.fixtures.scripted_sessions import ScriptedSessions
from tests.fixtures.session_web import DEADLINE_SECONDS, ORIGIN, TOKEN, raw_request, read_response, web_serving

from superfluid.config import CompletionConfig
from superfluid.native.frames import MAX_FRAME_BYTES
from superfluid.sessions.metering import CompletionMeter

PARAMS = {"temperature": 0.7, "top_p": 0.95, "min_p": 0.0, "top_k": 0, "seed": 1}
COMPLETE = {"Complete": {"prefix": "one ", "suffix": " three", "mode": 0, "max_tokens": 16}}
CREATE = {"Create": {"parent": None, "params": PARAMS}}
RIGHT = [("Authorization", f"Bearer {TOKEN}"), ("X-Superfluid-CSRF", TOKEN)]
UPGRADE = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
]


def message_of(body: bytes) -> str:
    (tree,) = json.loads(body).values()
    assert list(json.loads(body)) == ["Err"]
    return str(tree["message"])


async def test_health_needs_nothing() -> None:
    async with web_serving(ScriptedSessions()) as web:
        for headers in ([], [("Host", "evil.example")], [("Origin", "http://evil.example")]):
            response = await raw_request(web.port, "GET", "/web/health", headers)
            assert (response.status, response.body) == (200, b"")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/web/rpc", 405),
        ("OPTIONS", "/web/rpc", 405),
        ("PUT", "/web/stream", 405),
        ("POST", "/web/ws", 405),
        ("POST", "/web/health", 405),
        ("GET", "/", 404),
        ("POST", "/web/rpc/", 404),
        ("GET", "/v1/models", 404),
    ],
)
async def test_wrong_method_or_path_is_refused_with_an_err(method: str, path: str, status: int) -> None:
    async with web_serving(ScriptedSessions()) as web:
        response = await raw_request(web.port, method, path, RIGHT)
        assert response.status == status
        assert message_of(response.body)
        assert (response.header("allow") is not None) == (status == 405)
        assert response.header("access-control-allow-origin") is None


@pytest.mark.parametrize("path", ["/web/rpc", "/web/stream"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 401),
        ([("Authorization", "Bearer wrong"), ("X-Superfluid-CSRF", TOKEN)], 401),
        ([*RIGHT, ("Authorization", "Bearer wrong")], 401),
        ([*RIGHT, ("Origin", "http://evil.example")], 403),
        ([*RIGHT, ("Origin", ORIGIN), ("Origin", "null")], 403),
        ([RIGHT[0]], 403),
        ([*RIGHT, ("X-Superfluid-CSRF", "wrong")], 403),
        ([*RIGHT, ("Host", "evil.example")], 403),
    ],
)
async def test_unauthorised_request_is_refused_with_an_err(
    path: str, headers: list[tuple[str, str]], status: int
) -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web:
        # A malformed body is nothing a stranger is told about.
        response = await raw_request(web.port, "POST", path, headers, b"{nonsense")
        assert response.status == status
        assert message_of(response.body)
        assert response.header("content-type") == "application/json"
        assert response.header("www-authenticate") is None
        assert api.calls == []


async def test_stranger_is_refused_before_the_body_arrives() -> None:
    async with web_serving(ScriptedSessions()) as web:
        reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
        writer.write(b"POST /web/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\n")
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await read_response(reader)).status == 401
        writer.close()


async def test_stranger_with_a_large_body_reads_the_refusal() -> None:
    async with web_serving(ScriptedSessions()) as web, httpx.AsyncClient(base_url=f"http://{web.address}") as client:
        for _ in range(2):
            response = await client.post("/web/rpc", content=b"x" * 20_000_000, timeout=60)
            assert response.status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b'"Nope"',
        b'{"Create":{}}',
        b'{"Tree":{}}',
        b'{"Read":{"session":1.0,"cursor":0}}',
        b'{"Read":{"session":1,"session":1,"cursor":0}}',
        b'{"Read":{"session":1,"cursor":0},"List":null}',
        b'{"Read":{"session":18446744073709551616,"cursor":0}}',
    ],
)
async def test_malformed_rpc_body_is_refused_with_400_and_an_err(body: bytes) -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web:
        response = await raw_request(web.port, "POST", "/web/rpc", RIGHT, body)
        assert response.status == 400
        assert message_of(response.body)
        assert api.calls == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"session":1}', b'{"session":-1,"max_tokens":5}'])
async def test_malformed_stream_body_is_refused_with_400_and_an_err(body: bytes) -> None:
    async with web_serving(ScriptedSessions()) as web:
        response = await raw_request(web.port, "POST", "/web/stream", RIGHT, body)
        assert response.status == 400
        assert message_of(response.body)


async def test_body_over_the_bound_is_refused_with_413_and_an_err() -> None:
    async with web_serving(ScriptedSessions()) as web:
        reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
        lines = [f"{name}: {value}" for name, value in RIGHT]
        head = ["POST /web/rpc HTTP/1.1", "Host: localhost", f"Content-Length: {MAX_FRAME_BYTES + 1}", *lines, "", ""]
        writer.write("\r\n".join(head).encode())
        async with asyncio.timeout(DEADLINE_SECONDS):
            response = await read_response(reader)
        assert response.status == 413
        assert message_of(response.body)
        writer.close()


async def test_body_as_large_as_a_frame_is_taken() -> None:
    api = ScriptedSessions()
    around = b'{"SetLogLevel":{"directive":""}}'
    directive = "x" * (MAX_FRAME_BYTES - len(around))
    body = around[:-3] + directive.encode() + around[-3:]
    async with web_serving(api) as web:
        response = await raw_request(web.port, "POST", "/web/rpc", RIGHT, body)
        assert (response.status, response.body) == (200, b'"Ack"')
        assert len(api.level) == len(directive)


async def test_body_far_over_two_mebibytes_is_taken() -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web, httpx.AsyncClient(base_url=f"http://{web.address}") as client:
        await client.post("/web/rpc", json=CREATE, headers=web.headers)
        body = {"Append": {"session": 1, "text": "é" * 8_000_000, "span": [1]}}
        response = await client.post("/web/rpc", json=body, headers=web.headers, timeout=30)
        assert response.status_code == 200
        assert len(response.json()["Committed"]["event"]["body"]["Appended"]["text"]) == 8_000_000


async def test_rpc_answers_one_reply_a_request() -> None:
    api = ScriptedSessions()
    async with web_serving(api) as web, httpx.AsyncClient(base_url=f"http://{web.address}") as client:

        async def rpc(request: object) -> object:
            response = await client.post("/web/rpc", json=request, headers=web.headers)
            assert response.status_code == 200
            assert response.headers["content-type"] == "application/json"
            return response.json()

        assert await rpc(CREATE) == {"Created": {"session": 1}}
        committed = await rpc({"AppendMessage": {"session": 1, "role": 1, "text": "Schönen Tag"}})
        assert committed == {
            "Committed": {
                "event": {
                    "event_id": 1,
                    "epoch": 1,
                    "ts_unix_ms": 1700000000000,
                    "body": {"Message": {"role": 1, "text": "Schönen Tag", "span": list("Schönen Tag".encode())}},
                }
            }
        }
        assert await rpc("Tree") == {"Tree": {"nodes": [[1, None, 0]]}}
        assert await rpc({"Tree": None}) == {"Tree": {"nodes": [[1, None, 0]]}}
        assert await rpc({"Read": {"session": 9, "cursor": 0}}) == {"Err": {"message": "unknown session 9"}}
        assert await rpc({"SetLogLevel": {"directive": "info"}}) == "Ack"


async def test_completions_on_rpc_share_one_bucket_and_are_refused_with_429_beyond_it() -> None:
    api = ScriptedSessions()
    api.meter = CompletionMeter(CompletionConfig(rate=0.4, burst=2), lambda: 0.0, api.infill_counters)
    async with web_serving(api) as web:
        for _ in range(2):
            response = await raw_request(web.port, "POST", "/web/rpc", RIGHT, json.dumps(COMPLETE).encode())
            assert response.status == 200
            assert json.loads(response.body) == {
                "Completion": {"text": "two", "tokens": [1, 2], "cached": False, "expired": False}
            }
        response = await raw_request(web.port, "POST", "/web/rpc", RIGHT, json.dumps(COMPLETE).encode())
        assert response.status == 429
        assert response.header("retry-after") == "3"
        assert json.loads(response.body) == {"Throttled": {"retry_after_ms": 2500}}
        assert api.infill_counters.throttled == 1
        response = await raw_request(web.port, "POST", "/web/rpc", RIGHT, b'"List"')
        assert response.status == 200


async def test_rpc_client_that_hangs_up_ends_its_completion() -> None:
    api = ScriptedSessions()
    api.completion_gate = asyncio.Event()
    async with web_serving(api) as web:
        body = json.dumps(COMPLETE).encode()
        head = "\r\n".join(
            [
                "POST /web/rpc HTTP/1.1",
                f"Host: {web.address}",
                *(f"{name}: {value}" for name, value in RIGHT),
                f"Content-Length: {len(body)}",
                "",
                "",
            ]
        )
        _, writer = await asyncio.open_connection("127.0.0.1", web.port)
        writer.write(head.encode() + body)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not api.completions:  # noqa: ASYNC110  (until the request has arrived)
                await asyncio.sleep(0.001)
            writer.close()
            await api.completion_cancelled.wait()


@pytest.mark.parametrize(
    "request_",
    [
        {"Generate": {"session": 1, "max_tokens": 1}},
        {"Subscribe": {"session": 1, "cursor": 0, "provisional": False}},
        {"Unsubscribe": {"sub": 1}},
    ],
    ids=lambda request: next(iter(request)),
)
async def test_streaming_request_on_rpc_is_an_err_that_names_the_websocket(request_: object) -> None:
    async with web_serving(ScriptedSessions()) as web:
        response = await raw_request(web.port, "POST", "/web/rpc", RIGHT, json.dumps(request_).encode())
        assert response.status == 200
        assert "/web/ws" in message_of(response.body)


async def test_unforeseen_failure_is_an_err_without_details() -> None:
    api = ScriptedSessions()
    api.failures["session_rows"] = OverflowError("secret")
    async with web_serving(api) as web:
        response = await raw_request(web.port, "POST", "/web/rpc", RIGHT, b'"List"')
        assert response.status == 200
        assert "secret" not in message_of(response.body)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("Origin", ORIGIN)], 401),
        ([RIGHT[0]], 403),
        ([RIGHT[0], ("Origin", "http://evil.example")], 403),
        ([RIGHT[0], ("Origin", ORIGIN), ("Origin", "http://evil.example")], 403),
        ([("Authorization", "Bearer wrong"), ("Origin", ORIGIN), ("Origin", ORIGIN)], 401),
        ([RIGHT[0], ("Origin", ORIGIN), ("Host", "evil.example")], 403),
        ([RIGHT[0], ("Origin", ORIGIN), ("Sec-WebSocket-Protocol", "chat")], 400),
        ([RIGHT[0], ("Origin", ORIGIN)], 101),
        ([RIGHT[0], ("Origin", ORIGIN), ("Origin", ORIGIN)], 101),
    ],
)
async def test_upgrade_is_granted_by_the_table(headers: list[tuple[str, str]], status: int) -> None:
    async with web_serving(ScriptedSessions()) as web:
        response = await raw_request(web.port, "GET", "/web/ws", [*UPGRADE, *headers])
        assert response.status == status
        if status != 101:
            assert message_of(response.body)
        assert response.header("sec-websocket-protocol") is None


async def test_upgrade_echoes_the_protocol_and_never_the_token() -> None:
    async with web_serving(ScriptedSessions()) as web:
        offer = ("Sec-WebSocket-Protocol", f"superfluid.token.{TOKEN}, superfluid.v1")
        response = await raw_request(web.port, "GET", "/web/ws", [*UPGRADE, ("Origin", ORIGIN), offer])
        assert response.status == 101
        assert response.header("sec-websocket-protocol") == "superfluid.v1"


async def test_socket_route_without_an_upgrade_is_told_so_only_with_the_token() -> None:
    async with web_serving(ScriptedSessions()) as web:
        stranger = await raw_request(web.port, "GET", "/web/ws")
        friend = await raw_request(web.port, "GET", "/web/ws", [RIGHT[0], ("Origin", ORIGIN)])
        assert (stranger.status, friend.status) == (401, 426)


async def test_upgrade_elsewhere_is_refused() -> None:
    async with web_serving(ScriptedSessions()) as web:
        response = await raw_request(web.port, "GET", "/web/rpc", [*UPGRADE, RIGHT[0], ("Origin", ORIGIN)])
        assert response.status == 404
