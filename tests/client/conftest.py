"""The client's tests: where its package is, and a fake listener for it to talk to."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The client is a distribution of its own, and not installed where the daemon's tests run.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients" / "python" / "src"))

from superfluid_client import AsyncClient, AsyncSession, Client, Session
from tests.client.fake_web_server import FakeWebServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeWebServer]:
    with FakeWebServer(tmp_path) as server:
        yield server


@pytest.fixture
def client(server: FakeWebServer) -> Iterator[Client]:
    with Client(server.url, token_file=server.token_file, timeout=30.0) as client:
        yield client


@pytest.fixture
def async_client(server: FakeWebServer) -> Iterator[AsyncClient]:
    client = AsyncClient(server.url, token_file=server.token_file, timeout=30.0)
    yield client
    client.close()


@pytest.fixture
def session(client: Client) -> Session:
    """Session 3, which the fake listener does not know."""
    return client.session_of(3)


@pytest.fixture
def async_session(async_client: AsyncClient) -> AsyncSession:
    return async_client.session_of(3)
