"""One session of the daemon, by its id."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superfluid_client.errors import ModelLoading, NothingInFlight, RequestRefused, SessionBusy
from superfluid_client.folding import fold_messages
from superfluid_client.parameters import QosClass, RebaseEdit, Replace, Role, Sampling
from superfluid_client.reading import reading
from superfluid_client.records import Event, Inspection, Message, Reply, ToolCall
from superfluid_client.stream import ReplyStream

if TYPE_CHECKING:
    from superfluid_client.client import Client

Tool = Mapping[str, Any] | str
DEFAULT_MAX_TOKENS = 512

_SETTLING_SECONDS = 5.0
_SETTLING_PAUSE_SECONDS = 0.02
_LOADING_PAUSE_SECONDS = 0.1


class Session:
    """A durable conversation. The object holds nothing but the id and a few memories: any number of them, in any number
    of programs, may stand for the same session, and it outlives them and the daemon.

    Every method but ``stream`` waits for the daemon's answer; what it answered is on the disk. All raise
    RequestRefused, ConnectionLost and the other leaves of ``superfluid_client.errors``.
    """

    def __init__(self, client: "Client", session_id: int, sampling: Sampling | None = None) -> None:
        """Use ``Client.session`` and ``Client.get``. ``sampling`` is asked for when needed if it is not known."""
        self.client = client
        self.id = session_id
        self.last_reply: Reply | None = None
        self._sampling = sampling
        self._known_events = 0
        self._settling_until = 0.0

    def __repr__(self) -> str:
        return f"<Session {self.id} of {self.client.url}>"

    @property
    def sampling(self) -> Sampling:
        """How its tokens are drawn; a session keeps that for life, and forks may differ."""
        sampling = self._sampling
        if sampling is None:
            sampling = self._sampling = self.inspect().sampling
        return sampling

    # ---- appending

    def user(self, text: str) -> Event:
        """Appends a user's message."""
        return self._append_message(Role.USER, text)

    def system(self, text: str) -> Event:
        """Appends a system message. To declare tools as well, use ``declare``."""
        return self._append_message(Role.SYSTEM, text)

    def assistant(self, text: str) -> Event:
        """Appends an assistant's message that the model did not generate."""
        return self._append_message(Role.ASSISTANT, text)

    def declare(self, system: str | None = None, tools: Sequence[Tool] = ()) -> Event:
        """Opens the session with a system turn that declares ``tools``, each a dict or its JSON text.

        A tool is an OpenAI function tool, a bare function, or an Anthropic tool. Refused once the session has any text.
        """
        texts = [tool if isinstance(tool, str) else json.dumps(tool, ensure_ascii=False) for tool in tools]
        return self._commit("AppendSystem", {"text": system, "tools": texts})

    def append(self, text: str | None = None, span: Sequence[int] = ()) -> Event:
        """Appends text, or token ids, as they are, outside of any turn."""
        return self._commit("Append", {"text": text, "span": list(span)})

    def tool_result(self, call: ToolCall | int, content: str) -> Event:
        """Answers a call the model made."""
        call_id = call.id if isinstance(call, ToolCall) else call
        return self._commit("AppendToolResult", {"call_id": call_id, "content": content})

    # ---- generating

    def stream(self, max_tokens: int = DEFAULT_MAX_TOKENS, *, provisional: bool = False) -> ReplyStream:
        """Generates the next turn, or goes on with one that was cut, and yields it piece by piece.

        What is yielded is committed. With ``provisional`` it comes a little earlier, before it is: a crash of the
        daemon at that moment may have the last words drawn anew. The reply's end leaves ``last_reply``.
        """
        body = {"session": self.id, "max_tokens": max_tokens, "provisional": provisional}
        return ReplyStream(
            lambda: self.client.open_stream(body),
            cancel=self.cancel,
            wait_out=self._patience(),
            on_end=self._note_reply,
        )

    def generate(self, max_tokens: int = DEFAULT_MAX_TOKENS) -> Reply:
        """As ``stream``, all at once."""
        with self.stream(max_tokens) as stream:
            for _ in stream:
                pass
            return stream.reply

    def cancel(self) -> bool:
        """Ends the generation in flight, whoever started it; false if there is none."""
        try:
            self._ask("Cancel", {}, "Cancelling")
        except NothingInFlight:
            return False
        return True

    # ---- branching

    def fork(
        self, at: int | Event | None = None, *, seed: int | None = None, sampling: Sampling | None = None
    ) -> "Session":
        """A new session with the events before ``at`` (default: all). It shares them, and starts warm on them.

        It draws as this session does, but with ``seed`` if given, or altogether as ``sampling`` says.
        """
        event_id = self.event_count() if at is None else _event_id(at)
        return self._branch("Fork", {"at_event": event_id}, seed, sampling)

    def fork_after(
        self, event: int | Event | Message, *, seed: int | None = None, sampling: Sampling | None = None
    ) -> "Session":
        """A fork that has ``event`` as its last one."""
        last = event.last_event_id if isinstance(event, Message) else _event_id(event)
        return self.fork(last + 1, seed=seed, sampling=sampling)

    def edit(
        self,
        event: int | Event | Message,
        text: str,
        *,
        keep_rest: bool = False,
        seed: int | None = None,
        sampling: Sampling | None = None,
    ) -> "Session":
        """A new session with a message replaced. What followed it is dropped, or kept with ``keep_rest``.

        Raises ValueError if ``event`` is no message of this session.
        """
        event_id = _event_id(event)
        events = self.events(event_id)
        if not events or events[0].kind != "Message":
            raise ValueError(f"event {event_id} of session {self.id} is no message")
        end = event_id + 1 if keep_rest else events[-1].id + 1
        replacement = Replace(event_id, end, text, Role(events[0].fields["role"]))
        return self.rebase([replacement], seed=seed, sampling=sampling)

    def rebase(
        self,
        edits: Sequence[RebaseEdit | Mapping[str, Any]],
        *,
        seed: int | None = None,
        sampling: Sampling | None = None,
    ) -> "Session":
        """A new session with ranges of events dropped, or replaced by a message. The ranges are in order, do not
        overlap and spare event 0. An edit may also be given in its JSON form."""
        plain = [edit if isinstance(edit, Mapping) else edit.to_json() for edit in edits]
        return self._branch("Rebase", {"edits": plain}, seed, sampling)

    def trim(self, to_event: int | Event) -> "Session":
        """A new session with the events before ``to_event``."""
        return self._child(self._ask("Trim", {"to_event": _event_id(to_event)}, "Created"), self._sampling)

    # ---- reading

    def events(self, cursor: int = 0) -> list[Event]:
        """The log from event ``cursor`` on."""
        payload = self._ask("Read", {"cursor": cursor}, "Events")
        with reading("Events"):
            events = list(map(Event.from_json, payload["events"]))
        self._note_events(events)
        return events

    def event_count(self) -> int:
        """How many events the log has, inherited ones included; the next one gets this number."""
        # Events only ever come to the end, so the tail behind the last one known says it all.
        self.events(self._known_events)
        return self._known_events

    def messages(self) -> list[Message]:
        """The log folded into a conversation."""
        events = self.events()
        with reading("Events"):
            return fold_messages(events)

    def open_tool_calls(self) -> list[ToolCall]:
        """Calls of the model that nobody has answered yet."""
        payload = self._ask("OpenToolCalls", {}, "ToolCalls")
        with reading("ToolCalls"):
            return [ToolCall(*call) for call in payload["calls"]]

    def inspect(self) -> Inspection:
        """Everything about the session in one piece."""
        payload = self._ask("Inspect", {}, "Inspection")
        with reading("Inspection"):
            return Inspection.from_json(payload["inspection"])

    # ---- scheduling

    def pin(self, ttl_s: float) -> int:
        """Asks to hold the session's prefix in the cache for ``ttl_s`` seconds, 0 to let it go; until when, as Unix
        time in ms."""
        payload = self._ask("Pin", {"ttl_ms": round(ttl_s * 1000)}, "Pinned")
        with reading("Pinned"):
            return int(payload["deadline_unix_ms"])

    def set_qos(self, qos_class: QosClass | int, *, batch_invariant: bool = False) -> Event:
        """Sets the scheduling class (0 to 3) of the generations to come."""
        return self._commit("SetQos", {"class": int(qos_class), "batch_invariant": batch_invariant})

    # ----

    def _ask(self, verb: str, fields: Mapping[str, Any], answer: str) -> Any:
        wait_out = self._patience()
        while True:
            try:
                return self.client.ask(verb, {"session": self.id, **fields}, answer)
            except RequestRefused as refused:
                wait_out(refused)

    def _patience(self) -> Callable[[RequestRefused], None]:
        """Waits a moment if a refusal will pass by itself, else raises it. A refused request had no effect."""
        deadline = time.monotonic() + self.client.timeout_seconds

        def wait_out(refused: RequestRefused) -> None:
            now = time.monotonic()
            # A stream of ours was hung up on, and the daemon is about to notice.
            is_settling = isinstance(refused, SessionBusy) and now < self._settling_until
            is_loading = isinstance(refused, ModelLoading) and now < deadline
            if not (is_settling or is_loading):
                raise refused
            time.sleep(_SETTLING_PAUSE_SECONDS if is_settling else _LOADING_PAUSE_SECONDS)

        return wait_out

    def _commit(self, verb: str, fields: Mapping[str, Any]) -> Event:
        payload = self._ask(verb, fields, "Committed")
        with reading("Committed"):
            event = Event.from_json(payload["event"])
        self._note_events([event])
        return event

    def _append_message(self, role: Role, text: str) -> Event:
        return self._commit("AppendMessage", {"role": int(role), "text": text})

    def _branch(self, verb: str, fields: Mapping[str, Any], seed: int | None, sampling: Sampling | None) -> "Session":
        if seed is not None:
            sampling = replace(sampling or self.sampling, seed=seed)
        params = None if sampling is None else sampling.to_json()
        payload = self._ask(verb, {**fields, "params": params}, "Created")
        return self._child(payload, sampling or self._sampling)

    def _child(self, payload: Any, sampling: Sampling | None) -> "Session":
        with reading("Created"):
            return Session(self.client, payload["session"], sampling)

    def _note_reply(self, reply: Reply | None, is_settled: bool) -> None:
        if reply is not None:
            self.last_reply = reply
            self._note_events(reply.events)
        self._settling_until = 0.0 if is_settled else time.monotonic() + _SETTLING_SECONDS

    def _note_events(self, events: Sequence[Event]) -> None:
        if events:
            self._known_events = max(self._known_events, events[-1].id + 1)


def _event_id(event: int | Event | Message) -> int:
    return event if isinstance(event, int) else event.event_id
