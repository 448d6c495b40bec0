"""Which tokens the pins of a request stand for."""

from array import array

import pytest

from superfluid.chat.interface import Rendered
from superfluid.domain.job import PrefixPin
from superfluid.domain.request import ChatPrompt, GenerationRequest, Message, MessagePin
from superfluid.sessions.pinning import prefix_pins

PROMPT = ChatPrompt(messages=(Message(role="user", content="x"),))
WRITTEN = list(range(10))
ENDS = [3, 6, 8]
"""Three messages, and a header of two tokens."""


def _pins(*pins: MessagePin, tokens: list[int] = WRITTEN, ends: list[int] = ENDS, adapter: int = 0) -> list[PrefixPin]:
    request = GenerationRequest(prompt=PROMPT, pins=pins, adapter=adapter)
    return prefix_pins(request, Rendered(WRITTEN, ends), array("i", tokens))


def test_pin_reaches_through_the_end_of_its_message() -> None:
    assert _pins(MessagePin(2, 5), MessagePin(0, 7)) == [PrefixPin(3, 7), PrefixPin(8, 5)]


def test_pins_of_one_message_are_one_for_the_longer_time() -> None:
    assert _pins(MessagePin(1, 7), MessagePin(1, 5)) == [PrefixPin(6, 7)]


def test_message_without_an_end_of_its_own_is_pinned_with_the_next() -> None:
    assert _pins(MessagePin(0, 5), ends=[0, 6, 8]) == [PrefixPin(6, 5)]


@pytest.mark.parametrize(("ends", "pins"), [([0, 0, 0], [PrefixPin(0, 5)][:0]), ([8, 8, 8], [PrefixPin(8, 5)])])
def test_template_that_does_not_tell_messages_apart_pins_all_or_nothing(ends: list[int], pins: list[PrefixPin]) -> None:
    assert _pins(MessagePin(0, 5), ends=ends) == pins


STORED = [0, 1, 2, 30, 31, 32, 33, 5, 6, 7, 8, 9]
"""The second message has four stored tokens for two of its rendered ones."""


@pytest.mark.parametrize(("message", "length"), [(0, 3), (1, 8), (2, 10)])
def test_stored_reply_of_another_length_shifts_the_ends_behind_it(message: int, length: int) -> None:
    assert _pins(MessagePin(message, 5), tokens=STORED) == [PrefixPin(length, 5)]


def test_end_between_two_replies_that_differ_stays_within_the_input() -> None:
    tokens = [20, 1, 2, 3, 4, 21]
    assert _pins(MessagePin(1, 5), tokens=tokens) == [PrefixPin(6, 5)]


def test_request_for_an_adapter_pins_nothing() -> None:
    assert _pins(MessagePin(0, 5), adapter=1) == []
