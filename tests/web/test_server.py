import asyncio
import socket

import pytest
from tests.fixtures.scripted_sessions import ScriptedSessions
from tests.fixtures.session_web import raw_request, web_serving

from superfluid.errors import AddressUnavailableError, UsageError
from superfluid.web.server import bind_web_listener


@pytest.mark.parametrize("text", ["127.0.0.1:0", "localhost:0", "[::1]:0"])
def test_loopback_address_is_bound(text: str) -> None:
    if text.startswith("[") and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    listener = bind_web_listener(text)
    assert listener.getsockname()[1] > 0
    listener.close()


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0:8455",
        "8455",
        ":8455",
        "192.168.0.1:80",
        "::1:80",
        "127.0.0.2:80",
        "LOCALHOST:1",
        "localhost.evil:1",
        "",
    ],
)
def test_address_that_is_not_loopback_names_the_flag(text: str) -> None:
    with pytest.raises(UsageError, match="--web"):
        bind_web_listener(text)


@pytest.mark.parametrize("text", ["localhost:", "localhost:x", "localhost:65536", "127.0.0.1:-1", "127.0.0.1:٣"])
def test_address_without_a_port_names_the_flag(text: str) -> None:
    with pytest.raises(UsageError, match="--web"):
        bind_web_listener(text)


def test_taken_port_is_refused_by_address() -> None:
    first = bind_web_listener("127.0.0.1:0")
    port = first.getsockname()[1]
    with pytest.raises(AddressUnavailableError, match=str(port)):
        bind_web_listener(f"127.0.0.1:{port}")
    first.close()


async def test_server_names_its_address() -> None:
    async with web_serving(ScriptedSessions()) as web:
        assert web.server.url == f"http://127.0.0.1:{web.port}"


async def test_idle_server_stops_without_waiting_for_the_drain() -> None:
    async with web_serving(ScriptedSessions(), drain_timeout_seconds=30) as web:
        assert (await raw_request(web.port, "GET", "/web/health")).status == 200
        web.server.stop()
        async with asyncio.timeout(3):
            await web.task


async def test_cancelled_server_closes_its_listener() -> None:
    async with web_serving(ScriptedSessions()) as web:
        await raw_request(web.port, "GET", "/web/health")
        web.task.cancel()
        await asyncio.wait((web.task,))
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", web.port)) != 0
