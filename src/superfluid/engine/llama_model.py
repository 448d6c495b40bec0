"""A model file opened by llama.cpp, and what it says of itself. Runs in the worker."""

import ctypes
import hashlib
import logging
import math
import re
from pathlib import Path
from typing import Any, Final

from superfluid.domain.request import SamplingOverrides
from superfluid.engine.llama_log import LlamaLog
from superfluid.errors import ModelFileError, ModelLoadError

_logger = logging.getLogger("superfluid_daemon::engine")

_TEXT_BYTES: Final = 4096
_ATTRIBUTE_CONTROL: Final = 1 << 3
_ATTRIBUTE_USER_DEFINED: Final = 1 << 4
_DAMAGE_SIGNS: Final = (
    "gguf",
    "corrupted",
    "failed to read",
    "string length",
    "tensor",
    "magic",
    "unexpected",
    "missing",
)
_MEMORY_SIGNS: Final = ("alloc", "out of memory", "memory")
_GUESSED_SIZE: Final = re.compile(r"(\?|[0-9]+(\.[0-9]+)?)[MBT]")
_SIZE_UNITS: Final = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def with_real_size(description: str, parameters: int) -> str:
    """llama.cpp's description (architecture, size, quantization) with the size counted: it guesses from the number of
    layers, and calls a model of 135M parameters ``256M``. A size that says more, as ``30B.A3B`` does, stays."""
    architecture, _, rest = description.partition(" ")
    guess, _, quantization = rest.partition(" ")
    if not _GUESSED_SIZE.fullmatch(guess):
        return description
    return f"{architecture} {size_label(parameters)} {quantization}".rstrip()


def size_label(parameters: int) -> str:
    """``135M``, ``1.2B``: as models are called."""
    for unit, letter in _SIZE_UNITS:
        if parameters >= unit:
            count = parameters / unit
            return f"{count:.1f}{letter}" if count < 10 else f"{count:.0f}{letter}"
    return str(parameters)


class LlamaModel:
    """Owns one ``llama_model``. ``handle`` and ``vocabulary`` are pointers for the binding, invalid after ``close``."""

    def __init__(
        self, binding: Any, log: LlamaLog, path: Path, gpu_layers: int, *, has_own_layout: bool = True
    ) -> None:
        """Raises ModelFileError for a damaged file, ModelLoadError for anything else that llama.cpp will not load."""
        params = binding.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.use_extra_bufts = has_own_layout
        log.forget_errors()
        self._binding = binding
        self.handle = binding.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise _load_failure(path, log.cause())
        self.vocabulary = binding.llama_model_get_vocab(self.handle)
        try:
            self._require_decoder(path)
        except ModelLoadError:
            self.close()
            raise

    def close(self) -> None:
        """Idempotent."""
        if self.handle:
            self._binding.llama_model_free(self.handle)
            self.handle = None

    @property
    def vocabulary_tokens(self) -> int:
        return int(self._binding.llama_vocab_n_tokens(self.vocabulary))

    @property
    def trained_window_tokens(self) -> int:
        return int(self._binding.llama_model_n_ctx_train(self.handle))

    @property
    def weights_bytes(self) -> int:
        return int(self._binding.llama_model_size(self.handle))

    @property
    def parameters(self) -> int:
        return int(self._binding.llama_model_n_params(self.handle))

    @property
    def architecture(self) -> str:
        return self.metadata("general.architecture") or "unknown"

    @property
    def description(self) -> str:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._binding.llama_model_desc(self.handle, text, _TEXT_BYTES)
        return with_real_size(text.value.decode(errors="replace"), self.parameters)

    @property
    def has_recurrence(self) -> bool:
        """Whether some of its state is recurrent."""
        return self.is_recurrent or bool(self._binding.llama_model_is_hybrid(self.handle))

    @property
    def is_recurrent(self) -> bool:
        """Whether all of it is: there is no KV cache."""
        return bool(self._binding.llama_model_is_recurrent(self.handle))

    @property
    def has_plain_attention(self) -> bool:
        """Whether all of its state is attention over the whole window, which can be cut at any token."""
        return not self.has_recurrence and self._binding.llama_model_n_swa(self.handle) == 0

    def metadata(self, key: str) -> str | None:
        """A scalar of the file's metadata as text (cut at 4 KiB), ``None`` if there is none."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        found = self._binding.llama_model_meta_val_str(self.handle, key.encode(), text, _TEXT_BYTES)
        return text.value.decode(errors="replace") if found >= 0 else None

    def sampling_defaults(self) -> SamplingOverrides:
        """What the file recommends under ``general.sampling``; values out of range are ignored with a warning."""
        top_k = self._recommended("top_k", 0, 2**31 - 1)
        return SamplingOverrides(
            temperature=self._recommended("temp", 0, 2),
            top_p=self._recommended("top_p", 0, 1),
            min_p=self._recommended("min_p", 0, 1),
            top_k=None if top_k is None else int(top_k),
            repeat_penalty=self._recommended("penalty_repeat", 0, 2),
        )

    def end_of_generation(self) -> frozenset[int]:
        is_end = self._binding.llama_vocab_is_eog
        return frozenset(token for token in range(self.vocabulary_tokens) if is_end(self.vocabulary, token))

    def markers(self) -> frozenset[int]:
        """Control and user-defined tokens."""
        attributes = self._binding.llama_vocab_get_attr
        wanted = _ATTRIBUTE_CONTROL | _ATTRIBUTE_USER_DEFINED
        return frozenset(
            token for token in range(self.vocabulary_tokens) if attributes(self.vocabulary, token) & wanted
        )

    @property
    def vocabulary_digest(self) -> bytes:
        """Of what every token stands for and what kind it is. Takes a moment for each."""
        text_of, attributes = self._binding.llama_vocab_get_text, self._binding.llama_vocab_get_attr
        digest = hashlib.blake2b(digest_size=16)
        for token in range(self.vocabulary_tokens):
            text = text_of(self.vocabulary, token) or b""
            digest.update(b"%d %d " % (len(text), attributes(self.vocabulary, token)) + text)
        return digest.digest()

    def piece(self, token: int) -> str:
        """What the token stands for; of a marker, its text."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        written = self._binding.llama_token_to_piece(self.vocabulary, token, text, _TEXT_BYTES, 0, True)
        return text.raw[: max(0, written)].decode(errors="replace")

    @property
    def head_sizes(self) -> tuple[int, int]:
        """Values of a key and of a value in one head, from the shape of the first layer."""
        heads = max(1, self._binding.llama_model_n_head(self.handle))
        usual = self._binding.llama_model_n_embd(self.handle) // heads
        prefix = f"{self.architecture}.attention"
        key, value = (int(self.metadata(f"{prefix}.{name}_length") or usual) for name in ("key", "value"))
        return key, value

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token of attention over the whole window adds to the KV; 0 for a recurrent model. Too many
        for a model of which only some layers are like that."""
        binding, handle = self._binding, self.handle
        if self.is_recurrent:
            return 0
        layers, heads = int(binding.llama_model_n_layer(handle)), int(binding.llama_model_n_head_kv(handle))
        return layers * heads * sum(self.head_sizes)

    def _recommended(self, name: str, low: float, high: float) -> float | None:
        text = self.metadata(f"general.sampling.{name}")
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if low <= value <= high:
            return value
        _logger.warning("the model file recommends %s %s for sampling: ignored", name, text)
        return None

    def _require_decoder(self, path: Path) -> None:
        binding, handle = self._binding, self.handle
        is_plain = binding.llama_model_has_decoder(handle) and not binding.llama_model_has_encoder(handle)
        if not is_plain or binding.llama_model_is_diffusion(handle):
            raise ModelLoadError(f"{path} holds a model that does not generate text token by token")


def _load_failure(path: Path, cause: str | None) -> ModelFileError | ModelLoadError:
    reason = cause or "llama.cpp gives no reason"
    lowered = reason.lower()
    if any(sign in lowered for sign in _MEMORY_SIGNS):
        return ModelLoadError(f"there is not enough memory for {path}: {reason}")
    if any(sign in lowered for sign in _DAMAGE_SIGNS):
        return ModelFileError(f"the model file {path} is truncated or damaged: {reason}")
    return ModelLoadError(f"llama.cpp will not load {path}: {reason}")
