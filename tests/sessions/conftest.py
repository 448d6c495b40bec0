"""A session core over a store in a temporary directory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fixtures.session_core import SessionCore, session_core


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[SessionCore]:
    async with session_core(tmp_path / "sessions.db") as built:
        yield built
