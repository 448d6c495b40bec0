"""One generation as the worker sees it: token ids and numbers, no text. Crosses the process boundary."""

import enum

from msgspec import Struct

from superfluid.domain.media import ImageRun
from superfluid.domain.request import QosClass, SamplingParams


class ParkKind(enum.IntEnum):
    """What a job's KV state may be written to the disk as when the job is over: nothing, its session's park, or the
    prefix of a conversation that a request brought along. Each kind has a budget of its own."""

    NONE = 0
    SESSION = 1
    REQUEST = 2


class PrefixPin(Struct, frozen=True, array_like=True):
    """The first ``tokens`` of a job's stream are to stay cached for ``ttl_ms`` from when it gets its lane, and as long
    again whenever a job pins them anew."""

    tokens: int
    ttl_ms: int


class Job(Struct, frozen=True, kw_only=True, array_like=True):
    """Tokens in, at most ``max_tokens`` tokens out.

    ``tokens`` is the whole stream so far as packed little-endian int32: its length is the position of the first
    token to be drawn. ``prompt_tokens`` of them are prompt; the rest were generated before a worker was lost or
    a turn was cut, and belong to the reply. ``logprobs`` as in ``GenerationRequest``.
    In the places of an image ``tokens`` has ids of the image (``domain.media.image_ids``), which are negative;
    ``images`` says in order which image is where.
    A resubmission is not counted as a new request. A ``is_batch_invariant`` job runs alone, whatever else waits.
    ``session`` is the one that the tokens are stored in, 0 if there is none: the worker's logs name it, and what is
    kept of the tokens is erased with it.
    ``input_tokens`` is where the conversation ends and the reply's header begins, 0 if nobody knows.
    Until ``pin_deadline_unix_ms`` what the session holds is to stay cached; 0 is no pin.
    ``adapter`` is the number of a loaded LoRA adapter, 0 the model alone.
    """

    job_id: int
    tokens: bytes
    prompt_tokens: int
    max_tokens: int
    sampling: SamplingParams
    ignore_eos: bool = False
    logprobs: int | None = None
    qos: QosClass = QosClass.AGENT
    is_resubmission: bool = False
    images: list[ImageRun] = []
    is_batch_invariant: bool = False
    session: int = 0
    park: ParkKind = ParkKind.NONE
    input_tokens: int = 0
    pin_deadline_unix_ms: int = 0
    prefix_pins: list[PrefixPin] = []
    adapter: int = 0

    @property
    def pinned_lengths(self) -> list[int]:
        """Those of ``prefix_pins`` that are lengths within the prompt."""
        return [pin.tokens for pin in self.prefix_pins if 0 < pin.tokens <= self.prompt_tokens]
