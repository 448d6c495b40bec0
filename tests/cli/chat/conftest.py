import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.live_daemon import LiveDaemon

CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
LONG = " ".join(f"word{number}" for number in range(150))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    """On the fake engine: calls a tool when asked for the weather, thinks when told to, is long-winded, sees images."""
    home: Path = tmp_path_factory.mktemp("daemon")
    replies = [
        {"when": "It is sunny", "text": "Sunny, they say."},
        {"when": "weather", "text": CALL},
        {"when": "think", "text": "<think>Hm, rivers.</think>Rivers **flow**."},
        {"when": "long", "text": LONG},
        {"text": "Hello there."},
    ]
    script = home / "script.json"
    script.write_text(json.dumps({"replies": replies, "step_seconds": 0.003, "image_tokens": 64}))
    with LiveDaemon(home, script) as live:
        yield live
