"""What a model file is called."""

import pytest

from superfluid.engine.llama_model import size_label, with_real_size


@pytest.mark.parametrize(
    ("description", "parameters", "expected"),
    [
        ("llama 256M Q4_1", 134_515_008, "llama 135M Q4_1"),
        ("llama ?B all F32", 180_000, "llama 180K all F32"),
        ("qwen3 0.6B Q4_K - Medium", 751_632_384, "qwen3 752M Q4_K - Medium"),
        ("llama 7B Q8_0 (guessed)", 6_738_415_616, "llama 6.7B Q8_0 (guessed)"),
        ("qwen3moe 30B.A3B Q4_K - Medium", 30_532_122_624, "qwen3moe 30B.A3B Q4_K - Medium"),
        ("gpt2 small F16", 124_000_000, "gpt2 small F16"),
        ("mamba", 5, "mamba"),
        ("", 5, ""),
    ],
)
def test_description_has_the_size_that_was_counted_unless_it_says_more(
    description: str, parameters: int, expected: str
) -> None:
    assert with_real_size(description, parameters) == expected


@pytest.mark.parametrize(
    ("parameters", "label"),
    [(999, "999"), (9_960_000, "10.0M"), (99_400_000, "99M"), (1_235_814_400, "1.2B"), (2_000_000_000_000, "2.0T")],
)
def test_size_has_two_digits_or_more(parameters: int, label: str) -> None:
    assert size_label(parameters) == label
