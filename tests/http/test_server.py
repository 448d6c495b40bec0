"""The listener and the server's life."""

import asyncio
import socket

import pytest
from tests.fixtures.http_server import FrontEnd
from tests.fixtures.scripted_models import ScriptedModel, says

from superfluid.domain.reply import Channel, TextDelta
from superfluid.errors import AddressUnavailableError
from superfluid.http.server import HttpServer, bind_listener, listener_address

STREAM = b'{"model":"scripted","stream":true,"messages":[{"role":"user","content":"Hi"}]}'
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(STREAM)
) + STREAM


def test_bind_on_a_taken_port_names_the_address() -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        host, port = listener_address(listener)
        with pytest.raises(AddressUnavailableError, match=f"127.0.0.1:{port}"):
            bind_listener(host, port)


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 80), ("127.0.0.1", 70_000), ("203.0.113.1", 0)])
def test_bind_on_an_impossible_address_is_the_environments_fault(host: str, port: int) -> None:
    with pytest.raises(AddressUnavailableError, match=host):
        bind_listener(host, port)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_bind_takes_ipv6_with_and_without_brackets() -> None:
    for host in ("::1", "[::1]"):
        with bind_listener(host, 0) as listener:
            assert listener_address(listener)[0] == "::1"


def test_bind_after_a_server_on_that_port_has_gone_works_at_once() -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        host, port = listener_address(listener)
        with socket.create_connection((host, port)), listener.accept()[0]:
            pass
    bind_listener(host, port).close()


async def test_stop_lets_a_running_stream_finish_and_accepts_nobody() -> None:
    gate = asyncio.Event()
    front = FrontEnd(ScriptedModel(lambda request: [gate, *says("late")]))
    listener = bind_listener("127.0.0.1", 0)
    address = listener_address(listener)
    server = HttpServer(front.app, listener, drain_timeout_seconds=30)
    serving = asyncio.create_task(server.serve())
    reader, writer = await asyncio.open_connection(*address)
    writer.write(REQUEST)
    await reader.readuntil(b'"role":"assistant"')
    server.stop()
    assert not server.is_accepting
    await _until_refused(address)
    assert not serving.done()
    gate.set()
    assert b'"content":"late"' in await reader.readuntil(b"data: [DONE]\n\n")
    await asyncio.wait_for(serving, 30)
    writer.close()


@pytest.mark.parametrize(("drain_timeout_seconds", "at_once"), [(0, False), (60, True)])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_stop_ends_what_still_runs_with_an_error_its_client_can_read(
    drain_timeout_seconds: float, at_once: bool, is_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    front = FrontEnd(ScriptedModel(lambda request: [[TextDelta(Channel.TEXT, "a", 1)], asyncio.Event()]))
    listener = bind_listener("127.0.0.1", 0)
    server = HttpServer(front.app, listener, drain_timeout_seconds=drain_timeout_seconds)
    serving = asyncio.create_task(server.serve())
    reader, writer = await asyncio.open_connection(*listener_address(listener))
    writer.write(REQUEST if is_stream else REQUEST.replace(b"true,", b"null,"))
    await asyncio.wait_for(front.model.started.wait(), 5)
    server.stop(at_once=at_once)
    await asyncio.wait_for(serving, 30)
    answer = await asyncio.wait_for(reader.read(), 5)
    assert front.model.replies[0].cancelled.is_set()
    assert b'"code":"shutting_down"' in answer
    assert answer.startswith(b"HTTP/1.1 200" if is_stream else b"HTTP/1.1 503")
    assert "Traceback" not in caplog.text
    writer.close()


async def _until_refused(address: tuple[str, int]) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection(*address)
        except OSError:
            return
        writer.close()
        await asyncio.sleep(0.01)
