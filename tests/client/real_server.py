"""A real daemon on the fake engine, with a client, as a process that tests may kill and start again."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from superfluid_client import AsyncClient, Client
from tests.fixtures.live_daemon import LiveDaemon

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "clients" / "python" / "examples"


class RealServer(LiveDaemon):
    """``script`` is what the fake engine says; see ``superfluid.engine.fake_script``."""

    def __init__(self, home: Path, script: dict[str, Any], *options: str) -> None:
        script_file = home / "script.json"
        script_file.write_text(json.dumps(script))
        super().__init__(home, script_file, *options)
        self.url = f"http://127.0.0.1:{self.web_port}"
        self.token_file = self.sessions / "web-token"
        self.sf = Client(self.url, token_file=self.token_file, socket=self.socket)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sf.close()
        super().__exit__(kind, error, traceback)

    def async_client(self) -> AsyncClient:
        return AsyncClient(self.url, token_file=self.token_file, socket=self.socket)


def environment(home: Path) -> dict[str, str]:
    """For a process that runs the daemon and the client out of the checkout."""
    paths = [str(ROOT / "src"), str(ROOT / "clients" / "python" / "src")]
    return {**os.environ, "SUPERFLUID_HOME": str(home), "PYTHONPATH": os.pathsep.join(paths)}
