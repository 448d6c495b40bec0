"""Loading llama.cpp's low-level binding alone. In processes of their own, since a library is loaded once."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.vocabulary_gguf import write_vocabulary

from superfluid.chat.llama_library import load_llama_library
from superfluid.errors import EngineLibraryError


def _run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "LLAMA_CPP_LIB_PATH": "/nowhere"},
    )


def test_daemon_gets_the_binding_without_numpy_and_silently(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", kind="bpe")
    script = (
        "import os, sys; from superfluid.chat.tokenizer import LlamaTokenizer; LlamaTokenizer(sys.argv[1]);"
        "print('numpy' in sys.modules, 'llama_cpp' in sys.modules, os.environ['LLAMA_CPP_LIB_PATH'])"
    )
    done = _run(script, str(path))
    assert (done.stdout, done.stderr, done.returncode) == ("False False /nowhere\n", "", 0)


def test_whole_package_can_still_be_imported_afterwards() -> None:
    script = (
        "import os; from superfluid.chat.llama_library import load_llama_library; low = load_llama_library();"
        "os.environ.pop('LLAMA_CPP_LIB_PATH'); import llama_cpp; assert llama_cpp.llama_cpp is low; llama_cpp.Llama"
    )
    done = _run(script)
    assert (done.stderr, done.returncode) == ("", 0)


def test_library_that_is_not_there_is_refused(tmp_path: Path) -> None:
    script = (
        "import sys; from superfluid.chat.llama_library import load_llama_library;"
        "from superfluid.errors import EngineLibraryError\n"
        "try: load_llama_library(sys.argv[1])\n"
        "except EngineLibraryError as error: print(error.code)"
    )
    assert _run(script, str(tmp_path)).stdout == "engine_library\n"


def test_binding_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "llama_cpp.llama_cpp", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(EngineLibraryError, match="not installed"):
        load_llama_library()
