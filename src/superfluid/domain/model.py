"""What is known of a loaded model. Reported by its worker, read by everybody."""

from msgspec import Struct

from superfluid.domain.media import NO_PROJECTOR, MediaFacts
from superfluid.domain.request import SamplingOverrides


class ModelFacts(Struct, frozen=True, kw_only=True):
    """A loaded model as its worker reports it.

    ``window_tokens`` is what one lane can hold; ``kv_bytes`` what the KV of all lanes takes.
    ``can_truncate`` is false for recurrent, hybrid and sliding-window models, whose state cannot be cut.
    ``state_key`` identifies everything that makes an exported lane state valid elsewhere, but images, which lanes know
    by ids of their own. ``media`` is ``None`` if the model sees no images; ``images_refused`` then says what was wrong
    with its projector, if there was one. ``window_reason`` is the sum that led to a window that nobody had set.
    ``micro_batch_tokens`` is how much of a long chunk is computed at a time, 0 if that is not known.
    """

    architecture: str
    description: str
    vocabulary_tokens: int
    window_tokens: int
    trained_window_tokens: int
    lanes: int
    kv_bytes: int
    weights_bytes: int
    parameters: int
    flash_attention: bool
    can_truncate: bool
    threads: int
    engine: str
    engine_build: str
    state_key: str
    sampling_defaults: SamplingOverrides = SamplingOverrides()
    media: MediaFacts | None = None
    kv_type: str = "f16"
    images_refused: str = ""
    window_reason: str = ""
    micro_batch_tokens: int = 0

    @property
    def kv_bits(self) -> int:
        """Bits of a KV value, without the scales that quantized types keep beside them."""
        return {"f16": 16, "q8_0": 8, "q4_0": 4}.get(self.kv_type, 16)

    @property
    def no_images_reason(self) -> str:
        """Why it sees none, for whoever asks it to."""
        return f"this model sees no images: {self.images_refused or NO_PROJECTOR}"
