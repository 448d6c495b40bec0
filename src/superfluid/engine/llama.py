"""The llama.cpp engine: one model, one context with a KV buffer per lane. Runs in the worker."""

import ctypes
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from superfluid.domain.media import PLACEHOLDER, runs_of
from superfluid.domain.model import ModelFacts
from superfluid.engine import lane_state
from superfluid.engine.adapters import LoraAdapters
from superfluid.engine.interface import ImageRow, Logits, Row, StepResult
from superfluid.engine.kv_memory import Room, Window, WindowWish, choose_window, require_kv_type, require_memory
from superfluid.engine.lane_state import LaneState, State
from superfluid.engine.llama_batch import CPU_MICRO_BATCH_TOKENS, GPU_MICRO_BATCH_TOKENS, BatchArrays, EmbeddingBatch
from superfluid.engine.llama_library import library_identity, load_binding
from superfluid.engine.llama_log import LOGGER_NAME, LlamaLog
from superfluid.engine.llama_model import LlamaModel
from superfluid.engine.logits_view import LogitsView
from superfluid.engine.machine import usable_cores, usable_cpus
from superfluid.engine.model_file import files_digest, model_files
from superfluid.engine.rows import check_cut, check_image_row, check_rows
from superfluid.engine.spare_buffers import Bytes, SpareBuffers
from superfluid.engine.vision import Projector
from superfluid.errors import (
    EngineFaultError,
    EnvironmentFaultError,
    InvalidValueError,
    ModelLoadError,
    SuperfluidError,
    UnsupportedInputError,
    UsageError,
)
from superfluid.free_memory import available_memory_bytes

MINIMUM_BATCH_TOKENS: Final = 2048

_FLASH_ATTENTION: Final = {"auto": -1, "off": 0, "on": 1}
_ABORTED = 2
_WARM_UP_TOKENS = 2

_logger = logging.getLogger(LOGGER_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions:
    """How to load. ``None`` for ``window_tokens`` (per lane) or ``threads``: chosen. Negative ``gpu_layers``: all.

    ``is_window_fitted`` and ``kv_bits`` as in ``EngineSettings``; ``host_cache_bytes`` will be wanted beside the KV.
    ``projector`` is the file that lets the model see images, ``projector_type`` what its header calls it;
    an optional one that is of no use is left out, with a warning.
    ``has_own_layout``: weights may be copied into the layout that suits the processor, which takes their size again.
    ``evaluation_callback`` is llama.cpp's ``cb_eval``, called for every tensor of every graph: for tests, and slow.
    """

    lanes: int
    window_tokens: int | None = None
    threads: int | None = None
    gpu_layers: int = -1
    flash_attention: Literal["auto", "on", "off"] = "auto"
    llama_library: Path | None = None
    is_log_kept: bool = False
    projector: Path | None = None
    projector_type: str = ""
    is_projector_optional: bool = False
    evaluation_callback: Any = None
    is_window_fitted: bool = False
    kv_bits: int = 0
    host_cache_bytes: int = 0
    has_own_layout: bool = True


class LlamaEngine:
    """``Engine`` on llama.cpp. A lane is a sequence id."""

    def __init__(self, path: Path, options: LlamaOptions) -> None:
        """Loads the model and evaluates one warm-up step. Blocks for as long as that takes.

        Raises ModelFileError, ModelLoadError, EngineLibraryError, or UsageError for lanes or a window that cannot be.
        """
        self._binding = binding = load_binding(options.llama_library)
        self._log = LlamaLog(binding, is_kept=options.is_log_kept)
        files = model_files(path)
        binding.llama_backend_init()
        self._build = binding.llama_version().decode(errors="replace")
        gpu_layers = options.gpu_layers if binding.llama_supports_gpu_offload() else 0
        self._model = LlamaModel(binding, self._log, files[0], gpu_layers, has_own_layout=options.has_own_layout)
        self._adapters = LoraAdapters(binding, self._log, self._model)
        self._context: Any = None
        self._projector: Projector | None = None
        self._images_refused = ""
        self._spares = SpareBuffers(options.host_cache_bytes)
        try:
            self._kv_type = require_kv_type(
                options.kv_bits, options.flash_attention, self._model.head_sizes, has_kv=not self._model.is_recurrent
            )
            self._fitted = self._choose_window(options, is_on_gpu=gpu_layers != 0)
            self._window = self._fitted.tokens
            self._threads = _threads(options.threads)
            self._lanes = options.lanes
            self._can_truncate = self._model.has_plain_attention
            self._abort_flag = ctypes.create_string_buffer(2)
            self._log.is_failure_expected = lambda: bool(self._abort_flag.value)
            if options.projector is not None:
                self._projector = self._try_projector(options.projector, options, is_on_gpu=gpu_layers != 0)
            self._context = self._open_context(options, is_on_gpu=gpu_layers != 0)
            self._memory = binding.llama_get_memory(self._context)
            self._batch = BatchArrays(binding, _batch_tokens(self._window))
            self._lengths = [0] * self._lanes
            self._vocabulary_tokens = self._model.vocabulary_tokens
            self._logits = LogitsView(self._vocabulary_tokens)
            self._end_of_generation = self._model.end_of_generation()
            self._unpenalized = self._end_of_generation | self._model.markers()
            self._facts = self._warm_up(options, files_digest(files))
        except BaseException:
            self.close()
            raise

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    @property
    def end_of_generation(self) -> frozenset[int]:
        return self._end_of_generation

    @property
    def unpenalized(self) -> frozenset[int]:
        return self._unpenalized

    @property
    def vocabulary_digest(self) -> bytes:
        """Equal for models whose token ids mean the same. Blocks for a moment."""
        return self._model.vocabulary_digest

    def listen_again(self) -> None:
        """llama.cpp logs to the engine that was opened last; from now on to this one."""
        self._log.listen_to(self._binding.llama_log_set)

    def length(self, lane: int) -> int:
        return self._lengths[lane]

    def step(self, rows: Sequence[Row]) -> StepResult:
        check_rows(rows, self._lengths, self._window)
        counts = tuple([len(row.tokens) for row in rows])
        if sum(counts) > self._batch.capacity:
            raise ValueError(f"a step of more than {self._batch.capacity} tokens")
        outputs = self._batch.fill(rows)
        code = self._binding.llama_decode(self._context, self._batch.batch)
        if code == _ABORTED:
            self._log.forget_errors()
            return self._after_abort(rows)
        if code != 0:
            self._fail([row.lane for row in rows], code)
        for row, count in zip(rows, counts, strict=True):
            self._lengths[row.lane] += count
        return StepResult(self._outputs(outputs), counts)

    def image_layout(self, content: bytes) -> Sequence[int]:
        if self._projector is None:
            raise UnsupportedInputError(self._facts.no_images_reason)
        image = self._projector.prepare(content)
        if self._projector.is_non_causal and image.largest_chunk_tokens > self._micro_batch:
            raise InvalidValueError(
                f"the image takes {image.largest_chunk_tokens} tokens in one piece; at most {self._micro_batch} can be "
                "evaluated at once: make it smaller",
                param="blob",
            )
        return image.layout

    def step_image(self, row: ImageRow, content: bytes) -> StepResult:
        check_image_row(row, self._lengths, self._window)
        self._abort_flag[0] = b"\0"
        try:
            code = self._evaluate_image(row, content)
        except SuperfluidError as error:
            self.clear(row.lane)
            raise EngineFaultError(error.message) from error
        if code == _ABORTED:
            if self._held(row.lane) > row.position:
                self._remove(row.lane, row.position)
            return StepResult(self._logits.none, (0,))
        if code != 0:
            self._fail([row.lane], code)
        self._lengths[row.lane] += row.length
        return StepResult(self._outputs(int(row.wants_logits != "none")), (row.length,))

    def truncate(self, lane: int, length: int) -> bool:
        held = self._lengths[lane]
        check_cut(lane, length, held)
        if length == held:
            return True
        if length > 0 and not (self._can_truncate and self._remove(lane, length)):
            self.clear(lane)
            return False
        if length == 0:
            self.clear(lane)
        self._lengths[lane] = length
        return True

    def clear(self, lane: int) -> None:
        self._remove(lane, -1)
        self._lengths[lane] = 0

    def scrub(self, lane: int) -> None:
        """Without flash attention llama.cpp multiplies the cells behind a lane's end by zero, which does not help
        against NaN; and it overwrites all cells at once or none. So the other lanes step aside meanwhile."""
        self.clear(lane)
        others = [other for other in range(self._lanes) if self._lengths[other]]
        states = [(other, self.export_lane(other), self._lengths[other]) for other in others]
        self._binding.llama_memory_clear(self._memory, True)
        for other, state, length in states:
            if not self.import_lane(other, state, length):
                raise EngineFaultError(f"lane {other} could not be put back")

    def export_lane(self, lane: int) -> LaneState:
        size = int(self._binding.llama_state_seq_get_size(self._context, lane))
        begin = lane_state.begin_of_export(lane) if self._can_truncate else lane_state.ROOM_BYTES
        buffer = self._spares.take(begin + size)
        try:
            written = self._binding.llama_state_seq_get_data(self._context, _bytes_pointer(buffer[begin:]), size, lane)
            if written != size:
                raise EngineFaultError(f"llama.cpp exported {written} of {size} bytes of a lane")
            if self._can_truncate:
                lane_state.make_stored(buffer, lane, self._lanes, size)
                size = lane_state.stored_bytes(size, self._lanes)
        except EngineFaultError:
            self._spares.put_back(buffer)
            raise
        return LaneState(buffer, size, self._spares)

    def import_lane(self, lane: int, state: State, length: int) -> bool:
        self.clear(lane)
        if isinstance(state, bytes):
            state = lane_state.with_room(state)
        if length > self._window or (self._can_truncate and lane_state.cell_count(state) != length):
            return False
        form = state.in_form(lane, self._lanes) if self._can_truncate else state.as_exported()
        return self._set_state(lane, form, length)

    @property
    def spare_memory(self) -> SpareBuffers:
        return self._spares

    def _set_state(self, lane: int, restored: Bytes, length: int) -> bool:
        read = self._binding.llama_state_seq_set_data(self._context, _bytes_pointer(restored), len(restored), lane)
        if read != len(restored) or self._held(lane) != length:
            self.clear(lane)
            return False
        self._lengths[lane] = length
        return True

    def load_adapter(self, adapter: int, path: Path) -> None:
        self._adapters.load(adapter, path)

    def free_adapter(self, adapter: int) -> None:
        self._adapters.free(adapter)

    def use_adapter(self, adapter: int) -> None:
        self._adapters.apply(self._context, adapter)

    def set_threads(self, threads: int) -> None:
        self._threads = threads
        self._binding.llama_set_n_threads(self._context, threads, threads)

    def abort(self) -> None:
        self._abort_flag[0] = b"\1"

    def resume(self) -> None:
        self._abort_flag[0] = b"\0"

    def close(self) -> None:
        if self._context:
            self._binding.llama_free(self._context)
            self._context = None
        if self._projector is not None:
            self._projector.close()
        self._model.close()

    def _try_projector(self, path: Path, options: LlamaOptions, *, is_on_gpu: bool) -> Projector | None:
        try:
            return self._open_projector(path, options, is_on_gpu=is_on_gpu)
        except EnvironmentFaultError as error:
            if not options.is_projector_optional:
                raise
            self._images_refused = error.message
            _logger.warning("serving without images: %s", error.message)
            return None

    def _open_projector(self, path: Path, options: LlamaOptions, *, is_on_gpu: bool) -> Projector:
        return Projector(
            self._binding,
            self._log,
            self._model,
            path,
            encoder=options.projector_type,
            threads=self._threads,
            uses_gpu=is_on_gpu,
            flash_attention=_FLASH_ATTENTION[options.flash_attention],
            build=self._build,
        )

    def _evaluate_image(self, row: ImageRow, content: bytes) -> int:
        """llama.cpp's code for it: 0 is success. Raises InvalidValueError, EngineFaultError, UnsupportedInputError."""
        layout = self.image_layout(content)
        assert self._projector is not None
        runs = self._projector.prepare(content).runs
        lengths = [length for _, length in runs_of(layout, PLACEHOLDER)]
        if row.run >= len(lengths) or lengths[row.run] != row.length:
            raise EngineFaultError("an image of this session was sized for another model; append it again")
        position = row.position
        for chunk in runs[row.run]:
            embeddings = self._projector.encode(chunk)
            is_last = chunk is runs[row.run][-1]
            has_output = is_last and row.wants_logits != "none"
            batch = EmbeddingBatch(self._binding, embeddings, row.lane, position, has_output=has_output)
            code = self._decode_image(batch)
            if code != 0:
                return code
            position += len(embeddings)
        return 0

    def _decode_image(self, batch: EmbeddingBatch) -> int:
        assert self._projector is not None
        if not self._projector.is_non_causal:
            return int(self._binding.llama_decode(self._context, batch.batch))
        self._binding.llama_set_causal_attn(self._context, False)
        try:
            return int(self._binding.llama_decode(self._context, batch.batch))
        finally:
            self._binding.llama_set_causal_attn(self._context, True)

    def _choose_window(self, options: LlamaOptions, *, is_on_gpu: bool) -> Window:
        model = self._model
        room = Room(
            available_bytes=None if is_on_gpu else available_memory_bytes(),
            weights_bytes=model.weights_bytes,
            host_cache_bytes=options.host_cache_bytes,
            bytes_per_token=self._kv_type.size_bytes(model.kv_values_per_token),
            lanes=max(1, options.lanes),
            trained_tokens=model.trained_window_tokens,
        )
        wish = WindowWish(tokens=options.window_tokens, is_fitting_asked=options.is_window_fitted)
        return choose_window(wish, room)

    def _open_context(self, options: LlamaOptions, *, is_on_gpu: bool) -> Any:
        binding = self._binding
        if not 1 <= self._lanes <= binding.llama_max_parallel_sequences():
            raise UsageError(f"lanes must be 1 to {binding.llama_max_parallel_sequences()}, got {self._lanes}")
        if self._can_truncate and not is_on_gpu:
            needed = self._kv_type.size_bytes(self._model.kv_values_per_token * self._lanes * self._window)
            require_memory(needed, available_memory_bytes(), self._lanes, self._window)
        params = binding.llama_context_default_params()
        params.n_ctx = self._lanes * self._window
        params.n_seq_max = self._lanes
        params.n_batch = _batch_tokens(self._window)
        params.n_ubatch = self._micro_batch = self._micro_batch_tokens(is_on_gpu=is_on_gpu)
        params.n_threads = params.n_threads_batch = self._threads
        params.flash_attn_type = _FLASH_ATTENTION["on" if self._kv_type.is_quantized else options.flash_attention]
        params.type_k = params.type_v = self._kv_type.ggml_type
        params.kv_unified = False
        params.swa_full = False
        if self._can_truncate:
            params.abort_callback = _abort_callback(binding)
            params.abort_callback_data = ctypes.addressof(self._abort_flag)
        if options.evaluation_callback is not None:
            params.cb_eval = self._evaluation_callback = binding.ggml_backend_sched_eval_callback(
                options.evaluation_callback
            )
        self._log.forget_errors()
        context = binding.llama_init_from_model(self._model.handle, params)
        if not context:
            cause = self._log.cause() or "too little memory"
            raise ModelLoadError(f"llama.cpp makes no context of {self._lanes} x {self._window} tokens: {cause}")
        return context

    def _micro_batch_tokens(self, *, is_on_gpu: bool) -> int:
        """Where tokens of an image see those behind them, llama.cpp aborts unless the image is one micro-batch."""
        usual = GPU_MICRO_BATCH_TOKENS if is_on_gpu else CPU_MICRO_BATCH_TOKENS
        if self._projector is None or not self._projector.is_non_causal:
            return usual
        return max(usual, min(self._projector.largest_chunk_tokens, _batch_tokens(self._window)))

    def _warm_up(self, options: LlamaOptions, digest: str) -> ModelFacts:
        """Evaluates two tokens, so that the first request does not pay for it, and learns from the state they leave."""
        binding, model = self._binding, self._model
        self.step([Row(0, 0, np.zeros(_WARM_UP_TOKENS, np.int32))])
        state = bytes(self.export_lane(0))
        self.clear(0)
        is_transposed = None if model.has_recurrence else lane_state.has_transposed_values(state)
        is_flash = options.flash_attention != "off" if is_transposed is None else not is_transposed
        if self._can_truncate:
            cells = self._lanes * int(binding.llama_n_ctx_seq(self._context))
            kv_bytes = self._kv_bytes_per_token(state) * cells
        else:
            kv_bytes = self._log.state_bytes
        return ModelFacts(
            architecture=model.architecture,
            description=model.description,
            vocabulary_tokens=self._vocabulary_tokens,
            window_tokens=self._window,
            trained_window_tokens=model.trained_window_tokens,
            lanes=self._lanes,
            kv_bytes=kv_bytes,
            weights_bytes=model.weights_bytes,
            parameters=model.parameters,
            flash_attention=is_flash,
            can_truncate=self._can_truncate,
            threads=self._threads,
            engine="llamacpp",
            engine_build=self._build,
            state_key=self._state_key(digest, self._build, is_flash=is_flash),
            sampling_defaults=model.sampling_defaults(),
            media=None if self._projector is None else self._projector.facts,
            images_refused=self._images_refused,
            kv_type=self._kv_type.name,
            window_reason=self._fitted.reason,
            micro_batch_tokens=self._micro_batch,
        )

    def _kv_bytes_per_token(self, state: bytes) -> int:
        """The growth of an exported state from one token to the next, less its bookkeeping."""
        self.step([Row(0, 0, np.zeros(_WARM_UP_TOKENS - 1, np.int32), "none")])
        shorter = self.export_lane(0)
        self.clear(0)
        return len(state) - len(shorter) - lane_state.CELL_BYTES

    def _state_key(self, digest: str, build: str, *, is_flash: bool) -> str:
        """States of models that cannot be cut keep llama.cpp's own form, which depends on the lanes and the window."""
        kinds = [f"k={self._kv_type.name}", f"v={self._kv_type.name}", f"flash={is_flash}"]
        parts = [digest, build, library_identity(self._binding), *kinds]
        if not self._can_truncate:
            parts += [f"lanes={self._lanes}", f"window={self._window}"]
        return hashlib.blake2b("|".join(parts).encode(), digest_size=16).hexdigest()

    def _outputs(self, count: int) -> Logits:
        if count == 0:
            self._binding.llama_synchronize(self._context)
            return self._logits.none
        logits = self._logits.at(self._binding.llama_get_logits(self._context), count)
        if logits is None:
            raise EngineFaultError("llama.cpp evaluated a step but has no logits")
        return logits

    def _after_abort(self, rows: Sequence[Row]) -> StepResult:
        """Keeps what was evaluated, but of each row at least its last two tokens are left to be evaluated again: their
        logits are lost, and a single token would be evaluated with other roundings than in a chunk."""
        completed = []
        for row in rows:
            kept = min(self._held(row.lane) - row.position, len(row.tokens) - 2)
            self._lengths[row.lane] = self._held(row.lane)
            self.truncate(row.lane, row.position + max(0, kept))
            completed.append(max(0, kept))
        return StepResult(self._logits.none, tuple(completed))

    def _fail(self, lanes: Sequence[int], code: int) -> None:
        for lane in lanes:
            self.clear(lane)
        cause = self._log.cause()
        self._log.forget_errors()
        raise EngineFaultError(f"llama.cpp refused a step with code {code}" + (f": {cause}" if cause else ""))

    def _held(self, lane: int) -> int:
        return int(self._binding.llama_memory_seq_pos_max(self._memory, lane)) + 1

    def _remove(self, lane: int, start: int) -> bool:
        return bool(self._binding.llama_memory_seq_rm(self._memory, lane, start, -1))


def _threads(wanted: int | None) -> int:
    cpus = usable_cpus()
    if wanted is None:
        return usable_cores(cpus)
    if wanted > len(cpus):
        _logger.warning("%d threads are more than the %d CPUs of this process: using %d", wanted, len(cpus), len(cpus))
    return max(1, min(wanted, len(cpus)))


def _batch_tokens(window: int) -> int:
    return max(MINIMUM_BATCH_TOKENS, window)


def _abort_callback(binding: Any) -> Any:
    """``strlen`` of the flag: a C function, so that llama.cpp's threads need no GIL to ask. 0 goes on, 1 aborts."""
    strlen = ctypes.CDLL(None).strlen
    return ctypes.cast(strlen, binding.ggml_abort_callback)


def _bytes_pointer(array: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
