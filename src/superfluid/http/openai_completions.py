"""The text completion dialect of OpenAI: ``POST /v1/completions``, both ways. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from superfluid.domain.reply import Channel, ReplyEvent, ReplyFinished, TextDelta
from superfluid.domain.request import GenerationRequest, InfillPrompt, TextPrompt, TokenPrompt
from superfluid.errors import (
    InvalidRequestError,
    SuperfluidError,
    UnsupportedParameterError,
)
from superfluid.http.collect import CollectedReply, Ending, ReplyProgress
from superfluid.http.dialect import Answer, Framing, Opening, StreamWriter
from superfluid.http.errors import openai_error_body, openai_error_frame
from superfluid.http.json_codec import decode_body, encode
from superfluid.http.openai_fields import MAX_TOP_LOGPROBS, sampling_overrides
from superfluid.http.openai_frames import ChunkSplicer, guess_extras, identity, usage
from superfluid.http.openai_infill import infill_extras, infill_prompt
from superfluid.http.openai_logprobs import LegacyLogprobs
from superfluid.http.openai_types import CompletionBody
from superfluid.http.request_fields import check_range, required_model, stop_strings, token_limit
from superfluid.http.sse import EVENT_STREAM

_INT32_MAX = 2**31 - 1
_body_decoder = msgspec.json.Decoder(CompletionBody)
_EVERYTHING = frozenset(Channel)


class CompletionsDialect:
    """``Dialect`` of text completions. The prompt reaches the model with no chat frame; the reply is all it writes."""

    def parse(self, body: bytes) -> "CompletionExchange":
        """Raises CallerError."""
        fields = decode_body(_body_decoder, body)
        model = required_model(fields.model)
        prompt = _plain_prompt(fields) if fields.suffix is None else infill_prompt(fields, fields.suffix)
        request = GenerationRequest(
            prompt=prompt,
            sampling=sampling_overrides(fields),
            max_tokens=token_limit("max_tokens", fields.max_tokens),
            stop=stop_strings(fields.stop),
            ignore_eos=bool(fields.ignore_eos),
            logprobs=fields.logprobs,
            parse_tools=False,
        )
        return CompletionExchange(
            model=model,
            requests=(request,),
            is_stream=bool(fields.stream),
            is_infill=fields.suffix is not None,
            echo=_echo(prompt) if fields.echo else "",
            has_running_usage=bool(fields.stream_options and fields.stream_options.continuous_usage_stats),
        )

    def error_body(self, error: SuperfluidError) -> bytes:
        # Below, prompts have no field names but those of conversations.
        return openai_error_body(error, param="prompt" if error.param == "messages" else error.param)


class CompletionExchange(Struct, frozen=True, kw_only=True):
    """``Exchange`` of text completions. ``echo`` is what precedes the reply in the answer."""

    model: str
    requests: tuple[GenerationRequest, ...]
    is_stream: bool
    is_infill: bool = False
    echo: str = ""
    has_running_usage: bool = False

    @property
    def route(self) -> str:
        return "POST /v1/completions"

    @property
    def framing(self) -> Framing:
        return EVENT_STREAM

    @property
    def has_logprobs(self) -> bool:
        return self.requests[0].logprobs is not None

    def stream_writer(self, opening: Opening, progress: ReplyProgress) -> StreamWriter:
        return CompletionStreamWriter(self, opening, progress)

    def answer(self, opening: Opening, replies: Sequence[CollectedReply]) -> Answer:
        reply = replies[0]
        choice = {
            "index": 0,
            "text": "" if reply.finished.is_expired else self.echo + reply.text(_EVERYTHING),
            "logprobs": self.legacy_logprobs().write(reply.logprobs) if self.has_logprobs else None,
            "finish_reason": text_ending(reply.ending),
        }
        members = identity("text_completion", "cmpl", opening)
        members["choices"] = [choice]
        members["usage"] = usage(reply.finished, reply.finished.completion_tokens)
        extras = guess_extras([reply.finished])
        if self.is_infill:
            extras |= infill_extras(opening, reply.finished)
        if extras:
            members["superfluid"] = extras
        return Answer(encode(members))

    def legacy_logprobs(self) -> LegacyLogprobs:
        return LegacyLogprobs(len(self.echo.encode()))


class CompletionStreamWriter:
    """``StreamWriter`` of text completions: text chunks, a terminal chunk with usage, the end mark."""

    def __init__(self, exchange: CompletionExchange, opening: Opening, progress: ReplyProgress) -> None:
        self._echo = exchange.echo
        self._progress = progress
        self._opening = opening if exchange.is_infill else None
        self._logprobs = exchange.legacy_logprobs() if exchange.has_logprobs else None
        self._splicer = ChunkSplicer(
            identity("text_completion", "cmpl", opening), opening.prompt_tokens if exchange.has_running_usage else None
        )
        self._text_head = self._splicer.head(b'"text":')

    def begin(self) -> bytes:
        if not self._echo:
            return b""
        return self._text_head + encode(self._echo) + b',"logprobs":null' + self._splicer.end(0)

    def feed(self, events: Sequence[ReplyEvent]) -> bytes:
        frames: list[bytes] = []
        for event in events:
            if isinstance(event, TextDelta):
                frames.append(self._text(event))
            elif isinstance(event, ReplyFinished):
                head = b'"text":"","logprobs":null'
                extras = None if self._opening is None else infill_extras(self._opening, event)
                frames.append(self._splicer.last(head, text_ending(self._progress.ending), event, extras))
        return b"".join(frames)

    def fail(self, error: SuperfluidError) -> bytes:
        return openai_error_frame(error)

    def _text(self, event: TextDelta) -> bytes:
        logprobs = b"null" if self._logprobs is None else encode(self._logprobs.write(event.logprobs))
        text = self._text_head + encode(event.text)
        return text + b',"logprobs":' + logprobs + self._splicer.end(event.tokens_generated)


def text_ending(ending: Ending) -> str:
    """Text completions know no calls."""
    return "stop" if ending == "tool_calls" else ending


def _plain_prompt(fields: CompletionBody) -> TextPrompt | TokenPrompt:
    if fields.fim_mode is not None:
        raise UnsupportedParameterError("fim_mode goes with a suffix", param="fim_mode")
    check_range("logprobs", fields.logprobs, 0, MAX_TOP_LOGPROBS)
    return _prompt(fields.prompt)


def _prompt(prompt: str | list[Any] | None) -> TextPrompt | TokenPrompt:
    """One string or one list of token ids, by itself or as the only entry of a list."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if not prompt:
        raise InvalidRequestError("prompt must be a non-empty string", param="prompt")
    if isinstance(prompt, str):
        return TextPrompt(text=prompt)
    if all(type(token) is int and 0 <= token <= _INT32_MAX for token in prompt):
        return TokenPrompt(tokens=tuple(prompt))
    raise InvalidRequestError("prompt must be one string or one list of token ids", param="prompt")


def _echo(prompt: TextPrompt | TokenPrompt | InfillPrompt) -> str:
    if not isinstance(prompt, TextPrompt):
        raise UnsupportedParameterError("echo goes with a prompt that is text", param="echo")
    return prompt.text
