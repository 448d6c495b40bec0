"""Images through llama.cpp's mtmd: opening a projector, an image's place in the input, its embeddings. In the worker.

mtmd aborts on some mistakes. Found beforehand and refused: markers that the projector writes and the vocabulary lacks
(by probes at load), data that is no image (``domain.image_format``), images that the model cannot take at once.
"""

import ctypes
import hashlib
import importlib
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from superfluid.domain.image_format import require_image
from superfluid.domain.media import PLACEHOLDER, MediaFacts, runs_of
from superfluid.engine.llama_library import LIBRARY_VARIABLE
from superfluid.engine.llama_log import LlamaLog
from superfluid.engine.llama_model import LlamaModel
from superfluid.engine.model_file import files_digest, model_files
from superfluid.errors import EngineFaultError, EngineLibraryError, InvalidValueError, ModelLoadError

Embeddings = NDArray[np.float32]

_FINGERPRINT_VERSION: Final = "images 1"
_MTMD_VARIABLE: Final = "MTMD_CPP_LIB"
_TEXT, _IMAGE = 0, 1
_REMEMBERED_IMAGES: Final = 2
_PROBE_SIZES: Final = ((64, 64), (1536, 1024))
"""A picture that no model cuts into tiles, and one that those who do cut into several."""
_PLACEHOLDER_NAMES: Final = (
    "<image>", "<|image_pad|>", "<|image|>", "<image_soft_token>", "<|image_soft_token|>", "[IMG]", "<IMG_CONTEXT>",
    "<|imgpad|>", "<|IMAGE_PLACEHOLDER|>", "<image_pad>", "<|patch|>", "<unk>",
)  # fmt: skip
_UNSUPPORTED: Final = {"deepseek4v": "the embeddings of an image depend on where in the input it stands"}


class PreparedImage:
    """An image as mtmd has cut it up. ``layout`` is what stands for it in the input, ``PLACEHOLDER`` for embeddings;
    ``texts`` are the tokens between; ``runs`` the chunks, those without a token in between together."""

    def __init__(self, mtmd: Any, chunks: Any) -> None:
        self._mtmd = mtmd
        self._chunks = chunks
        layout: list[int] = []
        self.texts: list[list[int]] = []
        self.runs: list[list[Any]] = []
        self.largest_chunk_tokens = 0
        is_run_open = False
        for index in range(mtmd.mtmd_input_chunks_size(chunks)):
            chunk = mtmd.mtmd_input_chunks_get(chunks, index)
            if mtmd.mtmd_input_chunk_get_type(chunk) == _TEXT:
                tokens = _text_tokens(mtmd, chunk)
                layout += tokens
                if tokens:
                    self.texts.append(tokens)
                    is_run_open = False
                continue
            count = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
            layout += [PLACEHOLDER] * count
            self.largest_chunk_tokens = max(self.largest_chunk_tokens, count)
            if is_run_open:
                self.runs[-1].append(chunk)
            else:
                self.runs.append([chunk])
            is_run_open = True
        self.layout = tuple(layout)

    @property
    def run_lengths(self) -> list[int]:
        return [length for _, length in runs_of(self.layout, PLACEHOLDER)]

    def close(self) -> None:
        """Idempotent."""
        if self._chunks:
            self._mtmd.mtmd_input_chunks_free(self._chunks)
            self._chunks = None
            self.runs = []


class Projector:
    """Owns one ``mtmd_context`` over a text model, which it does not own."""

    def __init__(
        self,
        binding: Any,
        log: LlamaLog,
        model: LlamaModel,
        path: Path,
        *,
        encoder: str,
        threads: int,
        uses_gpu: bool,
        flash_attention: int,
        build: str,
    ) -> None:
        """Loads and probes it. Raises ModelFileError, ModelLoadError and EngineLibraryError."""
        files = model_files(path)
        self._mtmd = mtmd = _load_mtmd()
        self._log = log
        self._model = model
        self._markers = model.markers()
        self._remembered: OrderedDict[str, PreparedImage] = OrderedDict()
        self._require_supported(path, encoder)
        log.listen_to(mtmd.mtmd_helper_log_set)
        params = mtmd.mtmd_context_params_default()
        params.use_gpu = uses_gpu
        params.print_timings = False
        params.n_threads = threads
        params.flash_attn_type = flash_attention
        log.forget_errors()
        self._context = mtmd.mtmd_init_from_file(str(path).encode(), model.handle, params)
        if not self._context:
            raise ModelLoadError(f"the projector {path} does not load: {log.cause() or 'llama.cpp gives no reason'}")
        try:
            self._embedding = int(binding.llama_model_n_embd_inp(model.handle))
            probes = self._probe(path)
            self.is_non_causal = bool(mtmd.mtmd_decode_use_non_causal(self._context, None))
            self.largest_chunk_tokens = max(probe.largest_chunk_tokens for probe in probes)
            digest = "|".join((_FINGERPRINT_VERSION, files_digest(files), encoder, build, str(flash_attention)))
            self.facts = MediaFacts(
                encoder=encoder,
                fingerprint=hashlib.sha256(digest.encode()).hexdigest()[:16],
                placeholder_token=self._placeholder({token for probe in probes for token in probe.layout}),
            )
            for probe in probes:
                probe.close()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Idempotent."""
        for image in self._remembered.values():
            image.close()
        self._remembered.clear()
        if self._context:
            self._mtmd.mtmd_free(self._context)
            self._context = None

    def prepare(self, content: bytes) -> PreparedImage:
        """Decodes and cuts up an image; the last few are remembered. Valid until the next call but one.

        Raises InvalidValueError if it is none that the model can see.
        """
        key = hashlib.sha256(content).hexdigest()
        known = self._remembered.get(key)
        if known is not None:
            self._remembered.move_to_end(key)
            return known
        require_image(content)
        self._log.forget_errors()
        buffer = (ctypes.c_uint8 * len(content)).from_buffer_copy(content)
        bitmap = self._mtmd.mtmd_helper_bitmap_init_from_buf(self._context, buffer, len(content), False)
        if not bitmap:
            raise InvalidValueError("the image is damaged: its pixels cannot be decoded", param="blob")
        image = self._cut_up(bitmap)
        self._remembered[key] = image
        if len(self._remembered) > _REMEMBERED_IMAGES:
            self._remembered.popitem(last=False)[1].close()
        return image

    def encode(self, chunk: Any) -> Embeddings:
        """A chunk's embeddings, one row a token: a view, valid until the next call. Raises EngineFaultError."""
        self._log.forget_errors()
        code = self._mtmd.mtmd_encode_chunk(self._context, chunk)
        pointer = self._mtmd.mtmd_get_output_embd(self._context) if code == 0 else None
        if not pointer:
            raise EngineFaultError(f"the image could not be encoded: {self._log.cause() or f'code {code}'}")
        count = int(self._mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        return np.ctypeslib.as_array(pointer, (count, self._embedding))

    def _cut_up(self, bitmap: Any) -> PreparedImage:
        mtmd = self._mtmd
        marker = mtmd.mtmd_get_marker(self._context)
        text = mtmd.mtmd_input_text(marker, len(marker), False, True)
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            code = mtmd.mtmd_tokenize(
                self._context, chunks, ctypes.byref(text), (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap), 1
            )
        finally:
            mtmd.mtmd_bitmap_free(bitmap)
        if code != 0:
            mtmd.mtmd_input_chunks_free(chunks)
            reason = self._log.cause() or f"code {code}"
            raise InvalidValueError(f"the model's encoder refuses the image: {reason}", param="blob")
        return PreparedImage(mtmd, chunks)

    def _require_supported(self, path: Path, encoder: str) -> None:
        reason = _UNSUPPORTED.get(encoder)
        if reason is not None:
            raise ModelLoadError(f"projectors of type {encoder} ({path}) are not supported: {reason}")

    def _probe(self, path: Path) -> list[PreparedImage]:
        """Grey pictures, cut up: shows what tokens the projector writes. Raises ModelLoadError."""
        mtmd = self._mtmd
        if not mtmd.mtmd_support_vision(self._context):
            raise ModelLoadError(f"the projector {path} sees no images")
        if mtmd.mtmd_decode_use_mrope(self._context):
            raise ModelLoadError(
                f"the projector {path} needs M-RoPE positions for images, which superfluid does not support yet: start "
                "without it (--mmproj none) to serve the model for text"
            )
        probes = []
        for width, height in _PROBE_SIZES:
            grey = (ctypes.c_uint8 * (width * height * 3)).from_buffer_copy(b"\x80" * (width * height * 3))
            try:
                probes.append(self._cut_up(mtmd.mtmd_bitmap_init(width, height, grey)))
            except InvalidValueError as error:
                raise ModelLoadError(f"the projector {path} does not work: {error.message}") from error
            self._require_markers(path, probes[-1])
        return probes

    def _require_markers(self, path: Path, image: PreparedImage) -> None:
        """A marker that the vocabulary lacks is written as token -1, which aborts llama.cpp, or letter by letter, which
        no model was trained on."""
        for tokens in image.texts:
            if min(tokens) < 0:
                known = "".join(self._model.piece(token) for token in tokens if token >= 0)
                raise ModelLoadError(
                    f"the projector {path} does not fit this model: its vocabulary lacks a token that marks images"
                    + (f" (beside {known!r})" if known else "")
                )
            letters = "".join(self._model.piece(token) for token in tokens if not self._is_marker(token)).strip()
            if letters:
                raise ModelLoadError(
                    f"the projector {path} does not fit this model: {letters!r} is no token of its vocabulary"
                )

    def _is_marker(self, token: int) -> bool:
        piece = self._model.piece(token).strip()
        looks_like_one = len(piece) > 2 and piece[0] in "<[]" and piece[-1] in ">[]"
        return looks_like_one or token in self._markers

    def _placeholder(self, written: set[int]) -> int:
        """The token that the model's makers put there, if its name tells, else any that no layout has."""
        names = {self._model.piece(token): token for token in sorted(self._markers - written)}
        known = next((names[name] for name in _PLACEHOLDER_NAMES if name in names), None)
        if known is not None:
            return known
        return next(token for token in reversed(range(self._model.vocabulary_tokens)) if token not in written)


def _load_mtmd() -> Any:
    """The binding's module for images, on the library that llama.cpp itself is from. Raises EngineLibraryError."""
    directory = os.environ.get(LIBRARY_VARIABLE)
    if directory is None:
        os.environ.pop(_MTMD_VARIABLE, None)
    else:
        os.environ[_MTMD_VARIABLE] = directory
    try:
        return importlib.import_module("llama_cpp.mtmd_cpp")
    except (OSError, RuntimeError, AttributeError, ImportError) as error:
        raise EngineLibraryError(f"images need libmtmd, which does not load: {error}") from error


def _text_tokens(mtmd: Any, chunk: Any) -> list[int]:
    count = ctypes.c_size_t()
    pointer = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
    return [int(pointer[index]) for index in range(count.value)]
