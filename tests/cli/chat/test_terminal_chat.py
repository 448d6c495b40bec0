"""``superfluid chat`` on a real terminal, a real daemon behind it."""

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fixtures.command_line import COMMAND, clean_environment
from tests.fixtures.images import picture
from tests.fixtures.live_daemon import LiveDaemon
from tests.fixtures.pseudo_terminal import PseudoTerminal

from superfluid.domain.events import Event, Forked, Generated, Message, Rebased
from superfluid.domain.reply import Finish


@contextmanager
def chatting(daemon: LiveDaemon, home: Path, *flags: str) -> Iterator[PseudoTerminal]:
    command = [*COMMAND, "chat", "--socket", str(daemon.socket), *flags]
    environment = clean_environment(home) | {"NO_COLOR": "1", "PYTHONUTF8": "1"}
    with PseudoTerminal(command, environment) as terminal:
        terminal.wait_for("1 › " if not flags else "› ")
        yield terminal


def newest_session(daemon: LiveDaemon) -> int:
    with daemon.client() as client:
        return max(client.list_ids())


def log_of(daemon: LiveDaemon, session: int) -> list[Event]:
    with daemon.client() as client:
        return list(client.read(session))


def finishes(events: list[Event]) -> list[int]:
    return [event.body.finish for event in events if isinstance(event.body, Generated) and event.body.finish]


def test_conversation_is_numbered_and_says_how_to_return(daemon: LiveDaemon, tmp_path: Path) -> None:
    with chatting(daemon, tmp_path) as terminal:
        terminal.type("hi\r")
        terminal.wait_for("Hello there.")
        terminal.wait_for("2 › ")
        terminal.type("think\r")
        terminal.wait_for("│ Hm, rivers.")
        terminal.wait_for("Rivers flow.")
        terminal.wait_for("3 › ")
        terminal.type("\x04")
        assert terminal.wait_end() == 0
        session = newest_session(daemon)
        assert f"To return: superfluid chat --session {session} --socket" in terminal.output
    with chatting(daemon, tmp_path, "--session", str(session)) as terminal:
        terminal.wait_for("3 › ")
        assert "2 › think" in terminal.output
        terminal.type("/quit\r")
        assert terminal.wait_end() == 0


def test_interrupt_cancels_the_reply_and_keeps_the_session(daemon: LiveDaemon, tmp_path: Path) -> None:
    with chatting(daemon, tmp_path) as terminal:
        terminal.type("a long one\r")
        terminal.wait_for("word10 ")
        terminal.type("\x03")
        terminal.wait_for("Stopped. /continue goes on with the reply")
        session = newest_session(daemon)
        assert finishes(log_of(daemon, session)) == [Finish.CANCELLED]
        assert "word149" not in terminal.output
        terminal.type("/continue\r")
        terminal.wait_for("word149")
        terminal.wait_for("2 › ", count=2)
        assert finishes(log_of(daemon, session)) == [Finish.CANCELLED, Finish.END_OF_TURN]
        terminal.type("\x04")
        assert terminal.wait_end() == 0


def test_interrupt_at_the_prompt_leaves_nothing_and_ends_nothing(daemon: LiveDaemon, tmp_path: Path) -> None:
    with chatting(daemon, tmp_path) as terminal:
        terminal.type("half a mess")
        terminal.wait_for("half a mess")
        # Python's line editor notices an interrupt that meets it at work with the next key only.
        for _ in range(20):
            terminal.type("\x03")
            if terminal.comes("Ctrl-D or /quit leaves.", 1.0):
                break
        terminal.type("\x04")
        assert terminal.wait_end() == 0
        assert "To return" not in terminal.output


def test_edit_and_retry_go_on_in_new_sessions(daemon: LiveDaemon, tmp_path: Path) -> None:
    with chatting(daemon, tmp_path) as terminal:
        terminal.type("hi\r")
        terminal.wait_for("2 › ")
        first = newest_session(daemon)
        terminal.type("/edit 1\r")
        terminal.wait_for("edit 1 › hi")
        terminal.type(" think\r")
        terminal.wait_for("Rivers flow.")
        second = newest_session(daemon)
        assert f"Now on session {second}; session {first} stays as it was." in terminal.output
        terminal.wait_for("2 › ", count=2)
        terminal.type("/retry\r")
        terminal.wait_for("2 › ", count=3)
        third = newest_session(daemon)
        assert f"Now on session {third}; session {second} stays as it was." in terminal.output
        terminal.type("/tree\r")
        terminal.wait_for(f"   └─ {third}")
        assert "<- here" in terminal.output
        terminal.type("\x04")
        terminal.wait_end()
    edited, retried = log_of(daemon, second), log_of(daemon, third)
    assert [event.body.text for event in edited if isinstance(event.body, Message)] == ["hi think"]
    assert any(isinstance(event.body, Rebased) and event.body.parent == first for event in edited)
    assert any(isinstance(event.body, Forked) and event.body.parent == second for event in retried)


def test_tool_call_is_answered_and_the_model_goes_on(daemon: LiveDaemon, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text('[{"name": "get_weather", "parameters": {"type": "object"}}]')
    with chatting(daemon, tmp_path) as terminal:
        terminal.type(f"/tools {tools}\r")
        terminal.wait_for("The model may call: get_weather")
        terminal.type("the weather?\r")
        terminal.wait_for('get_weather {"city": "Paris"}')
        terminal.wait_for("waits: /answer TEXT says what it gave")
        terminal.wait_for("2 › ")
        terminal.type("/answer It is sunny\r")
        terminal.wait_for("Sunny, they say.")
        terminal.type("\x04")
        assert terminal.wait_end() == 0


def test_history_shows_images_ahead_of_the_first_message_and_behind_it(daemon: LiveDaemon, tmp_path: Path) -> None:
    names = ["red.png", "blue.png"]
    blobs = []
    for seed, name in enumerate(names):
        (tmp_path / name).write_bytes(picture(seed))
        blobs.append(hashlib.sha256(picture(seed)).hexdigest()[:12])
    sizes = [len(picture(seed)) for seed in range(2)]
    with chatting(daemon, tmp_path) as terminal:
        terminal.type(f"/image {tmp_path / names[0]}\r")
        terminal.wait_for("The model sees red.png.")
        terminal.type("hi\r")
        terminal.wait_for("2 › ")
        terminal.type(f"/image {tmp_path / names[1]}\r")
        terminal.wait_for("The model sees blue.png.")
        terminal.type("/history\r")
        terminal.wait_for(f"[image {blobs[1]}, 64 tokens (blue.png, {sizes[1]:,} bytes)]")
        assert f"[image {blobs[0]}, 64 tokens (red.png, {sizes[0]:,} bytes)]" in terminal.output
        terminal.type("\x04")
        assert terminal.wait_end() == 0
    with chatting(daemon, tmp_path, "--session", str(newest_session(daemon))) as terminal:
        terminal.wait_for(f"[image {blobs[1]}, 64 tokens]")
        assert terminal.output.index(f"[image {blobs[0]}, 64 tokens]") < terminal.output.index("1 › hi")
        terminal.type("\x04")
        assert terminal.wait_end() == 0


def test_pasted_lines_are_one_message(daemon: LiveDaemon, tmp_path: Path) -> None:
    with chatting(daemon, tmp_path) as terminal:
        terminal.type("\x1b[200~one\n/quit\n\ntwo\x1b[201~")
        terminal.wait_for("two")
        terminal.type("\r")
        terminal.wait_for("Hello there.")
        terminal.type("\x04")
        assert terminal.wait_end() == 0
    (message,) = [event.body for event in log_of(daemon, newest_session(daemon)) if isinstance(event.body, Message)]
    assert message.text == "one\n/quit\n\ntwo"


def test_mistakes_are_told_and_the_chat_goes_on(daemon: LiveDaemon, tmp_path: Path) -> None:
    mistakes = {
        "/retri": "do you mean /retry?",
        "/edit": "That needs a number: /edit N [TEXT]",
        "/retry": "Nothing was said yet.",
        "/switch 1000000": "unknown session 1000000",
        "/image /no/such.png": "cannot read /no/such.png",
        "/tools /no/such.json": "Cannot read /no/such.json",
        "/answer x": "Nothing was said yet.",
    }
    with chatting(daemon, tmp_path) as terminal:
        for line, told in mistakes.items():
            before = terminal.output.count(told)
            terminal.type(f"{line}\r")
            terminal.wait_for(told, count=before + 1)
        terminal.type("hi\r")
        terminal.wait_for("Hello there.")
        terminal.type("\x04")
        assert terminal.wait_end() == 0


def test_history_is_remembered_unless_told_not_to(daemon: LiveDaemon, tmp_path: Path) -> None:
    remembered = tmp_path / ".superfluid" / "chat_history"
    with chatting(daemon, tmp_path, "--no-history") as terminal:
        terminal.type("hi\r")
        terminal.wait_for("Hello there.")
        terminal.type("\x04")
        terminal.wait_end()
    assert not remembered.exists()
    with chatting(daemon, tmp_path) as terminal:
        terminal.type("hi\r")
        terminal.wait_for("Hello there.")
        terminal.type("\x04")
        terminal.wait_end()
    assert remembered.read_text() == '"hi"\n'


def test_session_that_answers_somebody_else_is_watched_and_then_answers_us(daemon: LiveDaemon, tmp_path: Path) -> None:
    with daemon.client() as other:
        session = other.create()
        other.append(session, "a long one")
        with chatting(daemon, tmp_path, "--session", str(session)) as terminal:
            terminal.wait_for("2 › ")
            reply = other.stream(session, 2000)
            next(reply)
            terminal.type("hi\r")
            terminal.wait_for("This session is answering somebody else")
            terminal.wait_for("word149")
            terminal.wait_for("Hello there.")
            list(reply)
            terminal.wait_for("3 › ")
            terminal.type("\x04")
            assert terminal.wait_end() == 0


def is_worker(pid: int) -> bool:
    """False for one that is about to become one: the daemon waits for that."""
    return b"superfluid.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_model_that_is_loading_is_waited_for(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"load_seconds": 1.5, "replies": [{"text": "At last."}]}))
    with LiveDaemon(tmp_path, script) as daemon:
        daemon.kill()
        daemon.launch()
        # Held while it loads, until the chat has said so, however slow the chat is.
        while (loading := daemon.worker_pid()) is None or not is_worker(loading):
            time.sleep(0.02)
        os.kill(loading, signal.SIGSTOP)
        while not daemon.socket_answers():
            time.sleep(0.02)
        with chatting(daemon, tmp_path) as terminal:
            terminal.type("hi\r")
            terminal.wait_for("the model is loading")
            os.kill(loading, signal.SIGCONT)
            terminal.wait_for("At last.")
            terminal.wait_for("2 › ")
            terminal.type("\x04")
            assert terminal.wait_end() == 0


def test_without_a_server_it_asks_before_it_starts_one(tmp_path: Path) -> None:
    command = [*COMMAND, "chat", "--socket", "/nowhere/absent.sock", "--model", "m.gguf"]
    with PseudoTerminal(command, clean_environment(tmp_path) | {"NO_COLOR": "1"}) as terminal:
        terminal.wait_for("No server answers at /nowhere/absent.sock.")
        terminal.wait_for("Start one in the background, with m.gguf? [Y/n]")
        terminal.type("n\r")
        assert terminal.wait_end() == 1
        assert "`superfluid serve m.gguf --socket /nowhere/absent.sock` starts one" in terminal.output


def test_server_it_started_that_fails_is_told_with_the_reason(tmp_path: Path) -> None:
    command = [*COMMAND, "chat", "--model", str(tmp_path / "absent.gguf")]
    with PseudoTerminal(command, clean_environment(tmp_path) | {"NO_COLOR": "1"}, columns=300) as terminal:
        terminal.wait_for("? [Y/n]")
        terminal.type("\r")
        assert terminal.wait_end() == 1
        assert f"the server did not start: {tmp_path / 'absent.gguf'} does not exist" in terminal.output


@pytest.mark.slow
def test_server_that_dies_in_a_reply_and_returns_is_gone_on_with(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    words = " ".join(f"word{number}" for number in range(120))
    script.write_text(json.dumps({"step_seconds": 0.005, "replies": [{"text": words}]}))
    with LiveDaemon(tmp_path, script) as daemon, chatting(daemon, tmp_path) as terminal:
        terminal.type("hi\r")
        terminal.wait_for("word20 ")
        daemon.kill()
        terminal.wait_for("the server went away")
        daemon.start()
        terminal.wait_for("the reply went on where it was")
        terminal.wait_for("2 › ")
        session = newest_session(daemon)
        text = "".join(event.body.text for event in log_of(daemon, session) if isinstance(event.body, Generated))
        assert text == words
        terminal.type("\x04")
        assert terminal.wait_end() == 0
