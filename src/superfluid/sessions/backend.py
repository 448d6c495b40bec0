"""What the sessions need of whoever runs the model. Stated here so that the use cases never import the worker."""

from array import array
from collections.abc import Sequence
from typing import Protocol

from superfluid.domain.job import Job
from superfluid.domain.model import ModelFacts
from superfluid.domain.reply import Finish
from superfluid.domain.statistics import Warmth
from superfluid.errors import SuperfluidError


class PositionScores(Protocol):
    """Log-probabilities at one position (see ``worker.protocol.TokenScores``)."""

    @property
    def chosen(self) -> float: ...

    @property
    def top_tokens(self) -> Sequence[int]: ...

    @property
    def top_logprobs(self) -> Sequence[float]: ...


class JobSink(Protocol):
    """Receives one job's output, on the event loop, in order. Methods must not block and must not raise.

    ``started`` comes at most once, ``guessed`` and ``tokens`` any number of times, then exactly one of ``finished`` and
    ``failed``.
    A worker that dies in between is not visible here: the job is resubmitted and goes on.
    """

    def started(self, warm_tokens: int) -> None: ...

    def guessed(self, tokens: int, right: int) -> None:
        """So many tokens were guessed ahead, and so many of them drawn: those come with the next ``tokens``."""
        ...

    def tokens(self, tokens: Sequence[int], scores: Sequence[PositionScores]) -> None: ...

    def finished(self, finish: Finish) -> None: ...

    def failed(self, error: SuperfluidError) -> None: ...


class GenerationBackend(Protocol):
    """Runs jobs on one model."""

    @property
    def facts(self) -> ModelFacts:
        """Raises ModelLoadingError until the model is loaded."""
        ...

    @property
    def is_ready(self) -> bool: ...

    def submit(self, job: Job, sink: JobSink) -> None:
        """Never blocks and never raises: a refusal reaches ``sink.failed``, perhaps at once; all else comes later."""
        ...

    def set_background_rate(self, divisor: int) -> None:
        """From now on jobs of classes 2 and 3 decode on every ``divisor``-th tick only (at least 1)."""
        ...

    def pin(self, session: int, deadline_unix_ms: int) -> None:
        """What is cached of the session is to stay until then, if it can; 0 lets it go. Its jobs must say it too."""
        ...

    async def size_image(self, blob: str) -> list[int]:
        """The tokens that stand for an image of the media pool, ``domain.media.PLACEHOLDER`` for its embeddings.

        Raises UnsupportedInputError if the model sees none, InvalidValueError if it cannot see this one,
        ModelLoadingError and WorkerFailedError.
        """
        ...

    def cancel(self, job_id: int) -> None:
        """Ends the job within one tick; its sink then sees ``finished(CANCELLED)``. Unknown ids are ignored."""
        ...

    def warmth(self, session: int, tokens: "array[int]") -> Warmth:
        """How much of ``tokens``, the session's input, is computed and kept somewhere: by itself, or by others that
        begin alike. Asks nobody; takes time in proportion to the input."""
        ...

    async def forget(self, sessions: Sequence[int]) -> None:
        """Erases what is kept of these sessions' tokens besides the log, in memory and on the disk. Their jobs must be
        over. Raises StoreUnavailableError."""
        ...
