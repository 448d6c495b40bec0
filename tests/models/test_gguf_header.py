import contextlib
import struct
import time
from pathlib import Path

import gguf as reference
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fixtures.gguf_bytes import (
    ARRAY,
    U64,
    entry,
    gguf,
    small_model,
    string_entry,
    strings_entry,
    tensor,
    text,
    u32_entry,
)

from superfluid.errors import ModelFileError
from superfluid.models.gguf_header import TENSOR_BLOCKS, read_gguf_header, require_sound_model

Q8_0 = 8


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    return path


def refused(tmp_path: Path, content: bytes, match: str) -> None:
    with pytest.raises(ModelFileError, match=match):
        require_sound_model(written(tmp_path, content))


def test_header_of_a_sound_file_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, small_model("Tiny", weights=64))
    header = require_sound_model(path)
    assert (header.version, header.tensors, header.parameters) == (3, 1, 64)
    assert (header.architecture, header.name, header.trained_window_tokens) == ("llama", "Tiny", 512)
    assert header.file_bytes == path.stat().st_size
    assert header.data_bytes_missing == 0


def test_header_written_by_the_reference_library_is_read(tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "m.gguf"
    writer = reference.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_array("nested", [[1, 2], [3, 4]])
    writer.add_token_list([f"t{number}" for number in range(1000)])
    writer.add_custom_alignment(64)
    writer.add_tensor("a", np.zeros((4, 32), dtype=np.float32))
    writer.add_tensor("b", np.zeros((7,), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = require_sound_model(path)
    assert (header.tensors, header.parameters, header.trained_window_tokens) == (2, 135, 4096)


def test_tensor_blocks_agree_with_the_reference_library() -> None:
    sizes = {int(kind): size for kind, size in reference.GGML_QUANT_SIZES.items() if kind.name != "Q8_1"}
    assert sizes == {kind: TENSOR_BLOCKS[kind] for kind in sizes}


def test_header_of_a_quantized_tensor_counts_blocks(tmp_path: Path) -> None:
    content = gguf([], [tensor("a", (64, 2), Q8_0, 0)], bytes(128 // 32 * 34))
    assert require_sound_model(written(tmp_path, content)).parameters == 128
    refused(tmp_path, content[:-1], r"truncated: 1 bytes")


def test_header_with_its_own_alignment_places_the_data_there(tmp_path: Path) -> None:
    entries = [u32_entry("general.alignment", 4096)]
    content = gguf(entries, [tensor("a", (8,), 0, 0)], bytes(32), alignment=4096)
    require_sound_model(written(tmp_path, content))
    refused(tmp_path, content[:-32], r"truncated: 32 bytes")


def test_file_cut_in_its_tensors_names_what_is_missing(tmp_path: Path) -> None:
    refused(
        tmp_path, small_model(weights=1000)[:-1500], r"m\.gguf is truncated: 1,500 bytes of its tensors are missing"
    )


@pytest.mark.parametrize("kept", [5, 20, 30, 60, 100])
def test_file_cut_in_its_header_says_truncated(tmp_path: Path, kept: int) -> None:
    refused(tmp_path, small_model()[:kept], "truncated: it ends inside its header")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is empty"),
        (b"GG", "is no GGUF"),
        (b"hello world", "is no GGUF file; models in other formats"),
        (b"PK\x03\x04....", "zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "LFS pointer"),
        (b"<!doctype html>", "web page"),
        (b"tjgg....", "older GGML format"),
    ],
)
def test_file_that_is_no_gguf_says_what_it_looks_like(tmp_path: Path, content: bytes, match: str) -> None:
    refused(tmp_path, content, match)


@pytest.mark.parametrize(("version", "match"), [(1, "version 1;"), (4, "version 4;"), (0x03000000, "big-endian GGUF")])
def test_gguf_of_an_unknown_version_is_refused(tmp_path: Path, version: int, match: str) -> None:
    refused(tmp_path, gguf([], [], b"", version=version), match)


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
        gguf([entry("a", 99, b"")], [], b""),
        gguf([entry("a", ARRAY, struct.pack("<IQ", 8, 1 << 62))], [], b""),
        gguf([entry("a", ARRAY, struct.pack("<IQ", 77, 2))], [], b""),
        gguf([entry("a", ARRAY, struct.pack("<IQ", ARRAY, 1) * 9)], [], b""),
        gguf([struct.pack("<Q", 1 << 63)], [], b""),
        gguf([u32_entry("general.alignment", 0)], [tensor("a", (1,), 0, 0)], bytes(64)),
        gguf([string_entry("general.alignment", "x")], [tensor("a", (1,), 0, 0)], bytes(64)),
        gguf([], [text("a") + struct.pack("<I", 1 << 30)], bytes(64)),
    ],
)
def test_header_with_implausible_numbers_is_damaged(tmp_path: Path, content: bytes) -> None:
    refused(tmp_path, content, "damaged header")


def test_header_with_facts_of_the_wrong_type_leaves_them_unknown(tmp_path: Path) -> None:
    entries = [entry("general.architecture", U64, struct.pack("<Q", 5)), u32_entry("general.name", 7)]
    header = read_gguf_header(written(tmp_path, gguf(entries, [], b"")))
    assert (header.architecture, header.name, header.trained_window_tokens) == (None, None, None)


def test_header_of_a_missing_or_unreadable_file_is_a_model_file_error(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(ModelFileError, match="cannot be read"):
            read_gguf_header(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 300), flipped=st.integers(1, 255), kept=st.integers(0, 600))
def test_header_with_any_byte_changed_or_cut_ends_in_a_header_or_one_error(
    tmp_path: Path, position: int, flipped: int, kept: int
) -> None:
    content = bytearray(small_model())
    content[position % len(content)] ^= flipped
    # Any other exception, a MemoryError above all, fails the test.
    with contextlib.suppress(ModelFileError):
        assert read_gguf_header(written(tmp_path, bytes(content[:kept]))).version in (2, 3)


def test_header_with_a_large_vocabulary_is_read_quickly(tmp_path: Path) -> None:
    path = written(tmp_path, gguf([strings_entry("tokens", [f"token{number}" for number in range(100_000)])], [], b""))
    best = min(_cpu_seconds_to_read(path) for _ in range(3))
    assert best < 0.2  # 0.01 s on a quiet machine


def _cpu_seconds_to_read(path: Path) -> float:
    start = time.process_time()
    read_gguf_header(path)
    return time.process_time() - start
