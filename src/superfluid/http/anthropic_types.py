"""Wire types of Anthropic's requests: what is read, and of which JSON type. Pure.

Anything else in a body is ignored. ``null`` and absent mean the same. Fields of ``Any`` depend on their neighbours and
are checked where they are translated.
"""

from typing import Any

from msgspec import Struct


class ContentBlock(Struct, frozen=True, kw_only=True):
    """A part of a message. Which fields count depends on ``type``."""

    type: str
    text: Any = None
    thinking: Any = None
    source: Any = None
    id: Any = None
    name: Any = None
    input: Any = None
    tool_use_id: Any = None
    content: Any = None
    cache_control: Any = None


class InputMessage(Struct, frozen=True):
    role: str
    content: str | list[ContentBlock]


class Tool(Struct, frozen=True, kw_only=True):
    """A tool that the client runs. ``type`` is set for Anthropic's own ones."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    cache_control: Any = None


class ToolChoice(Struct, frozen=True):
    type: str


class Thinking(Struct, frozen=True):
    """``budget_tokens`` is checked for its type and has no effect."""

    type: str
    budget_tokens: int | None = None


class OutputConfig(Struct, frozen=True):
    effort: str | None = None
    format: Any = None


class MessagesBody(Struct, frozen=True, kw_only=True):
    """``POST /v1/messages``, and of ``/v1/messages/count_tokens`` what makes the prompt."""

    model: str | None = None
    messages: list[InputMessage] | None = None
    max_tokens: int | None = None
    system: str | list[ContentBlock] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Any = None
    cache_control: Any = None
    container: Any = None
    mcp_servers: Any = None
