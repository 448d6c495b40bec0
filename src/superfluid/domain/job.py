"""One generation as the worker sees it: token ids and numbers, no text. Crosses the process boundary."""

from msgspec import Struct

from superfluid.domain.media import ImageRun
from superfluid.domain.request import QosClass, SamplingParams


class Job(Struct, frozen=True, kw_only=True, array_like=True):
    """Tokens in, at most ``max_tokens`` tokens out.

    ``tokens`` is the whole stream so far as packed little-endian int32: its length is the position of the first
    token to be drawn. ``prompt_tokens`` of them are prompt; the rest were generated before a worker was lost or
    a turn was cut, and belong to the reply. ``logprobs`` as in ``GenerationRequest``.
    In the places of an image ``tokens`` has ids of the image (``domain.media.image_ids``), which are negative;
    ``images`` says in order which image is where.
    A resubmission is not counted as a new request. A ``is_batch_invariant`` job runs alone, whatever else waits.
    ``session`` is named in the worker's logs; 0 for a request that has none (yet).
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
