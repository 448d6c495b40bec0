"""What ``--lora`` may say."""

from pathlib import Path

import pytest

from superfluid.cli.lora_settings import lora_settings
from superfluid.errors import UsageError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("sql=/a/b.gguf", ("sql", Path("/a/b.gguf"))),
        ("/a/sql-v2.gguf", ("sql-v2", Path("/a/sql-v2.gguf"))),
        ("sql.gguf", ("sql", Path("sql.gguf"))),
        ("sql=b=c.gguf", ("sql", Path("b=c.gguf"))),
        ("/a/x=y/sql.gguf", ("sql", Path("/a/x=y/sql.gguf"))),
    ],
)
def test_lora_is_a_name_and_a_path_or_a_path_that_names_it(value: str, expected: tuple[str, Path]) -> None:
    assert lora_settings([value]) == (expected,)


@pytest.mark.parametrize("values", [["sql="], [""], ["=a.gguf"], ["a b=c.gguf"], ["latest=c.gguf"], ["a.gguf", "a=b"]])
def test_lora_that_cannot_be_is_a_usage_error(values: list[str]) -> None:
    with pytest.raises(UsageError, match="--lora"):
        lora_settings(values)
