"""Wire types of Ollama's API: what its requests may hold, and of which JSON type. Pure.

``null`` and absent mean the same. A field that Ollama does not have is unknown here too: a misspelt option would
otherwise have no effect, and nobody would know.
"""

from typing import Any

from msgspec import Struct

from superfluid.http.openai_types import AssistantCall


class UnusedOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that have no effect here: how the model is loaded, and ways to draw a token that there are not."""

    num_ctx: int | None = None
    num_keep: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    num_thread: Any = None
    main_gpu: Any = None
    numa: Any = None
    low_vram: Any = None
    f16_kv: Any = None
    logits_all: Any = None
    vocab_only: Any = None
    use_mmap: Any = None
    use_mlock: Any = None
    embedding_only: Any = None
    repeat_last_n: Any = None
    penalize_newline: Any = None
    tfs_z: Any = None
    typical_p: Any = None
    mirostat: Any = None
    mirostat_tau: Any = None
    mirostat_eta: Any = None


class Options(UnusedOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``options``."""

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class GeneratingBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both generating routes read. ``truncate`` and ``shift`` have no effect here."""

    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    keep_alive: float | str | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None
    shift: bool | None = None


class ChatMessage(Struct, frozen=True):
    """``tool_name`` is what a result answers; older clients call it ``name``."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[AssistantCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    name: str | None = None


class ChatBody(GeneratingBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /api/chat``."""

    messages: list[ChatMessage] | None = None
    tools: list[dict[str, Any]] | None = None


class GenerateBody(GeneratingBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /api/generate``."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[Any] | None = None
    raw: bool | None = None
    images: list[Any] | None = None


class ShowBody(Struct, frozen=True):
    """``POST /api/show``. ``name`` is what older clients call the model."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
