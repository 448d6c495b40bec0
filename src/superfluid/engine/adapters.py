"""LoRA adapters on top of a model that llama.cpp has loaded. Runs in the worker."""

import ctypes
from pathlib import Path
from typing import Any, Final

import numpy as np

from superfluid.engine.interface import Row
from superfluid.engine.llama_batch import BatchArrays
from superfluid.engine.llama_log import LlamaLog
from superfluid.engine.llama_model import LlamaModel
from superfluid.errors import AdapterRefusedError

_PROBE_TOKENS: Final = 2
_PROBE_WINDOW: Final = 64


class LoraAdapters:
    """The loaded adapters by number, and which one is applied. They are freed with their model."""

    def __init__(self, binding: Any, log: LlamaLog, model: LlamaModel) -> None:
        self._binding = binding
        self._log = log
        self._model = model
        self._handles: dict[int, Any] = {}
        self._applied = 0

    def load(self, adapter: int, path: Path) -> None:
        """Raises AdapterRefusedError. A file that makes llama.cpp abort does so here, not under somebody's request."""
        assert adapter > 0, "0 is the model alone"
        assert adapter not in self._handles, "adapter numbers are used once"
        self._log.forget_errors()
        handle = self._binding.llama_adapter_lora_init(self._model.handle, str(path).encode())
        if not handle:
            raise AdapterRefusedError(f"llama.cpp does not take {path}: {self._log.cause() or 'it gives no reason'}")
        try:
            self._probe(handle, path)
        except AdapterRefusedError:
            self._binding.llama_adapter_lora_free(handle)
            raise
        self._handles[adapter] = handle

    def free(self, adapter: int) -> None:
        """Unknown numbers are ignored."""
        assert adapter != self._applied, "an adapter in use is not freed"
        handle = self._handles.pop(adapter, None)
        if handle is not None:
            self._binding.llama_adapter_lora_free(handle)

    def apply(self, context: Any, adapter: int) -> None:
        """0 takes off what was applied. Raises KeyError for a number that is not loaded."""
        if adapter != self._applied:
            self._set(context, self._handles[adapter] if adapter else None)
            self._applied = adapter

    def _set(self, context: Any, handle: Any) -> None:
        binding = self._binding
        if handle is None:
            binding.llama_set_adapters_lora(context, None, 0, None)
            return
        handles = (binding.llama_adapter_lora_p_ctypes * 1)(handle)
        binding.llama_set_adapters_lora(context, handles, 1, (ctypes.c_float * 1)(1.0))

    def _probe(self, handle: Any, path: Path) -> None:
        """Evaluates two tokens with it in a small context of its own, so that no lane is touched."""
        binding = self._binding
        params = binding.llama_context_default_params()
        params.n_ctx, params.n_seq_max = _PROBE_WINDOW, 1
        params.n_batch = params.n_ubatch = _PROBE_TOKENS
        params.n_threads = params.n_threads_batch = 1
        context = binding.llama_init_from_model(self._model.handle, params)
        if not context:
            raise AdapterRefusedError(f"there is too little memory to try out {path}")
        try:
            self._set(context, handle)
            batch = BatchArrays(binding, _PROBE_TOKENS)
            batch.fill([Row(0, 0, np.zeros(_PROBE_TOKENS, np.int32))])
            code = binding.llama_decode(context, batch.batch)
            if code != 0:
                raise AdapterRefusedError(f"llama.cpp does not evaluate a step with {path} (code {code})")
            logits = np.ctypeslib.as_array(binding.llama_get_logits(context), (self._model.vocabulary_tokens,))
            if not np.isfinite(logits).all():
                raise AdapterRefusedError(f"{path} is damaged: with it the model gives no numbers")
        finally:
            binding.llama_free(context)
