"""Measured rates and what follows from them."""

import pytest

from superfluid.scheduling.rates import FIRST_CHUNK_TOKENS, MAX_CHUNK_TOKENS, MIN_CHUNK_TOKENS, Rates


def test_chunk_tokens_nothing_measured_is_small() -> None:
    assert Rates().chunk_tokens(0, 0.4) == FIRST_CHUNK_TOKENS


@pytest.mark.parametrize(
    ("prefill", "decode", "lanes", "expected"),
    [
        (0.008, 0.08, 8, 40),
        (0.008, 0.0, 0, 50),
        (0.1, 0.3, 8, MIN_CHUNK_TOKENS),
        (0.00001, 0.01, 1, MAX_CHUNK_TOKENS),
        (0.0, 0.0, 1, MAX_CHUNK_TOKENS),
    ],
)
def test_chunk_tokens_fill_what_the_decode_step_leaves(
    prefill: float, decode: float, lanes: int, expected: int
) -> None:
    rates = Rates()
    rates.observe_prefill(100, prefill * 100)
    rates.observe_decode(8, decode)
    rates.observe_decode(1, decode)
    assert rates.chunk_tokens(lanes, 0.4) == expected


def test_observe_moves_by_three_tenths() -> None:
    rates = Rates()
    rates.observe_prefill(100, 1.0)
    rates.observe_prefill(100, 2.0)
    assert rates.prefill_seconds_per_token == pytest.approx(0.013)


def test_observe_prefill_tiny_chunk_does_not_disturb_a_known_rate() -> None:
    rates = Rates()
    rates.observe_prefill(2, 0.02)
    assert rates.prefill_seconds_per_token == pytest.approx(0.01)
    rates.observe_prefill(2, 1.0)
    assert rates.prefill_seconds_per_token == pytest.approx(0.01)


def test_decode_seconds_unseen_lane_count_is_scaled_up_but_never_down() -> None:
    rates = Rates()
    assert rates.decode_seconds(3) == 0.0
    rates.observe_decode(2, 0.02)
    assert rates.decode_seconds(8) == pytest.approx(0.08)
    assert rates.decode_seconds(1) == pytest.approx(0.02)


def test_entry_bytes_follow_the_sizes_seen() -> None:
    rates = Rates()
    assert rates.entry_bytes(100) == 0
    rates.observe_entry(10, 230)
    assert rates.entry_bytes(100) == 2300


@pytest.mark.parametrize(
    ("ready_tokens", "seconds"), [(0, 0.001 + 0.05), (400, 0.001 + 0.03), (1000, 0.001), (2000, 0.001)]
)
def test_save_into_memory_that_is_at_hand_costs_less(ready_tokens: int, seconds: float) -> None:
    rates = Rates()
    rates.observe_entry(1, 1000)
    rates.observe_save(1000, 0.001)
    rates.observe_save(1000, 0.051, new_bytes=10**6)
    rates.ready_bytes = ready_tokens * 1000
    assert rates.save_seconds(1000) == pytest.approx(seconds)
