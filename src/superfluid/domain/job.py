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
