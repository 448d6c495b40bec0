"""The records of Ollama's API, streamed one a line or whole: spliced from bytes that are encoded once. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from superfluid.domain.reply import Channel, ReplyEvent, ReplyFinished, TextDelta, TokenLogprob, ToolCallFinished
from superfluid.domain.request import GenerationRequest
from superfluid.errors import MalformedCallError, SuperfluidError
from superfluid.http.collect import CollectedReply, Ending, Phases, ReplyProgress
from superfluid.http.dialect import Answer, Framing, Opening, StreamWriter
from superfluid.http.errors import ollama_error_body
from superfluid.http.json_codec import encode
from superfluid.http.openai_frames import guess_extras
from superfluid.http.openai_infill import infill_extras
from superfluid.http.openai_logprobs import chat_logprob

# A blank before a record is no part of it to a JSON parser, and an empty line would be one too many for clients.
NDJSON: Final = Framing(content_type=b"application/x-ndjson", keepalive=b" ")
_NANOSECONDS: Final = 1_000_000_000
_PART: Final = b',"done":false}\n'
_calls_decoder = msgspec.json.Decoder(dict[str, Any])


class RecordForm(Struct, frozen=True):
    """Where a record holds its text, and which channels it shows as thinking."""

    before_text: bytes
    behind: bytes
    thinking: frozenset[Channel]


MESSAGE: Final = RecordForm(b',"message":{"role":"assistant","content":', b"}", frozenset({Channel.REASONING}))
RESPONSE: Final = RecordForm(b',"response":', b"", frozenset({Channel.REASONING}))
PLAIN_RESPONSE: Final = RecordForm(b',"response":', b"", frozenset())
"""All the model wrote is the response."""


class OllamaExchange(Struct, frozen=True, kw_only=True):
    """``Exchange`` of both generating routes. ``route`` is that of the OpenAI dialect that does the same: logs name
    the kind of work."""

    model: str
    requests: tuple[GenerationRequest, ...]
    is_stream: bool
    form: RecordForm
    route: str
    is_infill: bool = False

    @property
    def framing(self) -> Framing:
        return NDJSON

    @property
    def has_logprobs(self) -> bool:
        return self.requests[0].logprobs is not None

    def stream_writer(self, opening: Opening, progress: ReplyProgress) -> StreamWriter:
        return RecordStreamWriter(self, opening, progress)

    def answer(self, opening: Opening, replies: Sequence[CollectedReply]) -> Answer:
        records = RecordWriter(self.form, self.model, opening)
        if not replies:
            return Answer(records.record("", {"done": True, "done_reason": "load"}))
        reply = replies[0]
        finished = reply.finished
        thinking = reply.text(self.form.thinking)
        text = "" if finished.is_expired else reply.text(frozenset(Channel) - self.form.thinking)
        members = self.closing_members(opening, finished, reply.ending, reply.phases)
        if self.has_logprobs:
            members["logprobs"] = logprob_entries(reply.logprobs)
        body = records.record(text, members, thinking=thinking, calls=called_functions(reply.calls))
        headers = ((b"x-superfluid-warm", b"%d" % finished.warm_tokens),) if self.form.thinking else ()
        return Answer(body, headers=headers)

    def closing_members(
        self, opening: Opening, finished: ReplyFinished, ending: Ending, phases: Phases
    ) -> dict[str, Any]:
        """What the last record tells of the whole reply; durations in nanoseconds."""
        accepting, prompt, decode = [round(seconds * _NANOSECONDS) for seconds in msgspec.structs.astuple(phases)]
        members: dict[str, Any] = {
            "done": True,
            "done_reason": "length" if ending == "length" else "stop",
            "total_duration": accepting + prompt + decode,
            "load_duration": accepting,
            "prompt_eval_count": finished.prompt_tokens,
            "prompt_eval_cached_count": min(finished.warm_tokens, finished.prompt_tokens),
            "prompt_eval_duration": prompt,
            "eval_count": finished.completion_tokens,
            "eval_duration": decode,
        }
        extras = guess_extras([finished])
        if self.is_infill:
            extras |= infill_extras(opening, finished)
        if extras:
            members["superfluid"] = extras
        return members


class RecordWriter:
    """Writes the records of one reply, all of which begin alike."""

    def __init__(self, form: RecordForm, model: str, opening: Opening) -> None:
        members = {"model": model, "created_at": timestamp(opening.created_unix)}
        self._head = encode(members)[:-1] + form.before_text
        self._thinking_head = self._head + b'"","thinking":'
        self._behind = form.behind

    def text(self, text: str) -> bytes:
        """A record that has more to come, up to where its own members begin."""
        return self._head + encode(text) + self._behind

    def thinking(self, text: str) -> bytes:
        return self._thinking_head + encode(text) + self._behind

    def record(
        self, text: str, members: dict[str, Any], *, thinking: str = "", calls: Sequence[dict[str, Any]] = ()
    ) -> bytes:
        """A whole record: what the model wrote, then ``members``."""
        inner = self._head + encode(text)
        if thinking:
            inner += b',"thinking":' + encode(thinking)
        if calls:
            inner += b',"tool_calls":' + encode(calls)
        return inner + self._behind + b"," + encode(members)[1:]


class RecordStreamWriter:
    """``StreamWriter`` of both generating routes: records with text, one with the calls, and a last one."""

    def __init__(self, exchange: OllamaExchange, opening: Opening, progress: ReplyProgress) -> None:
        self._exchange = exchange
        self._opening = opening
        self._progress = progress
        self._records = RecordWriter(exchange.form, exchange.model, opening)
        self._thinking = exchange.form.thinking
        self._has_logprobs = exchange.has_logprobs
        self._calls: list[ToolCallFinished] = []
        self._unsent: list[bytes] = []
        """What a batch held before something in it could not be told of."""

    def begin(self) -> bytes:
        return b""

    def feed(self, events: Sequence[ReplyEvent]) -> bytes:
        for event in events:
            if isinstance(event, TextDelta):
                self._unsent.append(self._text(event))
            elif isinstance(event, ToolCallFinished):
                self._calls.append(event)
            elif isinstance(event, ReplyFinished):
                self._unsent.append(self._end(event))
        return self._take_unsent()

    def fail(self, error: SuperfluidError) -> bytes:
        return self._take_unsent() + ollama_error_body(error) + b"\n"

    def _take_unsent(self) -> bytes:
        frames = b"".join(self._unsent)
        self._unsent.clear()
        return frames

    def _text(self, event: TextDelta) -> bytes:
        write = self._records.thinking if event.channel in self._thinking else self._records.text
        if self._has_logprobs:
            return write(event.text) + b',"logprobs":' + encode(logprob_entries(event.logprobs)) + _PART
        return write(event.text) + _PART

    def _end(self, event: ReplyFinished) -> bytes:
        calls = called_functions(self._calls)
        frames = self._records.record("", {"done": False}, calls=calls) + b"\n" if calls else b""
        progress = self._progress
        closing = self._exchange.closing_members(self._opening, event, progress.ending, progress.phases)
        return frames + self._records.record("", closing) + b"\n"


def timestamp(unix: int) -> str:
    """As Ollama writes times."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def called_functions(calls: Sequence[ToolCallFinished]) -> list[dict[str, Any]]:
    """The calls, their arguments as objects. Raises MalformedCallError for one whose arguments are none."""
    return [
        {"id": call.call_id, "function": {"index": call.index, "name": call.name, "arguments": _arguments(call)}}
        for call in calls
    ]


def _arguments(call: ToolCallFinished) -> dict[str, Any]:
    if call.is_valid:
        try:
            return _calls_decoder.decode(call.arguments)
        except (msgspec.DecodeError, RecursionError):
            # Python's own parser, by which it was found valid, takes more than JSON has (NaN, half characters).
            pass
    raise MalformedCallError(
        f"the model's call of {call.name} has arguments that are no JSON object; num_predict may have cut it off"
    )


def logprob_entries(entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """One object per token, as OpenAI's chat has them."""
    return [chat_logprob(entry) for entry in entries]
