"""What ``superfluid chat`` does: a conversation at a terminal, or one message from a pipe."""

import os
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import click
from msgspec import Struct

from superfluid.cli.chat.actions import Actions
from superfluid.cli.chat.declarations import read_tools
from superfluid.cli.chat.interrupts import key_by_key
from superfluid.cli.chat.link import Link
from superfluid.cli.chat.prompt import LinePrompt, Prompt, StreamPrompt
from superfluid.cli.chat.sampling import SamplingFlags, chat_params
from superfluid.cli.chat.screen import Screen
from superfluid.cli.chat.slash import parse_line
from superfluid.cli.chat.starting import Server, Wanted, find_server, is_interactive
from superfluid.cli.chat.talk import Talk
from superfluid.cli.commands import say_note
from superfluid.config import home_directory
from superfluid.domain.reply import Finish
from superfluid.errors import (
    ConnectionLostError,
    EnvironmentFaultError,
    ServerUnreachableError,
    SuperfluidError,
    UsageError,
)

HISTORY_FILE = "chat_history"


class ChatSettings(Struct, frozen=True, kw_only=True):
    """The flags. ``max_tokens`` bounds each reply."""

    socket: Path
    session: int | None = None
    model: str | None = None
    system: str | None = None
    tools: Path | None = None
    sampling: SamplingFlags = SamplingFlags()
    max_tokens: int = 2**32 - 1
    is_plain: bool = False
    has_history: bool = True


def chat(settings: ChatSettings) -> int:
    """The exit code. Raises what keeps it from starting, and, of a message from a pipe, what keeps it from a reply."""
    screen = Screen(is_plain=settings.is_plain)
    tools = () if settings.tools is None else read_tools(settings.tools)
    wanted = Wanted(settings.socket, settings.model)
    link = Link(settings.socket)
    try:
        server = Server(link, find_server(wanted, link, screen, can_ask=is_interactive()))
        talk = Talk(
            link,
            new_params=lambda: chat_params(settings.sampling, server.facts().sampling),
            max_tokens=settings.max_tokens,
            new_view=screen.view,
            say=screen.say,
            is_quiet=not is_interactive(),
        )
        prompt = _prompt(settings, screen)
        actions = Actions(
            talk,
            screen,
            prompt,
            params=chat_params(settings.sampling, server.facts().sampling) if settings.sampling.is_given else None,
            system=settings.system,
            tools=tools,
            window_tokens=lambda: server.facts().window_tokens,
        )
        if not is_interactive():
            return _answer_pipe(settings, talk, actions)
        loop = _Loop(settings, wanted, talk, actions, screen, prompt)
        with key_by_key() if isinstance(prompt, LinePrompt) and prompt.is_editor else nullcontext():
            return loop.run(server.facts().model)
    finally:
        link.close()


def _prompt(settings: ChatSettings, screen: Screen) -> Prompt:
    if not (is_interactive() and screen.is_terminal):
        return StreamPrompt(lambda text: click.echo(text, nl=False, err=True))
    history = home_directory(os.environ) / HISTORY_FILE if settings.has_history else None
    return LinePrompt(is_unicode=screen.is_unicode, has_color="NO_COLOR" not in os.environ, history=history)


class _Loop:
    """Reads, does, and reads again, until there is nothing more to read."""

    def __init__(
        self, settings: ChatSettings, wanted: Wanted, talk: Talk, actions: Actions, screen: Screen, prompt: Prompt
    ) -> None:
        self._settings = settings
        self._wanted = wanted
        self._talk = talk
        self._actions = actions
        self._screen = screen
        self._prompt = prompt

    def run(self, model: str | None) -> int:
        self._screen.say(f"{model or 'The model is still loading'}. /help lists commands, Ctrl-D leaves.")
        if self._settings.session is not None:
            self._actions.greet(self._settings.session)
            if self._settings.sampling.is_given:
                self._screen.say("The session keeps its sampling; branches made here use yours.")
        while True:
            self._screen.blank()
            try:
                line = self._prompt.read(f"{self._number()} ")
            except EOFError:
                break
            except KeyboardInterrupt:
                self._screen.blank()
                self._screen.say("Ctrl-D or /quit leaves.")
                continue
            if line.strip() and not self._take(line):
                break
        self._say_farewell()
        return 0

    def _number(self) -> int:
        conversation = self._talk.conversation
        return 1 if conversation is None else conversation.next_number

    def _take(self, line: str) -> bool:
        """Does what a line says; false if that is to leave. A failure ends the line and not the chat."""
        try:
            typed = parse_line(line)
            if typed.command == "quit":
                return False
            if typed.command is None:
                self._actions.send(typed.text)
            else:
                self._actions.run(typed.command, typed.text)
        except EOFError:
            self._screen.blank()
            self._screen.say("Nothing was changed.")
        except KeyboardInterrupt:
            # A request may be unanswered: its reply must not be taken for the next one's.
            self._talk.link.close()
            self._screen.say("Stopped.", "yellow")
        except UsageError as error:
            self._screen.say(error.message, "yellow")
        except (ConnectionLostError, ServerUnreachableError) as error:
            self._screen.say(f"{error.message}.", "red")
            self._screen.say("The conversation is safe. When a server is back, the up arrow brings your line back.")
        except SuperfluidError as error:
            self._screen.say(error.message, "red")
        return True

    def _say_farewell(self) -> None:
        conversation = self._talk.conversation
        self._screen.blank()
        if conversation is not None:
            words = ["superfluid", "chat", "--session", str(conversation.session)]
            if not self._wanted.has_default_socket:
                words += ["--socket", str(self._wanted.socket)]
            self._screen.say(f"To return: {shlex.join(words)}")


def _answer_pipe(settings: ChatSettings, talk: Talk, actions: Actions) -> int:
    """All of stdin is one message. The reply alone is on stdout, and on stderr how to go on."""
    text = sys.stdin.read().strip()
    if not text:
        raise UsageError("there is no message: stdin is empty")
    if settings.session is not None:
        talk.open(settings.session)
    end = actions.send_quietly(text)
    for call in talk.current.open_calls:
        say_note(f"call {call.call_id} of {call.name} waits for an answer")
    if end.finish == Finish.LENGTH:
        say_note("the reply was cut at its limit")
    say_note(f"this is session {talk.current.session}")
    if end.finish == Finish.CANCELLED:
        raise EnvironmentFaultError("the reply was stopped before its end")
    return 0
