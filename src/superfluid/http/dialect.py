"""What a dialect is: one route's language, translated both ways without I/O. Runs in the daemon.

A new dialect is two modules (wire types, translation), a row in the route table of ``http/app.py`` and a column or body
in ``http/errors.py``. ``http/generation.py`` drives all of them alike.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from superfluid.domain.job import PrefixPin
from superfluid.domain.reply import ReplyEvent
from superfluid.domain.request import GenerationRequest
from superfluid.errors import SuperfluidError
from superfluid.http.collect import CollectedReply, ReplyProgress


class Opening(Struct, frozen=True):
    """A generation that started at ``created_unix``, as its answer will name it. ``reply_id`` is the first reply's.

    ``served_by`` is the model that answers, where that is not the one that was asked. ``pins`` are the beginnings of
    the prompt that are to stay cached.
    """

    reply_id: int
    model_id: str
    created_unix: int
    prompt_tokens: int
    served_by: str | None = None
    pins: tuple[PrefixPin, ...] = ()


class Answer(Struct, frozen=True):
    """A whole answer, always with status 200."""

    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Framing(Struct, frozen=True):
    """How a stream looks on the wire. ``keepalive`` is sent while nothing else is; empty for none."""

    content_type: bytes
    keepalive: bytes = b""


class StreamWriter(Protocol):
    """Writes one reply as frames. Every method returns whole frames, or nothing."""

    def begin(self) -> bytes: ...

    def feed(self, events: Sequence[ReplyEvent]) -> bytes:
        """The frames of one batch. ``ReplyFinished`` yields the terminal frames. Raises SuperfluidError for what this
        dialect cannot tell of; ``fail`` is then given it."""
        ...

    def fail(self, error: SuperfluidError) -> bytes:
        """The frames that end a stream which had begun."""
        ...


class Exchange(Protocol):
    """One translated request: what to generate, and how to write what comes of it."""

    @property
    def model(self) -> str:
        """The name the caller gave."""
        ...

    @property
    def route(self) -> str:
        """Method and path, as the access log names them."""
        ...

    @property
    def requests(self) -> tuple[GenerationRequest, ...]:
        """One per reply wanted; exactly one when streaming. None at all if the caller only wants the model loaded:
        ``answer`` then says that it is."""
        ...

    @property
    def is_stream(self) -> bool: ...

    @property
    def is_infill(self) -> bool:
        """Whether it fills in the middle: such requests are metered, and the access log names them."""
        ...

    @property
    def framing(self) -> Framing: ...

    def stream_writer(self, opening: Opening, progress: ReplyProgress) -> StreamWriter:
        """``progress`` has taken each batch before the writer is fed it."""
        ...

    def answer(self, opening: Opening, replies: Sequence[CollectedReply]) -> Answer:
        """Raises SuperfluidError for replies that this dialect cannot tell of."""
        ...


class Dialect(Protocol):
    """The language of one route."""

    def parse(self, body: bytes) -> Exchange:
        """Raises CallerError, and nothing else, whatever ``body`` holds. Thread-safe."""
        ...

    def error_body(self, error: SuperfluidError) -> bytes: ...
