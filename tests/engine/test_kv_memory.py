"""The window that the machine has room for, as a table of machines."""

import pytest

from superfluid.engine.kv_memory import KV_TYPES, Room, WindowWish, choose_window, require_memory
from superfluid.errors import ModelLoadError, UsageError

GB = 10**9
FITTED = WindowWish(tokens=None)
ASKED = WindowWish(tokens=None, is_fitting_asked=True)


def _room(
    available: int | None,
    *,
    weights: int = 0,
    host: int = 0,
    token: int = 10_000,
    lanes: int = 10,
    trained: int = 10**6,
) -> Room:
    return Room(
        available_bytes=available,
        weights_bytes=weights,
        host_cache_bytes=host,
        bytes_per_token=token,
        lanes=lanes,
        trained_tokens=trained,
    )


@pytest.mark.parametrize(
    ("room", "tokens"),
    [
        # Half of what weights leave, in steps of 256.
        (_room(10 * GB), 49_920),
        (_room(10 * GB, weights=5 * GB), 24_832),
        (_room(10 * GB, lanes=20), 24_832),
        (_room(10 * GB, token=5_000), 99_840),
        # What the host cache was promised is left alone, but for a quarter.
        (_room(10 * GB, host=6 * GB), 34_816),
        (_room(10 * GB, host=100 * GB), 24_832),
        # Never more than trained, to the token.
        (_room(10 * GB, trained=1000), 1000),
        (_room(10 * GB, trained=100), 100),
        # Too little memory: the smallest window, and whether that fits is seen later.
        (_room(0), 512),
        (_room(10**6, trained=300), 300),
        # Nothing known of the memory, or of the model.
        (_room(None), 8192),
        (_room(None, trained=4000), 4000),
        (_room(10 * GB, token=0), 8192),
    ],
)
def test_window_fits_the_machine(room: Room, tokens: int) -> None:
    assert choose_window(FITTED, room).tokens == tokens


def test_window_that_was_set_is_taken_as_it_is() -> None:
    window = choose_window(WindowWish(tokens=12_345), _room(0, trained=700))
    assert (window.tokens, window.reason) == (12_345, "")


def test_window_reason_is_the_sum() -> None:
    assert choose_window(ASKED, _room(10 * GB, weights=2 * GB)).reason == (
        "10.00 GB free, 2.00 GB of it for weights: 4.00 GB for KV / (10 lanes x 10,000 bytes a token) = 40,000 tokens; "
        "trained for 1,000,000"
    )


@pytest.mark.parametrize("room", [_room(None), _room(10**6)])
def test_window_that_was_to_be_fitted_and_cannot_be_is_refused(room: Room) -> None:
    with pytest.raises(UsageError, match="--max-context auto"):
        choose_window(ASKED, room)


def test_kv_over_the_free_memory_is_refused_before_it_is_touched() -> None:
    require_memory(5, 5, 1, 1)
    require_memory(5, None, 1, 1)
    with pytest.raises(ModelLoadError, match="fewer lanes or a smaller window"):
        require_memory(6, 5, 1, 1)


@pytest.mark.parametrize(("bits", "size"), [(0, 128), (8, 68), (4, 36)])
def test_kv_types_take_their_blocks(bits: int, size: int) -> None:
    assert KV_TYPES[bits].size_bytes(64) == size
