"""What the chat does: messages and slash commands, on the session it is on."""

import mimetypes
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import structs

from superfluid.cli.chat.conversation import Conversation, Exchange
from superfluid.cli.chat.declarations import read_tools, tool_names
from superfluid.cli.chat.prompt import Prompt
from superfluid.cli.chat.sampling import fresh_seed
from superfluid.cli.chat.screen import Screen
from superfluid.cli.chat.showing import print_exchanges, print_family, print_history
from superfluid.cli.chat.slash import help_rows, number_of
from superfluid.cli.chat.talk import ReplyEnd, Talk
from superfluid.cli.media import read_media
from superfluid.cli.session.catalog import rows_of
from superfluid.domain.events import Generated, GenParams, Replace, ToolOutcomeCode, TurnRole
from superfluid.domain.reply import Finish
from superfluid.errors import UsageError
from superfluid.native import requests, responses

HISTORY_AT_START = 3
CROWDED_SHARE = 0.8
FULL_SHARE = 1.0


class Actions:
    """``params`` is how branches draw, ``None``: as their parents. ``window_tokens`` gives ``None`` if nobody says."""

    def __init__(
        self,
        talk: Talk,
        screen: Screen,
        prompt: Prompt,
        *,
        params: GenParams | None = None,
        system: str | None = None,
        tools: tuple[str, ...] = (),
        window_tokens: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._talk = talk
        self._screen = screen
        self._prompt = prompt
        self._params = params
        self._system = system
        self._tools = tools
        self._window_tokens = window_tokens
        # The log knows an image by its blob alone.
        self._files: dict[str, str] = {}
        self._table: Mapping[str, Callable[[str], None]] = {
            "help": self._help,
            "retry": self._retry,
            "continue": self._continue,
            "edit": self._edit,
            "trim": self._trim,
            "fork": self._fork,
            "tree": self._tree,
            "switch": self._switch,
            "new": self._new,
            "history": self._history,
            "title": self._title,
            "system": self._set_system,
            "tools": self._show_tools,
            "answer": self._answer,
            "fail": self._fail,
            "image": self._image,
        }

    def run(self, command: str, text: str) -> None:
        """A slash command other than ``quit``. Raises UsageError on arguments that make no sense."""
        self._table[command](text)

    def send(self, text: str) -> None:
        """A message, and the reply to it."""
        self._begin()
        self._show_meanwhile()
        self._append(text)
        self._reply()

    def send_quietly(self, text: str) -> ReplyEnd:
        """As ``send``, with nothing shown but the reply."""
        self._begin()
        self._append(text)
        return self._talk.reply()

    def greet(self, session: int) -> None:
        """Goes to a session, and shows how its conversation ends."""
        conversation = self._talk.open(session)
        title = f" {conversation.state.title}" if conversation.state.title else ""
        self._screen.say(f"Session {session}{title}")
        print_history(self._screen, conversation, HISTORY_AT_START, self._files)
        if conversation.is_cut:
            self._screen.blank()
            self._screen.say("The last reply is not finished; /continue goes on with it.")
        self._say_open_calls()

    # ---- replies

    def _append(self, text: str) -> None:
        message = requests.AppendMessage(self._talk.current.session, TurnRole.USER, text)
        self._talk.ask(message, responses.Committed)
        self._talk.refresh()

    def _begin(self) -> Conversation:
        return self._talk.begin(self._system, self._tools)

    def _reply(self, *, is_cut_shown: bool = True) -> None:
        self._screen.blank()
        end = self._talk.reply(is_cut_shown=is_cut_shown)
        notes = [*self._ending_notes(end), *self._crowded_notes()]
        if notes:
            self._screen.blank()
        for note in notes:
            self._screen.say(note, "yellow")
        self._say_open_calls()

    def _ending_notes(self, end: ReplyEnd) -> Iterator[str]:
        if end.was_resumed:
            yield "The server went away meanwhile; the reply went on where it was."
        match end.finish:
            case Finish.END_OF_TURN | Finish.GRAMMAR:
                return
            case Finish.CANCELLED:
                yield "Stopped. /continue goes on with the reply, /retry begins another."
            case Finish.LENGTH | Finish.NONE:
                is_full = self._filled_share() >= FULL_SHARE
                full = "The context is full: /trim goes back, /new begins afresh."
                yield full if is_full else "Cut at the limit: /continue goes on."
            case _:
                yield "The reply failed. /continue tries to go on with it."

    def _crowded_notes(self) -> Iterator[str]:
        share = self._filled_share()
        if CROWDED_SHARE < share < FULL_SHARE:
            yield f"The context is {int(100 * share)}% full."

    def _filled_share(self) -> float:
        """Of the context; 0 if its size is not known."""
        window = self._window_tokens()
        return 0.0 if window is None else (len(self._talk.current.state.tokens) + 1) / window

    def _say_open_calls(self) -> None:
        """After a reply that shows the calls themselves."""
        calls = self._talk.current.open_calls
        if calls:
            which = " ID" if len(calls) > 1 else ""
            ids = ", ".join(str(call.call_id) for call in calls)
            self._screen.blank()
            self._screen.say(
                f"Call {ids} waits: /answer{which} TEXT says what it gave, /fail{which} that it failed.", "yellow"
            )

    def _show_meanwhile(self) -> None:
        """What somebody else added to the session since we looked."""
        conversation = self._talk.current
        known = len(conversation.exchanges)
        self._talk.refresh()
        if len(conversation.exchanges) > known:
            self._screen.say("Meanwhile, in this session:")
            print_exchanges(self._screen, conversation.exchanges[known:], self._files)

    def _continue(self, _: str) -> None:
        conversation = self._existing()
        # A reply that was given up may have gone on without us.
        is_news = any(isinstance(event.body, Generated) for event in self._talk.refresh())
        if conversation.is_cut:
            self._reply(is_cut_shown=not is_news)
        elif is_news:
            print_exchanges(self._screen, conversation.exchanges[-1:], self._files)
        else:
            raise UsageError("There is nothing to go on with: the last reply is finished.")

    def _retry(self, _: str) -> None:
        conversation = self._existing()
        self._talk.refresh()
        if not conversation.exchanges:
            raise UsageError("There is no message to answer anew.")
        last = conversation.exchanges[-1]
        params = structs.replace(self._params or conversation.state.params, seed=fresh_seed())
        self._branch(requests.Fork(conversation.session, last.event_id + 1, params))
        self._reply()

    # ---- branches

    def _branch(self, request: requests.Fork | requests.Rebase | requests.Trim) -> None:
        before = self._talk.current.session
        child = self._talk.ask(request, responses.Created).session
        self._talk.open(child)
        self._screen.say(f"Now on session {child}; session {before} stays as it was.")

    def _edit(self, text: str) -> None:
        which, _, new = text.partition(" ")
        exchange = self._exchange(number_of(which, "/edit N [TEXT]"))
        if not new.strip():
            new = self._prompt.read(f"edit {exchange.number} ", exchange.text)
            if not new.strip():
                raise UsageError("Nothing was changed.")
        conversation = self._talk.current
        edit = Replace(exchange.event_id, conversation.length, TurnRole.USER, new)
        self._branch(requests.Rebase(conversation.session, (edit,), self._params))
        self._reply()

    def _trim(self, text: str) -> None:
        conversation = self._existing()
        exchange = self._exchange(number_of(text, "/trim [N]", len(conversation.exchanges)))
        self._branch(requests.Trim(conversation.session, exchange.event_id))

    def _fork(self, text: str) -> None:
        conversation = self._existing()
        self._talk.refresh()
        place = conversation.length
        if text:
            place = conversation.end_of(self._exchange(number_of(text, "/fork [N]")))
        self._branch(requests.Fork(conversation.session, place, self._params))

    def _exchange(self, number: int) -> Exchange:
        conversation = self._existing()
        found = conversation.exchange(number)
        if found is None:
            count = len(conversation.exchanges)
            there_is = f"the last is {count}" if count else "nothing was said yet"
            raise UsageError(f"There is no message {number}; {there_is}.")
        return found

    def _existing(self) -> Conversation:
        if self._talk.conversation is None:
            raise UsageError("Nothing was said yet.")
        return self._talk.conversation

    # ---- sessions

    def _tree(self, _: str) -> None:
        current = self._existing().session
        listed = self._talk.ask(requests.Sessions(True), responses.SessionList)
        print_family(self._screen, rows_of(listed), current)

    def _switch(self, text: str) -> None:
        self.greet(number_of(text, "/switch ID"))

    def _new(self, _: str) -> None:
        self._talk.conversation = None
        self._screen.say("A new session begins with your next message.")

    def _history(self, text: str) -> None:
        conversation = self._existing()
        self._talk.refresh()
        count = number_of(text, "/history [N]", len(conversation.exchanges))
        print_history(self._screen, conversation, count, self._files)

    def _title(self, text: str) -> None:
        conversation = self._begin()
        self._talk.refresh()
        version = conversation.state.meta_version
        self._talk.ask(requests.SetMeta(conversation.session, version, text, None), responses.Meta)
        self._screen.say(f"Session {conversation.session} is called {text!r}." if text else "The title is gone.")

    def _set_system(self, text: str) -> None:
        if self._talk.conversation is not None and not self._talk.conversation.is_empty:
            raise UsageError("A system message comes first: /new begins a session that can have another.")
        self._system = text or None
        self._screen.say("New sessions begin with this system message." if text else "No system message.")

    # ---- tools and images

    def _show_tools(self, text: str) -> None:
        if not text:
            names = tool_names(self._tools) or "none"
            self._screen.say(f"Declared in sessions begun here: {names}. /tools FILE declares.")
            if self._talk.conversation is not None and (calls := self._talk.conversation.open_calls):
                self._screen.columns((f"call {call.call_id}", f"{call.name} {call.arguments}") for call in calls)
            return
        self._tools = read_tools(Path(text))
        if self._talk.conversation is not None and not self._talk.conversation.is_empty:
            self._screen.say("Tools are declared where a session begins: they count from the next /new on.", "yellow")
        else:
            self._screen.say(f"The model may call: {tool_names(self._tools)}")

    def _answer(self, text: str) -> None:
        call_id, content = self._call_and_rest(text)
        if not content:
            content = self._prompt.read(f"answer {call_id} ")
        self._settle(requests.AppendToolResult(self._existing().session, call_id, content))

    def _fail(self, text: str) -> None:
        call_id, note = self._call_and_rest(text)
        session = self._existing().session
        self._settle(requests.AppendToolOutcome(session, call_id, ToolOutcomeCode.FAILED, note))

    def _call_and_rest(self, text: str) -> tuple[int, str]:
        """The call that is meant, which goes without saying if there is one only, and what follows its id."""
        calls = [call.call_id for call in self._existing().open_calls]
        which, _, rest = text.partition(" ")
        if which.isdecimal() and int(which) in calls:
            return int(which), rest.strip()
        if len(calls) == 1:
            return calls[0], text
        ids = ", ".join(map(str, calls))
        raise UsageError(f"Say which call: {ids}." if calls else "There is no open call.")

    def _settle(self, request: requests.AppendToolResult | requests.AppendToolOutcome) -> None:
        self._talk.ask(request, responses.Committed)
        self._talk.refresh()
        if self._talk.current.open_calls:
            self._say_open_calls()
        elif isinstance(request, requests.AppendToolResult):
            self._reply()
        else:
            self._screen.say("Noted. The model does not see that; tell it what to do instead.")

    def _image(self, text: str) -> None:
        if not text:
            raise UsageError("Say which: /image FILE.")
        path = Path(text)
        content = read_media(path)
        conversation = self._begin()
        mime = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        blob = self._talk.ask(requests.PutMedia(content, mime), responses.Media).hash
        shown = requests.AppendImage(conversation.session, TurnRole.USER, blob, "", "")
        self._talk.ask(shown, responses.Committed)
        self._files[blob] = f"{path.name}, {len(content):,} bytes"
        self._talk.refresh()
        self._screen.say(f"The model sees {path.name}. Write what you want to know about it.")

    def _help(self, _: str) -> None:
        self._screen.columns(help_rows(), "dim")
        self._screen.say("Alt-Enter begins a new line; so does a backslash at the end. Ctrl-C stops a reply.")
