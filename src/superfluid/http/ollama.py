"""Ollama's generating routes, ``POST /api/chat`` and ``POST /api/generate``, translated into requests. Pure, but for
a line in the log about options without effect."""

from typing import Final

import msgspec

from superfluid.domain.request import (
    ChatPrompt,
    GenerationRequest,
    InfillPrompt,
    Message,
    Prompt,
    TextPrompt,
)
from superfluid.errors import SuperfluidError, UnsupportedParameterError
from superfluid.http.dialect import Dialect
from superfluid.http.errors import ollama_error_body
from superfluid.http.ollama_fields import (
    UnusedOptionsLog,
    check_keep_alive,
    decode_known,
    logprobs_wanted,
    refuse_format,
    reply_limit,
    sampling_overrides,
    thinking_kwargs,
    unused_options,
)
from superfluid.http.ollama_messages import conversation, declared_tools, refuse_images
from superfluid.http.ollama_records import MESSAGE, PLAIN_RESPONSE, RESPONSE, OllamaExchange, RecordForm
from superfluid.http.ollama_types import ChatBody, GenerateBody, GeneratingBody, Options
from superfluid.http.request_fields import required_model, stop_strings

_CHAT_ROUTE: Final = "POST /v1/chat/completions"
_TEXT_ROUTE: Final = "POST /v1/completions"
_chat_decoder = msgspec.json.Decoder(ChatBody)
_generate_decoder = msgspec.json.Decoder(GenerateBody)
_NO_OPTIONS: Final = Options()


def ollama_dialects() -> dict[str, Dialect]:
    """Both routes, by path. They tell the log together about an option."""
    unused = UnusedOptionsLog()
    return {"/api/chat": OllamaChatDialect(unused), "/api/generate": OllamaGenerateDialect(unused)}


class OllamaChatDialect:
    """``Dialect`` of ``POST /api/chat``."""

    def __init__(self, unused: UnusedOptionsLog) -> None:
        self._unused = unused

    def parse(self, body: bytes) -> OllamaExchange:
        """Raises CallerError."""
        fields = decode_known(_chat_decoder, body)
        tools = declared_tools(fields.tools or [])
        prompt = None
        if fields.messages:
            prompt = ChatPrompt(
                messages=conversation(fields.messages), tools=tools, template_kwargs=thinking_kwargs(fields.think)
            )
        self._unused.note(unused_options(fields.options or _NO_OPTIONS))
        return _exchange(fields, prompt, MESSAGE, parse_tools=bool(tools))

    def error_body(self, error: SuperfluidError) -> bytes:
        return ollama_error_body(error)


class OllamaGenerateDialect:
    """``Dialect`` of ``POST /api/generate``: a chat of one message, a raw prompt, or a gap before a suffix."""

    def __init__(self, unused: UnusedOptionsLog) -> None:
        self._unused = unused

    def parse(self, body: bytes) -> OllamaExchange:
        """Raises CallerError."""
        fields = decode_known(_generate_decoder, body)
        refuse_images(fields.images, "images")
        _refuse_unsupported(fields)
        self._unused.note(unused_options(fields.options or _NO_OPTIONS))
        if fields.suffix:
            _refuse_beside(fields, "a suffix")
            return _exchange(fields, InfillPrompt(prefix=fields.prompt or "", suffix=fields.suffix), PLAIN_RESPONSE)
        if fields.raw:
            _refuse_beside(fields, "raw")
            prompt = TextPrompt(text=fields.prompt, has_markers=True) if fields.prompt else None
            return _exchange(fields, prompt, PLAIN_RESPONSE)
        return _exchange(fields, _single_turn(fields), RESPONSE)

    def error_body(self, error: SuperfluidError) -> bytes:
        return ollama_error_body(error)


def _exchange(
    fields: GeneratingBody, prompt: Prompt | None, form: RecordForm, *, parse_tools: bool = False
) -> OllamaExchange:
    """Without a prompt nothing is generated, and the fields are checked all the same."""
    model = required_model(fields.model)
    check_keep_alive(fields.keep_alive)
    refuse_format(fields.format)
    options = fields.options or _NO_OPTIONS
    request = GenerationRequest(
        prompt=prompt if prompt is not None else TextPrompt(text=""),
        sampling=sampling_overrides(options),
        max_tokens=reply_limit(options),
        stop=stop_strings(options.stop),
        logprobs=logprobs_wanted(fields),
        parse_tools=parse_tools,
    )
    return OllamaExchange(
        model=model,
        requests=() if prompt is None else (request,),
        is_stream=fields.stream is not False,
        form=form,
        route=_CHAT_ROUTE if form.thinking else _TEXT_ROUTE,
        is_infill=isinstance(prompt, InfillPrompt),
    )


def _single_turn(fields: GenerateBody) -> ChatPrompt | None:
    messages: list[Message] = []
    if fields.system:
        messages.append(Message(role="system", content=fields.system))
    if fields.prompt:
        messages.append(Message(role="user", content=fields.prompt))
    kwargs = thinking_kwargs(fields.think)
    return ChatPrompt(messages=tuple(messages), template_kwargs=kwargs) if messages else None


def _refuse_unsupported(fields: GenerateBody) -> None:
    if fields.template:
        raise UnsupportedParameterError(
            "template is the model file's own here; with raw the prompt can hold any frame", param="template"
        )
    if fields.context:
        raise UnsupportedParameterError(
            "context is not given out here, so it cannot come back: /api/chat takes the whole conversation",
            param="context",
        )


def _refuse_beside(fields: GenerateBody, what: str) -> None:
    """Raises UnsupportedParameterError for what only a chat frame has a place for."""
    if fields.system:
        raise UnsupportedParameterError(f"system does not go with {what}", param="system")
    if fields.think:
        raise UnsupportedParameterError(f"think does not go with {what}", param="think")
    if what != "raw" and fields.logprobs:
        raise UnsupportedParameterError(f"logprobs does not go with {what}", param="logprobs")
