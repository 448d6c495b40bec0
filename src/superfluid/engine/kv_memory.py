"""What KV state takes, and how long a window the machine has room for. Pure; runs in the worker, once at load."""

import logging
from dataclasses import dataclass
from typing import Final

from superfluid.engine.llama_log import LOGGER_NAME
from superfluid.errors import ModelLoadError, UsageError

SMALLEST_WINDOW_TOKENS: Final = 512
WINDOW_STEP_TOKENS: Final = 256
"""llama.cpp rounds windows to it."""
UNKNOWN_WINDOW_TOKENS: Final = 8192
"""The window where memory cannot be asked for."""
RESERVE_SHARE: Final = 0.05
"""Of what is free: for what is computed in between, and for everybody else."""
LARGEST_SHARE: Final = 0.5
SMALLEST_SHARE: Final = 0.25
"""Of what the weights leave free. The smaller one is taken even if the host cache was promised more than is left."""

_logger = logging.getLogger(LOGGER_NAME)


@dataclass(frozen=True, slots=True)
class KvType:
    """One of llama.cpp's types for the values of a KV cache: 32 of them take ``block_bytes``."""

    name: str
    ggml_type: int
    block_bytes: int

    @property
    def is_quantized(self) -> bool:
        return self.name != "f16"

    def size_bytes(self, values: int) -> int:
        return values * self.block_bytes // BLOCK_VALUES


BLOCK_VALUES: Final = 32
KV_TYPES: Final = {0: KvType("f16", 1, 64), 8: KvType("q8_0", 8, 34), 4: KvType("q4_0", 2, 18)}
"""By ``--kv-bits``."""


def require_kv_type(bits: int, flash_attention: str, head_sizes: tuple[int, int], *, has_kv: bool) -> KvType:
    """Raises UsageError for bits that there are not, or that the model or ``flash_attention`` rules out."""
    if bits not in KV_TYPES:
        raise UsageError(f"--kv-bits must be 0, 4 or 8, got {bits}", param="--kv-bits")
    kind = KV_TYPES[bits]
    if not kind.is_quantized:
        return kind
    if flash_attention == "off":
        raise UsageError("--kv-bits needs flash attention: not with --flash-attn off", param="--kv-bits")
    if not has_kv:
        raise UsageError("--kv-bits: this model has no KV cache, its state is recurrent", param="--kv-bits")
    odd = next((size for size in head_sizes if size % BLOCK_VALUES), None)
    if odd is not None:
        raise UsageError(
            f"--kv-bits: the heads of this model have {odd} values, and {kind.name} packs {BLOCK_VALUES} together",
            param="--kv-bits",
        )
    return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowWish:
    """``tokens`` a lane is to have, ``None`` for what there is room for. ``is_fitting_asked``: somebody asked for that
    in so many words, so that nothing else will do."""

    tokens: int | None
    is_fitting_asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The machine and the model: free memory (``None`` if the system does not tell or it is not the memory that the KV
    goes to), what of it weights will take and the host cache may take, and the KV of one token in one lane (0 for a
    model that does not tell)."""

    available_bytes: int | None
    weights_bytes: int
    host_cache_bytes: int
    bytes_per_token: int
    lanes: int
    trained_tokens: int


@dataclass(frozen=True, slots=True)
class Window:
    """``reason`` is the sum that led to it, empty if it was given."""

    tokens: int
    reason: str = ""


def choose_window(wish: WindowWish, room: Room) -> Window:
    """Raises UsageError for a window that cannot be, or that was to be fitted and cannot."""
    if wish.tokens is not None:
        if wish.tokens < 1:
            raise UsageError(f"the window must be at least 1 token, got {wish.tokens}")
        if wish.tokens > room.trained_tokens:
            _logger.warning(
                "a window of %d tokens exceeds the %d the model was trained for", wish.tokens, room.trained_tokens
            )
        return Window(wish.tokens)
    if room.available_bytes is None:
        return _window_of_unknown_memory(wish, room)
    window = _fitted(room, room.available_bytes)
    if window.tokens < min(SMALLEST_WINDOW_TOKENS, room.trained_tokens):
        if wish.is_fitting_asked:
            raise UsageError(
                f"--max-context auto finds no room for windows of {SMALLEST_WINDOW_TOKENS} tokens: {window.reason}; "
                "use fewer lanes (--max-batch)",
                param="--max-context",
            )
        return Window(min(SMALLEST_WINDOW_TOKENS, room.trained_tokens), window.reason)
    return window


def require_memory(needed: int, available: int | None, lanes: int, window: int) -> None:
    """The system may promise memory that it does not have, and kill the process when it is touched: look first.

    Raises ModelLoadError.
    """
    if available is not None and needed > available:
        raise ModelLoadError(
            f"the KV of {lanes} lanes of {window} tokens takes {needed / 1e9:.2f} GB and {available / 1e9:.2f} GB are "
            "free: use fewer lanes or a smaller window"
        )


def _window_of_unknown_memory(wish: WindowWish, room: Room) -> Window:
    if wish.is_fitting_asked:
        raise UsageError(
            "--max-context auto cannot be worked out: it is not known how much memory there is for KV; give a number",
            param="--max-context",
        )
    return Window(min(room.trained_tokens, UNKNOWN_WINDOW_TOKENS))


def _fitted(room: Room, available: int) -> Window:
    beside_weights = max(0, available - room.weights_bytes)
    left = beside_weights - room.host_cache_bytes - int(available * RESERVE_SHARE)
    budget = max(int(beside_weights * SMALLEST_SHARE), min(int(beside_weights * LARGEST_SHARE), left))
    trained = room.trained_tokens
    if not room.bytes_per_token:
        tokens = min(trained, UNKNOWN_WINDOW_TOKENS)
        return Window(
            tokens, f"{tokens:,} of {trained:,} trained tokens: what a token takes of this kind of model is not known"
        )
    fitting = budget // (room.lanes * room.bytes_per_token)
    tokens = trained if fitting >= trained else fitting // WINDOW_STEP_TOKENS * WINDOW_STEP_TOKENS
    shares = f"{available / 1e9:.2f} GB free, {room.weights_bytes / 1e9:.2f} GB of it for weights"
    quotient = f"{budget / 1e9:.2f} GB for KV / ({room.lanes} lanes x {room.bytes_per_token:,} bytes a token)"
    return Window(tokens, f"{shares}: {quotient} = {fitting:,} tokens; trained for {trained:,}")
