"""Wire types of the OpenAI dialect's requests: what is read, and of which JSON type. Pure.

Anything else in a body is ignored. ``null`` and absent mean the same. Ranges and meaning are checked where the types
are translated.
"""

from typing import Any

from msgspec import Struct


class StreamOptions(Struct, frozen=True):
    """The usage is in the last chunk either way."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(Struct, frozen=True, kw_only=True):
    """What both generating routes read."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None


class ContentPart(Struct, frozen=True):
    """``text`` is checked only if the part is one of text: parts of other types may carry anything."""

    type: str
    text: Any = None


class FunctionCall(Struct, frozen=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class AssistantCall(Struct, frozen=True):
    function: FunctionCall
    id: str | None = None


class ChatMessage(Struct, frozen=True):
    role: str
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[AssistantCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class ChatBody(GenerationFields, frozen=True, kw_only=True):
    """``POST /v1/chat/completions``. ``tool_choice`` may be malformed, which is then ``auto``."""

    messages: list[ChatMessage] | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None


class CompletionBody(GenerationFields, frozen=True, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[Any] | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    fim_mode: str | None = None
