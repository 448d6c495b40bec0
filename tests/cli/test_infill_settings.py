"""The flags of a model of its own that fills in the middle."""

from typing import Any

import pytest

from superfluid.cli.infill_settings import completion_config
from superfluid.cli.serve_settings import ServeFlags
from superfluid.errors import UsageError


def test_model_that_fills_in_has_two_lanes_and_a_window_of_its_own_choice() -> None:
    config = completion_config(ServeFlags(fim_model="m.gguf"))
    assert (config.model, config.lanes, config.window_tokens) == ("m.gguf", 2, None)
    config = completion_config(ServeFlags(fim_model="m.gguf", fim_max_context=1024, fim_max_batch=3))
    assert (config.lanes, config.window_tokens) == (3, 1024)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"fim_max_context": 1024}, "--fim-max-context"),
        ({"fim_max_batch": 1}, "--fim-max-batch"),
        ({"fim_model": "m.gguf", "fim_max_context": 511}, "--fim-max-context"),
        ({"fim_model": "m.gguf", "fim_max_batch": 0}, "--fim-max-batch"),
        ({"fim_model": "m.gguf", "fim_max_batch": 257}, "--fim-max-batch"),
    ],
)
def test_flag_of_no_model_or_out_of_range_is_a_usage_error_that_names_it(flags: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError) as refused:
        completion_config(ServeFlags(**flags))
    assert refused.value.param == name
