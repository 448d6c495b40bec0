import io
from typing import Literal

import pytest
from tests.fixtures.scripted_models import ScriptedModel

from superfluid.banner import announce_ready, guessing_lines
from superfluid.config import ModelConfig
from superfluid.domain.speculation import NO_SPECULATION, SpeculationRules
from superfluid.engine.fake import FakeEngine
from superfluid.engine.fake_script import FakeScript

REACH = "other machines reach it too"


@pytest.mark.parametrize(
    ("host", "url", "is_reached"),
    [
        ("127.0.0.1", "http://127.0.0.1:8453", False),
        ("0.0.0.0", "http://127.0.0.1:8453", True),
        ("::", "http://[::1]:8453", True),
    ],
)
def test_banner_of_a_listener_on_all_addresses_says_so(host: str, url: str, is_reached: bool) -> None:
    stream = io.StringIO()
    text = announce_ready(stream, ScriptedModel(), host=host, port=8453, has_key=False)
    assert stream.getvalue() == text + "\n"
    assert f"listening on {url}; OpenAI clients use {url}/v1" in text
    assert (REACH in text) is is_reached


@pytest.mark.parametrize(
    ("rules", "flash", "can_truncate", "is_told"),
    [
        (SpeculationRules(strategy="auto"), "off", True, True),
        (SpeculationRules(strategy="auto"), "off", False, False),
        (SpeculationRules(strategy="auto"), "auto", True, False),
        (NO_SPECULATION, "off", True, False),
    ],
)
def test_banner_tells_where_guesses_end_the_exact_modes_promise(
    rules: SpeculationRules, flash: Literal["off", "auto"], can_truncate: bool, is_told: bool
) -> None:
    facts = FakeEngine(FakeScript(can_truncate=can_truncate), lanes=1).facts
    assert bool(guessing_lines(ModelConfig(speculation=rules, flash_attention=flash), facts)) == is_told
