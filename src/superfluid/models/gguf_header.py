"""A look into a GGUF file's header without llama.cpp, so that the daemon can refuse a wrong or cut file at once.

It reads everything bounds-checked and trusts nothing: a damaged header ends in ModelFileError, never in a crash.
The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from superfluid.errors import ModelFileError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_READ_BYTES = 1 << 20

# Far beyond any model there is, and small enough that a lying header costs no time or memory.
_MAX_ENTRIES = 1 << 17
_MAX_ARRAY = 1 << 22
_MAX_STRING = 1 << 26
_MAX_HEADER_BYTES = 1 << 28
_MAX_ALIGNMENT = 1 << 20

# ggml type id -> (elements of a block, bytes of a block), from ggml.c's type traits.
TENSOR_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip


class GgufAdapter(Struct, frozen=True, kw_only=True):
    """What the file says of itself where it is one for another model: its kind (``lora``), the alpha that its product
    is scaled by over the rank, and whether it is to be switched on by tokens of the prompt."""

    kind: str | None
    alpha: float | None
    is_invoked: bool


class GgufHeader(Struct, frozen=True, kw_only=True):
    """What the header tells. ``data_bytes_missing`` > 0 means the file ends before its last tensor does."""

    version: int
    file_bytes: int
    tensors: int
    parameters: int
    architecture: str | None
    name: str | None
    trained_window_tokens: int | None
    data_bytes_missing: int
    projector_type: str | None = None
    """What an image encoder's file calls its kind; ``None`` for all other files."""
    adapter: GgufAdapter | None = None
    """``None`` if the file does not call itself an adapter."""


class _DamagedError(Exception):
    """What is wrong with the header, without the file's name."""


def read_gguf_header(path: Path) -> GgufHeader:
    """Reads the header of ``path``: a few MB, tens of milliseconds, blocking.

    Raises ModelFileError if the file cannot be read, is no GGUF, has an unknown version, or has a damaged header.
    """
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            return _Reader(file, file_bytes).header()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    except _DamagedError as error:
        raise ModelFileError(f"{path} {error}") from error


def require_sound_model(path: Path) -> GgufHeader:
    """The header of a model that is all there. Raises ModelFileError as above, and if tensors are cut off or absent."""
    header = read_gguf_header(path)
    if header.data_bytes_missing > 0:
        raise ModelFileError(
            f"{path} is truncated: {header.data_bytes_missing:,} bytes of its tensors are missing; fetch it again"
        )
    return header


class _Reader:
    """A cursor over the file's head that reads on as it is asked for more."""

    def __init__(self, file: BinaryIO, file_bytes: int) -> None:
        self._file = file
        self._file_bytes = file_bytes
        self._head = bytearray()
        self._at = 0

    def header(self) -> GgufHeader:
        version = self._preamble()
        tensors, entries = self._u64(), self._u64()
        if tensors > _MAX_ENTRIES or entries > _MAX_ENTRIES:
            raise _DamagedError(f"has a damaged header: {tensors} tensors and {entries} entries are not plausible")
        values = self._metadata(entries)
        parameters, data_bytes = self._tensor_sizes(tensors)
        end = self._data_start(values.get("general.alignment", 32)) + data_bytes if tensors else self._at
        architecture = values.get("general.architecture")
        window = values.get(f"{architecture}.context_length")
        name = values.get("general.name")
        sees_images = values.get("clip.has_vision_encoder") is True
        projector_type = values.get("clip.projector_type") or values.get("clip.vision.projector_type")
        kind, alpha = values.get("adapter.type"), values.get("adapter.lora.alpha")
        adapter = GgufAdapter(
            kind=kind if isinstance(kind, str) else None,
            alpha=alpha if isinstance(alpha, float) else None,
            is_invoked="adapter.alora.invocation_tokens" in values,
        )
        return GgufHeader(
            version=version,
            file_bytes=self._file_bytes,
            tensors=tensors,
            parameters=parameters,
            architecture=architecture if isinstance(architecture, str) else None,
            name=name if isinstance(name, str) else None,
            trained_window_tokens=window if isinstance(window, int) else None,
            data_bytes_missing=max(0, end - self._file_bytes),
            projector_type=projector_type if sees_images and isinstance(projector_type, str) else None,
            adapter=adapter if values.get("general.type") == "adapter" else None,
        )

    def _preamble(self) -> int:
        if self._file_bytes == 0:
            raise _DamagedError("is empty")
        magic = self._take(4) if self._file_bytes >= 4 else b""
        if magic != b"GGUF":
            raise _DamagedError("is no GGUF file" + _guess(magic))
        version = self._u32()
        if version in (2, 3):
            return version
        if int.from_bytes(version.to_bytes(4, "little"), "big") in (2, 3):
            raise _DamagedError("is a big-endian GGUF file, which llama.cpp does not read on this machine")
        raise _DamagedError(f"has GGUF version {version}; versions 2 and 3 can be served")

    def _metadata(self, entries: int) -> dict[str, object]:
        values: dict[str, object] = {}
        for _ in range(entries):
            key = self._text()
            values[key] = self._value(self._u32())
        return values

    def _value(self, kind: int) -> object:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            self._skip_array()
            return None
        return self._unpack(_scalar(kind))

    def _skip_array(self, depth: int = 0) -> None:
        kind, count = self._u32(), self._u64()
        if count > _MAX_ARRAY or depth > 4:
            raise _DamagedError(f"has a damaged header: an array of {count} values is not plausible")
        if kind == _ARRAY:
            for _ in range(count):
                self._skip_array(depth + 1)
        elif kind == _STRING:
            self._skip_strings(count)
        else:
            self._take(count * struct.calcsize(_scalar(kind)))

    def _skip_strings(self, count: int) -> None:
        # The vocabulary is a hundred thousand strings: this loop is the reader's whole cost, hence the locals.
        unpack, at, end = _U64.unpack_from, self._at, len(self._head)
        for _ in range(count):
            if at + 8 > end:
                end = self._reach(at + 8)
            at += 8 + unpack(self._head, at)[0]
            if at > self._file_bytes:
                raise _DamagedError("is truncated: it ends inside its header; fetch it again")
        self._reach(at)
        self._at = at

    def _tensor_sizes(self, tensors: int) -> tuple[int, int]:
        """(parameters, bytes from the start of the data to the end of the last tensor)."""
        parameters = end = 0
        for _ in range(tensors):
            name = self._text()
            dimensions = self._u32()
            if dimensions > 8:
                raise _DamagedError(f"has a damaged header: tensor {name[:60]!r} has {dimensions} dimensions")
            elements = 1
            for _ in range(dimensions):
                elements *= self._u64()
            kind, offset = self._u32(), self._u64()
            # A type newer than this table counts as empty: the engine is the one to judge it.
            block_elements, block_bytes = TENSOR_BLOCKS.get(kind, (1, 0))
            parameters += elements
            end = max(end, offset + elements // block_elements * block_bytes)
        return parameters, end

    def _data_start(self, alignment: object) -> int:
        if not isinstance(alignment, int) or not 0 < alignment <= _MAX_ALIGNMENT:
            raise _DamagedError(f"has a damaged header: alignment {alignment!r}")
        return -(-self._at // alignment) * alignment

    def _text(self) -> str:
        length = self._u64()
        if length > _MAX_STRING:
            raise _DamagedError(f"has a damaged header: a text of {length} bytes is not plausible")
        return self._take(length).decode("utf-8", "replace")

    def _u32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _u64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def _unpack(self, layout: str) -> object:
        value: object = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        return value

    def _take(self, count: int) -> bytes:
        self._reach(self._at + count)
        taken = bytes(memoryview(self._head)[self._at : self._at + count])
        self._at += count
        return taken

    def _reach(self, end: int) -> int:
        """Reads on until the head holds ``end`` bytes; returns how many it holds."""
        if end > self._file_bytes:
            raise _DamagedError("is truncated: it ends inside its header; fetch it again")
        if end > _MAX_HEADER_BYTES:
            raise _DamagedError("has a damaged header: it is over 256 MiB long")
        while len(self._head) < end:
            more = self._file.read(max(_READ_BYTES, end - len(self._head)))
            if not more:
                raise _DamagedError("is truncated: it ends inside its header; fetch it again")
            self._head += more
        return len(self._head)


def _scalar(kind: int) -> str:
    layout = _SCALARS.get(kind)
    if layout is None:
        raise _DamagedError(f"has a damaged header: value type {kind} is unknown")
    return layout


def _guess(magic: bytes) -> str:
    """What people mistake for a GGUF file, by its first bytes."""
    if magic in (b"lmgg", b"fmgg", b"tjgg"):
        return ": it is in the older GGML format; convert it or fetch a GGUF of the model"
    if magic[:2] == b"PK":
        return ": it is a zip archive or a PyTorch checkpoint"
    if magic == b"vers":
        return ": it is a Git LFS pointer; fetch the file itself (git lfs pull)"
    if magic[:1] == b"<":
        return ": it looks like a web page; the download went wrong"
    return "; models in other formats must be fetched as GGUF, or converted by llama.cpp's convert_hf_to_gguf.py"
