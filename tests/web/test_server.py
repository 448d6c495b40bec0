import asyncio
import socket

from tests.fixtures.scripted_sessions import ScriptedSessions
from tests.fixtures.session_web import DEADLINE_SECONDS, raw_request, web_serving


async def test_server_names_its_address() -> None:
    async with web_serving(ScriptedSessions()) as web:
        assert web.server.url == f"http://127.0.0.1:{web.port}"


async def test_idle_server_stops_without_waiting_for_the_drain() -> None:
    async with web_serving(ScriptedSessions(), drain_timeout_seconds=300) as web:
        assert (await raw_request(web.port, "GET", "/web/health")).status == 200
        web.server.stop()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await web.task


async def test_cancelled_server_closes_its_listener() -> None:
    async with web_serving(ScriptedSessions()) as web:
        await raw_request(web.port, "GET", "/web/health")
        web.task.cancel()
        await asyncio.wait((web.task,))
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", web.port)) != 0
