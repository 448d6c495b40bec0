"""What cannot fit the window is refused before it is rendered."""

import pytest
from tests.fixtures.chat_templates import CHATML

from superfluid.chat.bound import PromptBound
from superfluid.chat.fake_tokenizer import ByteTokenizer
from superfluid.chat.template import TemplateCodec
from superfluid.domain.request import ChatPrompt, Message
from superfluid.errors import ContextLengthExceededError

LONGEST_PIECE_BYTES = max(len(ByteTokenizer().piece(token)) for token in range(ByteTokenizer().vocabulary_tokens))


def test_bound_is_the_window_full_of_the_longest_token() -> None:
    bound = PromptBound(ByteTokenizer(), 10)
    bound.check(10 * LONGEST_PIECE_BYTES)
    with pytest.raises(ContextLengthExceededError, match="window is 10 tokens"):
        bound.check(10 * LONGEST_PIECE_BYTES + 1)


def test_codec_refuses_a_conversation_over_its_bound_without_running_the_template() -> None:
    vocabulary = ByteTokenizer(
        CHATML + "{{ raise_exception('the template ran') if messages[0].content | length > 99 }}"
    )
    codec = TemplateCodec(vocabulary, bound=PromptBound(vocabulary, 10))
    halves = tuple(Message(role="user", content="x" * (6 * LONGEST_PIECE_BYTES)) for _ in range(2))
    with pytest.raises(ContextLengthExceededError):
        codec.render(ChatPrompt(messages=halves))
    assert codec.render(ChatPrompt(messages=halves[:1])).tokens
