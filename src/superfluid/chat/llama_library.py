"""The door to llama.cpp for the daemon: its low-level binding, without the package around it. Nothing happens at
import."""

import importlib
import importlib.util
import os
import sys
import types
from typing import Any

from superfluid.errors import EngineLibraryError

_PACKAGE = "llama_cpp"
_MODULE = "llama_cpp.llama_cpp"
_LIBRARY_VARIABLE = "LLAMA_CPP_LIB_PATH"

_log_callback: Any = None
"""Kept alive for as long as the library may call it."""


def load_llama_library(llama_library_path: str | None = None) -> Any:
    """The module ``llama_cpp.llama_cpp``, with llama.cpp's own log silenced. Loads the library on first use.

    ``llama_library_path`` is a directory with another build of libllama (or that file); it counts on first use only.
    The package's ``__init__`` would pull in its high-level interface and numpy, 22 MB that the daemon has no use for: a
    bare stand-in takes its place while the submodule loads. Raises EngineLibraryError.
    """
    module = sys.modules.get(_MODULE)
    if module is None:
        module = _import_low_level(llama_library_path)
    _silence(module)
    return module


def _import_low_level(llama_library_path: str | None) -> types.ModuleType:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise EngineLibraryError("llama-cpp-python is not installed")
    stand_in = None
    if _PACKAGE not in sys.modules:
        stand_in = types.ModuleType(_PACKAGE)
        stand_in.__path__ = list(spec.submodule_search_locations)
        sys.modules[_PACKAGE] = stand_in
    # The worker loads what it is told to and nothing else; so do we.
    previous = os.environ.pop(_LIBRARY_VARIABLE, None)
    try:
        if llama_library_path is not None:
            is_file = os.path.isfile(llama_library_path)
            os.environ[_LIBRARY_VARIABLE] = os.path.dirname(llama_library_path) if is_file else llama_library_path
        return importlib.import_module(_MODULE)
    except (OSError, ImportError, AttributeError, RuntimeError) as error:
        # AttributeError is a symbol that the binding expects and this build lacks.
        raise EngineLibraryError(f"libllama could not be loaded: {error}") from error
    finally:
        os.environ.pop(_LIBRARY_VARIABLE, None)
        if previous is not None:
            os.environ[_LIBRARY_VARIABLE] = previous
        if stand_in is not None:
            # Whoever imports the package later gets the real one, around the submodule that is loaded.
            del sys.modules[_PACKAGE]


def _silence(module: Any) -> None:
    global _log_callback
    if _log_callback is None:
        _log_callback = module.llama_log_callback(_drop_log)
        module.llama_log_set(_log_callback, None)


def _drop_log(_level: int, _text: bytes, _user_data: Any) -> None:
    """The worker that loaded the same file has reported whatever there was to say."""
