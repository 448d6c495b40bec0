"""The session API's number types, which Python has no words for. Annotations only: they check nothing by themselves."""

from typing import Annotated

from msgspec import Struct


class Unsigned(Struct, frozen=True):
    """A whole number from 0 to 2^bits - 1."""

    bits: int

    @property
    def maximum(self) -> int:
        return (1 << self.bits) - 1


class Float32(Struct, frozen=True):
    """A single-precision number, held in a Python float."""


class FixedBytes(Struct, frozen=True):
    """Exactly ``size`` bytes, so that no length is written."""

    size: int


class MayBeMissing(Struct, frozen=True):
    """An optional field that older peers do not send: a binary payload that ends before it means ``None``."""


U8 = Annotated[int, Unsigned(8)]
U32 = Annotated[int, Unsigned(32)]
U64 = Annotated[int, Unsigned(64)]
F32 = Annotated[float, Float32()]
Bytes16 = Annotated[bytes, FixedBytes(16)]
