"""Which libllama is used, and whether it is one that the binding can speak to. Runs in the worker.

The binding loads its own build, or the one in ``LLAMA_CPP_LIB_PATH``, when it is imported. A foreign build is examined
in a child process first, since a call into a library with another layout may well crash. Checked are, in this order:
that it loads; every function the binding declares; its version; that the default parameters are as long as the binding
thinks (on x86-64, where that can be seen) and, read with its layout, hold only sane values (shifted fields do not); and
that a batch it allocates has its arrays where the binding looks for them.
"""

import ctypes
import importlib
import os
import platform
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Final

from superfluid.errors import EngineLibraryError

BINDING_LLAMA_VERSION: Final = "0.5."
"""What llama-cpp-python 0.3.36 was generated from; its functions and records are those of this series."""

LIBRARY_VARIABLE: Final = "LLAMA_CPP_LIB_PATH"
_PROBE_SECONDS: Final = 30.0
_TYPE_F16 = 1
_PROBE_BATCH = 4
_PROBE_ROOM_BYTES = 4096


def load_binding(library: Path | None, environment: MutableMapping[str, str] = os.environ) -> Any:
    """The binding's low-level module, on ``library`` (a file, or a directory that holds one) or on its own build.

    Takes effect once a process: the binding keeps the library it was imported with. Raises EngineLibraryError.
    """
    if library is not None:
        directory = find_library(library)
        _probe(directory)
        environment[LIBRARY_VARIABLE] = str(directory)
    else:
        environment.pop(LIBRARY_VARIABLE, None)
    return _import_binding()


def find_library(library: Path) -> Path:
    """The directory that the binding must be pointed at. Raises EngineLibraryError."""
    names = ("libllama.so", "libllama.dylib") if sys.platform == "darwin" else ("libllama.so",)
    directory = library if library.is_dir() else library.parent
    found = next((directory / name for name in names if (directory / name).exists()), None)
    if found is None or not library.exists():
        raise EngineLibraryError(f"there is no {' or '.join(names)} at {library}")
    if not library.is_dir() and not library.samefile(found):
        raise EngineLibraryError(f"{library} is another file than {found}, which the binding would load")
    return directory.resolve()


def library_identity(binding: Any) -> str:
    """What tells this libllama from any other whose version is the same: the files it consists of, as the file system
    knows them, and what the processor offers it. For keys of what it has computed."""
    library = Path(binding._lib._name)
    files = sorted(path for path in library.parent.glob("lib*") if path.is_file())
    facts = [f"{path.name}:{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in files]
    return "|".join([*facts, binding.llama_print_system_info().decode(errors="replace")])


def check_binding(binding: Any) -> None:
    """Raises EngineLibraryError unless the library behind ``binding`` matches it. May crash if it does not."""
    version = (binding.llama_version() or b"").decode(errors="replace")
    if not version.startswith(BINDING_LLAMA_VERSION):
        raise EngineLibraryError(f"this libllama is version {version!r}, the binding needs {BINDING_LLAMA_VERSION}x")
    problems = [
        *_length_problems(binding),
        *model_params_problems(binding.llama_model_default_params()),
        *context_params_problems(binding.llama_context_default_params()),
        *_batch_problems(binding),
    ]
    if problems:
        raise EngineLibraryError(f"this libllama does not match the binding: {'; '.join(problems)}")


def written_bytes(function: Any) -> int:
    """How long the record is that a C function without arguments returns in memory.

    By x86-64's calling convention such a function gets the record's address as a hidden first argument.
    """
    prototype = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    call = prototype(ctypes.cast(function, ctypes.c_void_p).value or 0)
    length = 0
    for poison in (0x55, 0xAA):
        room = (ctypes.c_ubyte * _PROBE_ROOM_BYTES)(*[poison] * _PROBE_ROOM_BYTES)
        call(ctypes.addressof(room))
        length = max([length, *(index + 1 for index, byte in enumerate(room) if byte != poison)])
    return length


def model_params_problems(params: Any) -> list[str]:
    """What is implausible about default model parameters."""
    expected = {
        "devices": not params.devices,
        "tensor_buft_overrides": not params.tensor_buft_overrides,
        "split_mode": 0 <= params.split_mode <= 8,
        "main_gpu": params.main_gpu == 0,
        "tensor_split": not params.tensor_split,
        "progress_callback": not params.progress_callback,
        "kv_overrides": not params.kv_overrides,
        "vocab_only": not params.vocab_only,
        "check_tensors": not params.check_tensors,
    }
    return _named("llama_model_params", expected)


def context_params_problems(params: Any) -> list[str]:
    """What is implausible about default context parameters."""
    expected = {
        "n_batch": 1 <= params.n_batch <= 1 << 20,
        "n_ubatch": 1 <= params.n_ubatch <= params.n_batch,
        "n_seq_max": params.n_seq_max == 1,
        "n_threads": 1 <= params.n_threads <= 1024 and params.n_threads == params.n_threads_batch,
        "rope_scaling_type": params.rope_scaling_type == -1,
        "pooling_type": params.pooling_type == -1,
        "attention_type": params.attention_type == -1,
        "flash_attn_type": -1 <= params.flash_attn_type <= 1,
        "rope_freq_base": params.rope_freq_base == 0.0 and params.rope_freq_scale == 0.0,
        "yarn_orig_ctx": params.yarn_orig_ctx == 0,
        "cb_eval": not params.cb_eval and not params.cb_eval_user_data,
        "type_k": params.type_k == _TYPE_F16 and params.type_v == _TYPE_F16,
        "abort_callback": not params.abort_callback and not params.abort_callback_data,
        "embeddings": not params.embeddings,
        "n_samplers": not params.samplers and params.n_samplers == 0,
        "ctx_other": not params.ctx_other,
    }
    return _named("llama_context_params", expected)


def _length_problems(binding: Any) -> list[str]:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return []
    problems = []
    for record in (binding.llama_model_params, binding.llama_context_params):
        name = record.__name__
        length = written_bytes(getattr(binding, name.replace("_params", "_default_params")))
        last = getattr(record, record._fields_[-1][0])
        # Less than the whole record may be written: there can be padding behind the last field.
        if not last.offset < length <= ctypes.sizeof(record):
            problems.append(f"{name} has {length} bytes, the binding knows {ctypes.sizeof(record)}")
    return problems


def _named(record: str, expected: dict[str, bool]) -> list[str]:
    return [f"{record}.{name} is implausible" for name, is_plausible in expected.items() if not is_plausible]


def _batch_problems(binding: Any) -> list[str]:
    batch = binding.llama_batch_init(_PROBE_BATCH, 0, 1)
    arrays = (batch.token, batch.pos, batch.n_seq_id, batch.seq_id, batch.logits)
    if not all(arrays) or batch.embd or batch.n_tokens != 0 or batch.seq_id[_PROBE_BATCH]:
        return ["llama_batch is laid out differently"]
    binding.llama_batch_free(batch)
    return []


def _import_binding() -> Any:
    try:
        return importlib.import_module("llama_cpp.llama_cpp")
    except AttributeError as error:
        raise EngineLibraryError(f"this libllama lacks a function that the binding needs: {error}") from error
    except (OSError, RuntimeError) as error:
        raise EngineLibraryError(f"libllama does not load: {error}") from error
    except ImportError as error:
        raise EngineLibraryError(f"the llama.cpp binding cannot be imported: {error}") from error


def _probe(directory: Path) -> None:
    """Examines the library in a child process. Raises EngineLibraryError."""
    try:
        child = subprocess.run(
            [sys.executable, "-m", __name__, str(directory)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineLibraryError(f"the libllama in {directory} hung when it was examined") from None
    if child.returncode < 0:
        raise EngineLibraryError(f"the libllama in {directory} crashed when it was examined")
    if child.returncode != 0:
        lines = child.stderr.strip().splitlines() or ["no reason given"]
        raise EngineLibraryError(f"the libllama in {directory} is refused: {lines[-1]}")


def _examine(directory: str) -> int:
    os.environ[LIBRARY_VARIABLE] = directory
    try:
        check_binding(_import_binding())
    except EngineLibraryError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_examine(sys.argv[1]))
