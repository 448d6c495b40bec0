import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.live_daemon import LiveDaemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    """On the fake engine. Every reply is the same, but for a question about the weather, which is a tool call."""
    home: Path = tmp_path_factory.mktemp("daemon")
    script = home / "script.json"
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    script.write_text(
        json.dumps({"replies": [{"when": "weather", "text": call}, {"text": "The Rhine, the Rhône, the Danube."}]})
    )
    with LiveDaemon(home, script) as live:
        yield live
