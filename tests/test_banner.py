import io

import pytest
from tests.fixtures.scripted_models import ScriptedModel

from superfluid.banner import announce_ready

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
