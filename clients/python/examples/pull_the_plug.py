"""Kills its own server in the middle of a reply, starts it again, and goes on with the same reply.

    python pull_the_plug.py [MODEL]

Three things are shown, and the exit code is 1 if one of them fails: every token that was acknowledged before the kill
is still there; the reply goes on from the last of them; and the whole text is the one of a run that nobody interrupted.
The server runs in a directory of its own, which is deleted at the end, and in exact mode (``--flash-attn off``).
"""

import argparse
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from superfluid_client import (
    Client,
    ConnectionLost,
    Event,
    Finish,
    Message,
    Sampling,
    Session,
    SuperfluidError,
)
from superfluid_client.credentials import default_token_file

WIDTH = 76
QUESTION = "Tell me a long story about a lighthouse keeper and a storm."
SAMPLING = Sampling(temperature=0.7, top_p=0.95, seed=20)
START_SECONDS = 300.0
STOP_SECONDS = 20.0


class DemoError(Exception):
    """The demonstration cannot go on."""


class Server:
    """A daemon in ``home`` that can be killed and started again."""

    def __init__(self, home: Path, arguments: Sequence[str]) -> None:
        port = free_port()
        # Long enough for a model to load: the listener answers before that, and sessions wait.
        token_file = home / "sessions" / "web-token"
        self.client = Client(f"http://127.0.0.1:{port}", token_file=token_file, timeout=START_SECONDS)
        self._command = [
            *superfluid_command(),
            *("serve", *arguments, "--flash-attn", "off", "--no-tui"),
            *("--http", "127.0.0.1:0", "--web", f"127.0.0.1:{port}"),
        ]
        self._environment = {**os.environ, "SUPERFLUID_HOME": str(home)}
        self._log = home / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def start(self) -> None:
        """Returns when the web listener answers. Raises DemoError with the end of the log if it does not."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.client.is_healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"the server did not start:\n\n{self.log_end()}")
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL: the daemon has no moment left to save anything. Its engine process ends with it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def log_end(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])


def superfluid_command() -> list[str]:
    if importlib.util.find_spec("superfluid") is not None:
        return [sys.executable, "-m", "superfluid.cli.main"]
    command = shutil.which("superfluid")
    if command is None:
        raise DemoError("there is no superfluid here: install the server first (pip install superfluid-llm)")
    return [command]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def share_models(home: Path) -> None:
    """Lets the server find, and keep, downloaded models where they always are."""
    models = default_token_file().parents[1] / "models"
    models.mkdir(parents=True, exist_ok=True)
    (home / "models").symlink_to(models.resolve(), target_is_directory=True)


class Paragraph:
    """Prints text as it comes, indented and with its lines broken between words."""

    def __init__(self) -> None:
        self._column = 0
        self._spaces = 0
        self._word = ""

    def write(self, text: str) -> None:
        for character in text:
            if not character.isspace():
                self._word += character
                continue
            self._flush_word()
            if character == "\n":
                self._new_line()
            elif self._column:
                self._spaces = 1

    def mark(self, text: str) -> None:
        """Something that is not part of the text."""
        self._flush_word()
        self._put(text)

    def end(self) -> None:
        self._flush_word()
        self._new_line()
        self._new_line()

    def _flush_word(self) -> None:
        if self._column and self._column + self._spaces + len(self._word) > WIDTH:
            self._new_line()
        self._put(self._word)
        self._word = ""

    def _put(self, text: str) -> None:
        if text:
            print(f"{' ' * self._spaces if self._column else '   '}{text}", end="", flush=True)
            self._column += self._spaces + len(text)
            self._spaces = 0

    def _new_line(self) -> None:
        print(flush=True)
        self._column = self._spaces = 0


@dataclass(frozen=True)
class Result:
    """One of the three things to show."""

    is_true: bool
    claim: str
    detail: str


def say(text: str) -> None:
    print("\n".join(textwrap.wrap(text, WIDTH)) + "\n", flush=True)


def ask(client: Client) -> Session:
    session = client.session(SAMPLING)
    session.user(QUESTION)
    return session


def generate_until_killed(server: Server, session: Session, max_tokens: int, kill_after: int) -> list[Event]:
    """The acknowledged events of a reply that the kill cut short."""
    paragraph = Paragraph()
    stream = session.stream(max_tokens)
    try:
        for chunk in stream:
            paragraph.write(chunk.text)
            if stream.reply.tokens >= kill_after:
                server.kill()
                break
        else:
            paragraph.end()
            raise DemoError(f"the reply was over before its token {kill_after}; choose a smaller --kill-after")
        # What was under way when the server died may still be in the socket; it was acknowledged, too.
        for chunk in stream:
            paragraph.write(chunk.text)
    except ConnectionLost:
        pass
    paragraph.mark("⚡")
    paragraph.end()
    if stream.reply.finish is not Finish.NONE:
        raise DemoError("the reply was over before the server could be killed; choose a smaller --kill-after")
    return list(stream.reply.events)


def continue_reply(session: Session, shown: str, max_tokens: int) -> list[Event]:
    """The events that come behind those in the log."""
    paragraph = Paragraph()
    paragraph.write(shown)
    paragraph.mark("⟫")
    stream = session.stream(max_tokens)
    for chunk in stream:
        paragraph.write(chunk.text)
    paragraph.end()
    return list(stream.reply.events)


def drawn_tokens(events: Sequence[Event]) -> list[int]:
    return [token for event in events if event.kind == "Generated" for token in event.span]


def reply_of(session: Session) -> Message:
    """The session's one reply."""
    replies = [message for message in session.messages() if message.role == "assistant"]
    if len(replies) != 1:
        raise DemoError(f"the session has {len(replies)} replies instead of one")
    return replies[0]


def acknowledged_result(acknowledged: Sequence[Event], log: Sequence[Event]) -> Result:
    stored = {event.id: event for event in log}
    kept = [event for event in acknowledged if stored.get(event.id) == event]
    return Result(
        len(kept) == len(acknowledged),
        "Every acknowledged token is still there",
        f"{len(drawn_tokens(kept))} of {len(drawn_tokens(acknowledged))} tokens, ids and text as they were seen",
    )


def continued_result(log: Sequence[Event], continued: Sequence[Event], session: Session) -> Result:
    before = drawn_tokens(log)
    text = "".join(event.text for event in (*log, *continued) if event.kind == "Generated")
    events = session.events()
    headers = sum(event.kind == "GenerationPrompt" for event in events)
    is_true = (
        bool(continued)
        and headers == 1
        and drawn_tokens(events) == before + drawn_tokens(continued)
        and reply_of(session).text == text
    )
    return Result(
        is_true,
        "The reply goes on from the last of them",
        f"token {len(before)} came before the kill, token {len(before) + 1} after it, in one turn",
    )


def equal_result(session: Session, whole: Session) -> Result:
    ours, theirs = drawn_tokens(session.events()), drawn_tokens(whole.events())
    common = next((n for n, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    is_true = ours == theirs and reply_of(session).text == reply_of(whole).text
    detail = f"{len(ours)} tokens, {len(reply_of(session).text)} characters"
    if not is_true:
        place = min(len(ours), len(theirs)) if common is None else common
        detail = f"they differ from token {place + 1} on ({len(ours)} and {len(theirs)} tokens)"
    return Result(is_true, "The whole text is that of an uninterrupted run", detail)


def demonstrate(server: Server, max_tokens: int, kill_after: int) -> list[Result]:
    say("1. Starting a server in a directory of its own.")
    server.start()
    session = ask(server.client)
    say(f"2. Asking for {max_tokens} tokens. After {kill_after} of them the server is killed (SIGKILL).")
    acknowledged = generate_until_killed(server, session, max_tokens, kill_after)
    say(f"   The server is gone. {len(drawn_tokens(acknowledged))} tokens had been acknowledged.")

    say("3. Starting it again on the same directory, and continuing the same reply.")
    server.start()
    log = session.events()
    rest = max_tokens - len(drawn_tokens(log))
    shown = "".join(event.text for event in log if event.kind == "Generated")
    continued = continue_reply(session, shown, rest)

    say("4. Asking the same once more, with the same seed, and leaving it alone.")
    whole = ask(server.client)
    whole.generate(max_tokens)
    return [
        acknowledged_result(acknowledged, log),
        continued_result(log, continued, session),
        equal_result(session, whole),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a server in the middle of a reply, and go on with the reply.")
    parser.add_argument("model", nargs="?", help="the model to serve (default: the embedded one)")
    parser.add_argument("--tokens", type=int, default=120, help="length of the reply (default: %(default)s)")
    parser.add_argument("--kill-after", type=int, default=40, help="tokens before the kill (default: %(default)s)")
    parser.add_argument("--runtime", default="auto", help="passed on to the server (default: %(default)s)")
    arguments = parser.parse_args()
    options = ["--runtime", arguments.runtime, *([arguments.model] if arguments.model else [])]

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is stopped, too
    with tempfile.TemporaryDirectory(prefix="pull-the-plug-") as directory:
        home = Path(directory)
        try:
            share_models(home)
            with Server(home, options) as server:
                results = demonstrate(server, arguments.tokens, arguments.kill_after)
        except (DemoError, SuperfluidError, OSError) as error:
            print(f"pull_the_plug: {error}", file=sys.stderr)
            return 1
    for result in results:
        print(f" {'✔' if result.is_true else '✘'} {result.claim}:\n   {result.detail}")
    return 0 if all(result.is_true for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
