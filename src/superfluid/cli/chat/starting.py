"""Before the first message: is there a server, shall one be started, what does it serve."""

import os
import shlex
import sys
import time
from pathlib import Path

import click
from msgspec import Struct

from superfluid.cli.background_server import BackgroundServer, start_in_background
from superfluid.cli.chat.link import Link
from superfluid.cli.chat.sampling import ServerFacts, read_facts
from superfluid.cli.chat.screen import Screen
from superfluid.config import default_socket_path, home_directory
from superfluid.errors import ConnectionLostError, RequestRefusedError, ServerUnreachableError
from superfluid.native import requests, responses

POLL_SECONDS = 0.1
ADDRESS_SECONDS = 2.0
"""How much later than on the socket a server may be there on HTTP."""


class Wanted(Struct, frozen=True):
    """The server that the command line names; ``model`` is what to serve if there is none."""

    socket: Path
    model: str | None = None

    @property
    def has_default_socket(self) -> bool:
        return self.socket == default_socket_path(home_directory(os.environ), os.environ)

    def serve_arguments(self) -> list[str]:
        return [
            *([] if self.model is None else [self.model]),
            *([] if self.has_default_socket else ["--socket", str(self.socket)]),
        ]


class Server:
    """What the server says of itself; asked again as long as its model is loading."""

    def __init__(self, link: Link, facts: ServerFacts) -> None:
        self._link = link
        self._facts = facts

    def facts(self) -> ServerFacts:
        """Raises ConnectionLostError and ServerUnreachableError."""
        if self._facts.model is None:
            self._facts = ask_facts(self._link)
        return self._facts


def find_server(wanted: Wanted, link: Link, screen: Screen, *, can_ask: bool) -> ServerFacts:
    """What the server at the socket says of itself, after starting one there if that is agreed to.

    Raises ServerUnreachableError if there is none and nobody wants one.
    """
    if link.can_connect():
        if wanted.model is not None:
            screen.say("A server is running; --model is for starting one.", "yellow")
        return ask_facts(link)
    command = shlex.join(["superfluid", "serve", *wanted.serve_arguments()])
    if not can_ask:
        raise ServerUnreachableError(f"no server answers at {wanted.socket}; `{command}` starts one")
    screen.say(f"No server answers at {wanted.socket}.", "")
    what = wanted.model or "the embedded model"
    if not click.confirm(f"Start one in the background, with {what}?", default=True, err=not screen.is_terminal):
        raise ServerUnreachableError(f"no server; `{command}` starts one")
    return _start(wanted, link, screen)


def ask_facts(link: Link) -> ServerFacts:
    """Nothing if the server keeps that to itself, or knows no model yet."""
    try:
        return read_facts(link.ask(requests.Metrics(), responses.Text).text)
    except RequestRefusedError:
        return ServerFacts()


def _start(wanted: Wanted, link: Link, screen: Screen) -> ServerFacts:
    server = start_in_background(home_directory(os.environ), wanted.serve_arguments())
    try:
        facts = _await_ready(server, link, screen)
    except BaseException:
        # It was never of use to anybody.
        server.stop()
        raise
    address = _await_address(server)
    where = "" if address is None else f" at {address}"
    screen.say(f"The server runs in the background{where} as process {server.pid}; its log is {server.log}.")
    screen.say(f"It stays when you leave; `kill {server.pid}` ends it.")
    return facts


def _await_ready(server: BackgroundServer, link: Link, screen: Screen) -> ServerFacts:
    """No deadline: a model may have to be fetched. Ctrl-C ends the wait."""
    view = screen.view()
    try:
        while True:
            server.check()
            view.tick(f"starting a server: {server.last_line()}"[:200])
            try:
                facts = ask_facts(link) if link.can_connect() else ServerFacts()
            except (ConnectionLostError, ServerUnreachableError):
                facts = ServerFacts()
            if facts.model is not None:
                return facts
            time.sleep(POLL_SECONDS)
    finally:
        view.end()


def _await_address(server: BackgroundServer) -> str | None:
    """The last thing that a server says of its start. Its port is not always the usual one."""
    deadline = time.monotonic() + ADDRESS_SECONDS
    while (address := server.address()) is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return address


def is_interactive() -> bool:
    """Whether a person types."""
    return sys.stdin.isatty()
