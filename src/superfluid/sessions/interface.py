"""The use cases as front ends see them: find a model, start a generation, read its reply. Implemented by
``sessions/service.py``; the front ends' tests use a scripted one."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from superfluid.domain.adapter import AdapterFacts
from superfluid.domain.job import PrefixPin
from superfluid.domain.model import ModelFacts
from superfluid.domain.reply import ReplyEvent
from superfluid.domain.request import ChatPrompt, GenerationRequest, SamplingOverrides


class Reply(Protocol):
    """One running generation.

    Iterating yields non-empty batches of events as they become available; the last one ends with ``ReplyFinished``.
    A failure raises a SuperfluidError out of the iteration. Dropping the iterator does not stop the generation: call
    ``cancel`` (in a ``finally``), which is without effect once it has ended.
    """

    @property
    def reply_id(self) -> int:
        """Unique and rising within the daemon."""
        ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def pins(self) -> Sequence[PrefixPin]:
        """The beginnings of the prompt that are to stay cached, the shortest first."""
        ...

    def __aiter__(self) -> AsyncIterator[list[ReplyEvent]]: ...

    def cancel(self) -> None: ...


class ServedModel(Protocol):
    """A model the server knows."""

    @property
    def model_id(self) -> str: ...

    @property
    def created_unix(self) -> int: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def facts(self) -> ModelFacts:
        """Raises ModelLoadingError until the model is loaded."""
        ...

    @property
    def sampling_defaults(self) -> SamplingOverrides:
        """The operator's flags over the model's own defaults."""
        ...

    @property
    def default_max_tokens(self) -> int | None:
        """What bounds a reply whose request does not; ``None`` is what the window leaves."""
        ...

    @property
    def template_text(self) -> str | None:
        """The chat template, if the model is loaded and has one."""
        ...

    @property
    def infill_id(self) -> str:
        """The model that fills in the middle for this one: itself, or another."""
        ...

    @property
    def capabilities(self) -> Mapping[str, bool | str]:
        """What the loaded model can do: true, or why it cannot."""
        ...

    async def start(self, request: GenerationRequest) -> Reply:
        """Renders, checks and submits. Everything that is the caller's fault is raised here, before any event; so are
        QueueFullError, ModelLoadingError and ShuttingDownError."""
        ...

    async def tokenize(self, text: str) -> list[int]:
        """Tokens of ``text`` with no chat frame."""
        ...

    async def count_tokens(self, prompt: ChatPrompt) -> int:
        """How many tokens the conversation takes, the header of the reply included. What the window would not hold is
        counted too. Raises what ``start`` raises for a conversation that cannot be rendered."""
        ...


class ServedAdapter(ServedModel, Protocol):
    """A model with a LoRA adapter on top; its id is ``<model>:<adapter>``."""

    @property
    def adapter(self) -> AdapterFacts: ...

    @property
    def base_id(self) -> str:
        """The model without it."""
        ...


class AdapterDirectory(Protocol):
    """The LoRA adapters on top of the served model."""

    def list_adapters(self) -> Sequence[ServedAdapter]:
        """In the order in which they were loaded."""
        ...

    async def load_adapter(self, name: str | None, path: str) -> ServedAdapter:
        """``name`` ``None`` is the file's own, without its ending. Returns when requests can have it.

        Raises AdapterRefusedError, InvalidValueError for a name or path that cannot be, ModelLoadingError.
        """
        ...

    def unload_adapter(self, name: str) -> ServedAdapter:
        """Nobody finds it any more; requests that have it go on. Raises AdapterNotFoundError, ModelLoadingError."""
        ...


class GenerationTiming(Struct, frozen=True):
    """One finished generation for the access log; durations in seconds, measured at delivery to the client.

    ``first_token_seconds`` and ``decode_seconds`` are ``None`` if nothing was delivered or measured. ``decode_tokens``
    are those delivered after the first delivery.
    """

    route: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token_seconds: float | None
    decode_tokens: int
    decode_seconds: float | None
    total_seconds: float
    finish: str


class ModelDirectory(Protocol):
    """The models this server serves."""

    def resolve(self, name: str) -> ServedModel:
        """Raises ModelNotFoundError."""
        ...

    def list_models(self) -> list[ServedModel]:
        """The default first."""
        ...
