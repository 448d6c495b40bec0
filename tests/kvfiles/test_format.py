"""The KV file's bytes: what was written comes back, and nothing else ever does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.kv_files import KEY, stream

from superfluid.domain.job import ParkKind
from superfluid.kvfiles.format import (
    KvFormatError,
    KvHead,
    KvKey,
    check_state,
    decode_head,
    encode,
    head_bytes,
)

TOKENS = stream(1, 40)
STATE = bytes(range(256)) * 2
_, PARTS = encode(KEY, ParkKind.SESSION, 77, TOKENS, STATE, created_unix=1.7e9)
FILE = b"".join(PARTS)


def read(data: bytes) -> KvHead:
    """As a reader of whole files would."""
    head = decode_head(data)
    check_state(head.header, data[head.state_offset :])
    return head


def test_decode_what_was_encoded_gives_it_back() -> None:
    head = read(FILE)
    assert head.tokens.tolist() == TOKENS.tolist()
    assert (head.header.key, head.header.kind, head.header.owner) == (KEY, ParkKind.SESSION, 77)
    assert FILE[head.state_offset :] == STATE
    assert head.size_bytes == len(FILE)
    assert head_bytes(FILE) == head.state_offset


def test_decode_with_any_bit_flipped_is_refused() -> None:
    for index in range(len(FILE)):
        for bit in (0, 3, 7):
            damaged = bytearray(FILE)
            damaged[index] ^= 1 << bit
            with pytest.raises(KvFormatError):
                read(bytes(damaged))


def test_decode_of_a_file_cut_anywhere_is_refused() -> None:
    for length in range(len(FILE)):
        with pytest.raises(KvFormatError):
            read(FILE[:length])


def test_decode_of_a_file_with_more_behind_it_is_refused() -> None:
    with pytest.raises(KvFormatError):
        read(FILE + b"\0")


@given(st.binary(max_size=400))
def test_decode_of_anything_is_refused_in_the_same_way(data: bytes) -> None:
    with pytest.raises(KvFormatError):
        read(data)
    with pytest.raises(KvFormatError):
        read(b"SFKV\x01\0\0\0" + data)


@pytest.mark.parametrize(
    "other", [KvKey("other", "state"), KvKey("model", "other"), KvKey("model", "state", "adapter"), KvKey("m", "odel")]
)
def test_key_that_differs_in_anything_has_another_digest(other: KvKey) -> None:
    assert other.digest() != KEY.digest()
