"""Another libllama: found, examined in a child process, taken or refused. Real libraries, no stand-ins for ctypes."""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import llama_cpp.llama_cpp as binding
import pytest

from superfluid.engine import llama_library
from superfluid.engine.llama_library import library_identity
from superfluid.errors import EngineLibraryError

OWN_DIRECTORY = Path(binding.__file__).parent / "lib"
NAME = "libllama.dylib" if sys.platform == "darwin" else "libllama.so"


@pytest.fixture
def own_copy(tmp_path: Path) -> Path:
    """The binding's own libraries, elsewhere."""
    for library in OWN_DIRECTORY.iterdir():
        (tmp_path / library.name).symlink_to(library)
    return tmp_path


def test_library_directory_takes_the_file_or_its_directory(own_copy: Path) -> None:
    assert llama_library.find_library(own_copy) == own_copy.resolve()
    assert llama_library.find_library(own_copy / NAME) == own_copy.resolve()


def test_library_directory_without_a_library_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", tmp_path / NAME):
        with pytest.raises(EngineLibraryError, match="libllama"):
            llama_library.find_library(path)


def test_library_directory_other_file_than_the_binding_would_load_is_refused(own_copy: Path) -> None:
    other = own_copy / "libother.so"
    other.write_bytes(b"")
    with pytest.raises(EngineLibraryError, match=r"libother\.so"):
        llama_library.find_library(other)


def test_load_binding_matching_library_is_taken(own_copy: Path) -> None:
    environment: dict[str, str] = {}
    assert llama_library.load_binding(own_copy, environment) is binding
    assert environment == {"LLAMA_CPP_LIB_PATH": str(own_copy.resolve())}


def test_load_binding_without_one_ignores_the_bindings_own_variable() -> None:
    environment = {"LLAMA_CPP_LIB_PATH": "/elsewhere"}
    llama_library.load_binding(None, environment)
    assert environment == {}


def test_load_binding_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"no library")
    with pytest.raises(EngineLibraryError, match="does not load"):
        llama_library.load_binding(tmp_path, {})


def test_load_binding_library_without_the_functions_is_refused(tmp_path: Path) -> None:
    base = next(OWN_DIRECTORY.glob("libggml-base.*"))
    shutil.copyfile(base.resolve(), tmp_path / NAME)
    with pytest.raises(EngineLibraryError, match="llama_"):
        llama_library.load_binding(tmp_path, {})


_STAND_IN = """
#include <stdlib.h>
{functions}
const char * llama_version(void) {{ {version} }}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("version", "cause"),
    [('return "0.4.9";', "0.4.9"), ('return "0.5.0";', "implausible|crashed"), ("abort();", "crashed")],
    ids=["older", "other-layout", "crashing"],
)
def test_load_binding_foreign_build_with_all_the_names_is_refused(tmp_path: Path, version: str, cause: str) -> None:
    """A library that has every function, and does something else: parameters come back as noise, or it crashes."""
    names = {name for name in dir(binding) if name.startswith(("llama_", "ggml_")) and hasattr(binding._lib, name)} - {
        "llama_version"
    }
    functions = "\n".join(f"void * {name}(void) {{ return (void *) 1; }}" for name in sorted(names))
    source = tmp_path / "stand_in.c"
    source.write_text(_STAND_IN.format(functions=functions, version=version))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tmp_path / NAME), str(source)], check=True)
    with pytest.raises(EngineLibraryError, match=cause):
        llama_library.load_binding(tmp_path, {})


@pytest.mark.skipif(platform.machine() != "x86_64" or shutil.which("cc") is None, reason="needs x86-64 and a compiler")
@pytest.mark.parametrize("length", [24, 72, 160, 1000])
def test_written_bytes_is_the_length_of_the_returned_record(tmp_path: Path, length: int) -> None:
    source = tmp_path / "record.c"
    source.write_text(
        f"struct record {{ char bytes[{length}]; }};\n"
        f"struct record make(void) {{ struct record r = {{{{0}}}}; r.bytes[{length - 1}] = 1; return r; }}"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tmp_path / "record.so"), str(source)], check=True)
    assert llama_library.written_bytes(ctypes.CDLL(str(tmp_path / "record.so")).make) == length


def test_check_binding_own_library_matches() -> None:
    llama_library.check_binding(binding)


@pytest.mark.parametrize("shift", [4, 8, -4, -8, 16])
def test_params_problems_shifted_fields_are_noticed(shift: int) -> None:
    for default, problems in [
        (binding.llama_model_default_params, llama_library.model_params_problems),
        (binding.llama_context_default_params, llama_library.context_params_problems),
    ]:
        params = default()
        assert problems(params) == []
        content = bytes(params)
        moved = content[shift:] + bytes(shift) if shift > 0 else bytes(-shift) + content[:shift]
        ctypes.memmove(ctypes.byref(params), moved, len(moved))
        assert problems(params) != []


class _FakeBinding:
    def __init__(self, library: Path, system: bytes = b"CPU : AVX2 = 1") -> None:
        self._lib = SimpleNamespace(_name=str(library))
        self.llama_print_system_info = lambda: system


def test_identity_differs_with_any_library_file_and_with_the_processor(tmp_path: Path) -> None:
    library = tmp_path / "libllama.so"
    library.write_bytes(b"one")
    (tmp_path / "libggml.so").write_bytes(b"two")
    identities = [library_identity(_FakeBinding(library))]
    assert library_identity(_FakeBinding(library)) == identities[0]
    identities.append(library_identity(_FakeBinding(library, b"CPU : AVX512 = 1")))
    (tmp_path / "libggml.so").write_bytes(b"other")
    identities.append(library_identity(_FakeBinding(library)))
    os.utime(library, (1, 1))
    identities.append(library_identity(_FakeBinding(library)))
    assert len(set(identities)) == 4
