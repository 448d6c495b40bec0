"""How a conversation reaches the servers under test."""

from pathlib import Path

import pytest
from benchmarks.client import Address
from benchmarks.servers import CHAT_PATH, TEXT_PATH, RunningServer

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]


def server(*, has_template: bool) -> RunningServer:
    def restart() -> RunningServer:
        raise AssertionError("nobody asked for that")

    address = Address("127.0.0.1", 1)
    return RunningServer("superfluid", address, 1, "m", {"ignore_eos": True}, False, Path(), restart, has_template)


@pytest.mark.parametrize(
    ("has_template", "path", "field", "content"),
    [
        (True, CHAT_PATH, "messages", MESSAGES),
        (
            False,
            TEXT_PATH,
            "prompt",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
def test_request_is_text_for_a_model_without_a_template(
    has_template: bool, path: str, field: str, content: object
) -> None:
    asked = server(has_template=has_template)
    body = asked.request(MESSAGES, 8, temperature=0.0)
    assert asked.path == path
    assert body[field] == content
    assert {"messages", "prompt"} & body.keys() == {field}
    assert (body["max_tokens"], body["ignore_eos"], body["temperature"]) == (8, True, 0.0)
