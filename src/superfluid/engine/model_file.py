"""A GGUF on disk before and beside the engine: is it there, is it whole, which file is it. Runs in the worker."""

import hashlib
import os
import re
from pathlib import Path
from typing import BinaryIO, Final

from superfluid.errors import ModelFileError

_MAGIC: Final = b"GGUF"
_SPLIT: Final = re.compile(r"^(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf$")
_EDGE_BYTES: Final = 1 << 20
_SAMPLE_BYTES: Final = 1 << 16
_SAMPLES: Final = 16


def model_files(path: Path) -> list[Path]:
    """The file, or all parts of a split model whose first part it is.

    Raises ModelFileError if one is missing, unreadable or no GGUF.
    """
    files = _parts(path)
    for file in files:
        _check(file)
    return files


def files_digest(files: list[Path]) -> str:
    """An identity that costs little however big the model: sizes, edges and evenly spread samples of every file."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            digest.update(size.to_bytes(8, "little"))
            digest.update(_read_at(stream, 0, _EDGE_BYTES))
            for sample in range(1, _SAMPLES):
                digest.update(_read_at(stream, size * sample // _SAMPLES, _SAMPLE_BYTES))
            digest.update(_read_at(stream, max(0, size - _EDGE_BYTES), _EDGE_BYTES))
    return digest.hexdigest()


def _parts(path: Path) -> list[Path]:
    match = _SPLIT.match(path.name)
    if match is None:
        return [path]
    if int(match["part"]) != 1:
        raise ModelFileError(f"{path} is part {int(match['part'])} of a split model: name its first part")
    names = [f"{match['stem']}-{part:05d}-of-{match['parts']}.gguf" for part in range(1, int(match["parts"]) + 1)]
    return [path.with_name(name) for name in names]


def _check(file: Path) -> None:
    try:
        with file.open("rb") as stream:
            magic = stream.read(len(_MAGIC))
    except FileNotFoundError:
        raise ModelFileError(f"there is no model file {file}") from None
    except OSError as error:
        raise ModelFileError(f"the model file {file} cannot be read: {error.strerror}") from error
    if magic != _MAGIC:
        raise ModelFileError(f"{file} is not a GGUF file" if magic else f"the model file {file} is empty")


def _read_at(stream: BinaryIO, offset: int, count: int) -> bytes:
    stream.seek(offset)
    return stream.read(count)
