"""Model files on disk: parts, identity, and what is wrong with them."""

from pathlib import Path

import pytest

from superfluid.engine.model_file import files_digest, model_files
from superfluid.errors import ModelFileError


def _write(path: Path, content: bytes = b"GGUF rest") -> Path:
    path.write_bytes(content)
    return path


def test_model_files_of_a_split_model_are_all_its_parts(tmp_path: Path) -> None:
    parts = [_write(tmp_path / f"m-{part:05d}-of-00003.gguf") for part in (1, 2, 3)]
    assert model_files(parts[0]) == parts


def test_model_files_missing_part_is_named(tmp_path: Path) -> None:
    first = _write(tmp_path / "m-00001-of-00002.gguf")
    with pytest.raises(ModelFileError, match="m-00002-of-00002"):
        model_files(first)


def test_model_files_other_part_than_the_first_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="first part"):
        model_files(_write(tmp_path / "m-00002-of-00002.gguf"))


@pytest.mark.parametrize(("content", "cause"), [(b"", "empty"), (b"PK\3\4", "not a GGUF")])
def test_model_files_other_content_is_refused(tmp_path: Path, content: bytes, cause: str) -> None:
    with pytest.raises(ModelFileError, match=cause):
        model_files(_write(tmp_path / "m.gguf", content))


def test_model_files_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read"):
        model_files(tmp_path)


@pytest.mark.parametrize("offset", [0, 1_000, 4_000_000, 8_000_000 - 1])
def test_files_digest_a_change_at_the_edges_or_in_a_sample_shows(tmp_path: Path, offset: int) -> None:
    content = bytearray(8_000_000)
    before = files_digest([_write(tmp_path / "a", bytes(content))])
    assert files_digest([_write(tmp_path / "b", bytes(content))]) == before
    content[offset] = 1
    assert files_digest([_write(tmp_path / "c", bytes(content))]) != before


def test_files_digest_length_alone_shows(tmp_path: Path) -> None:
    assert files_digest([_write(tmp_path / "a", bytes(5))]) != files_digest([_write(tmp_path / "b", bytes(6))])
