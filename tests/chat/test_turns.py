"""Single turns, put together to what the template writes for a whole conversation."""

import pytest
from tests.fixtures.chat_templates import (
    ALL_STYLES,
    CHATML,
    DEFAULT_SYSTEM_STYLE,
    GEMMA_STYLE,
    QWEN_STYLE,
    MarkerVocabulary,
)

from superfluid.chat.fake_tokenizer import FAKE_CHAT_TEMPLATE
from superfluid.chat.template import TemplateCodec
from superfluid.chat.turns import TemplateTurns
from superfluid.domain.events import TurnRole
from superfluid.domain.request import ChatPrompt, Message
from superfluid.errors import UnsupportedInputError

_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_WITH_SYSTEM = [name for name in ALL_STYLES if name != "gemma"]


def spelled(vocabulary: MarkerVocabulary, tokens: list[int]) -> str:
    return b"".join(vocabulary.piece(token) for token in tokens).decode()


def _turns(template: str | None, *, has_bos: bool = False) -> tuple[TemplateTurns, TemplateCodec, MarkerVocabulary]:
    vocabulary = MarkerVocabulary(template, has_bos=has_bos)
    codec = TemplateCodec(vocabulary)
    return TemplateTurns(vocabulary, codec), codec, vocabulary


@pytest.mark.parametrize("has_bos", [False, True])
@pytest.mark.parametrize("style", ALL_STYLES)
def test_turns_one_by_one_are_the_whole_conversation(style: str, has_bos: bool) -> None:
    turns, codec, _ = _turns(ALL_STYLES[style], has_bos=has_bos)
    talk = (
        Message(role="user", content="Hello <|im_end|>"),
        Message(role="assistant", content="Hi"),
        Message(role="user", content="Well?"),
    )
    assert turns.has_turns
    assert codec.render(ChatPrompt(messages=talk)).tokens == [
        *turns.prologue(TurnRole.USER),
        *turns.turn(TurnRole.USER, "Hello <|im_end|>"),
        *turns.turn(TurnRole.ASSISTANT, "Hi"),
        *turns.turn(TurnRole.USER, "Well?"),
        *turns.opener(),
    ]


@pytest.mark.parametrize("has_bos", [False, True])
@pytest.mark.parametrize("style", _WITH_SYSTEM)
def test_system_turn_first_is_the_conversation_with_a_system_message(style: str, has_bos: bool) -> None:
    turns, codec, _ = _turns(ALL_STYLES[style], has_bos=has_bos)
    talk = (Message(role="system", content="Be brief"), Message(role="user", content="Hello"))
    whole = codec.render(ChatPrompt(messages=talk)).tokens
    rest = [*turns.turn(TurnRole.USER, "Hello"), *turns.opener()]
    lead_in = turns.prologue(TurnRole.SYSTEM)
    assert whole == [*lead_in, *turns.turn(TurnRole.SYSTEM, "Be brief"), *rest]
    assert whole == [*turns.system_turn("Be brief", ()), *rest]


@pytest.mark.parametrize("style", ["chatml", "qwen", "llama", "gemma"])
def test_generated_turn_and_separator_are_an_assistant_turn(style: str) -> None:
    turns, _, vocabulary = _turns(ALL_STYLES[style])
    turn = turns.turn(TurnRole.ASSISTANT, "Hi")
    end = max(index for index, token in enumerate(turn) if token in vocabulary.end_of_generation)
    assert turn == [*turns.opener(), *vocabulary.encode_text("Hi"), turn[end], *turns.separator()]


def test_prologue_holds_a_default_system_turn_for_a_user_only() -> None:
    turns, _, vocabulary = _turns(DEFAULT_SYSTEM_STYLE)
    assert "You are helpful" in vocabulary.text(turns.prologue(TurnRole.USER))
    assert turns.prologue(TurnRole.SYSTEM) == []


def test_tool_result_is_the_templates_own() -> None:
    turns, _, vocabulary = _turns(QWEN_STYLE)
    assert vocabulary.text(turns.tool_result("blue", name="look")) == (
        "<|im_start|>user\n<tool_response>\nblue\n</tool_response><|im_end|>\n"
    )


def test_tool_result_where_the_template_knows_none_comes_from_the_user() -> None:
    turns, _, _ = _turns(GEMMA_STYLE)
    assert turns.tool_result("blue", name="look") == turns.turn(TurnRole.USER, "blue")


@pytest.mark.parametrize("text", ["Be brief", None])
@pytest.mark.parametrize("template", [QWEN_STYLE, CHATML, DEFAULT_SYSTEM_STYLE, FAKE_CHAT_TEMPLATE])
def test_system_turn_with_tools_declares_them_whether_or_not_the_template_can(template: str, text: str | None) -> None:
    turns, _, vocabulary = _turns(template)
    spelled = vocabulary.text(turns.system_turn(text, [_TOOL]))
    assert '"name": "look"' in spelled
    assert "probe" not in spelled
    assert text is None or text in spelled
    assert "You are helpful" not in spelled


def test_system_turn_where_the_template_has_none_is_refused() -> None:
    turns, _, _ = _turns(GEMMA_STYLE)
    with pytest.raises(UnsupportedInputError):
        turns.system_turn("Be brief", ())


@pytest.mark.parametrize("template", [None, "{{ messages | map(attribute='content') | join(',') }}", "{% if %}"])
def test_model_without_turns_says_so_and_refuses(template: str | None) -> None:
    turns, _, _ = _turns(template)
    assert not turns.has_turns
    with pytest.raises(UnsupportedInputError):
        turns.turn(TurnRole.USER, "Hello")


def test_turn_text_forges_no_marker() -> None:
    turns, _, vocabulary = _turns(QWEN_STYLE)
    for text in ("<|im_end|>", "<think>", "im_end|>", "<tool_call>"):
        harmless = vocabulary.markers(turns.turn(TurnRole.USER, "x"))
        assert vocabulary.markers(turns.turn(TurnRole.USER, text)) == harmless
        assert vocabulary.markers(turns.tool_result(text, name=text)) == vocabulary.markers(
            turns.tool_result("x", name="f")
        )


def test_identity_tells_templates_and_vocabularies_apart() -> None:
    identities = {
        _turns(CHATML)[0].identity,
        _turns(QWEN_STYLE)[0].identity,
        _turns(CHATML, has_bos=True)[0].identity,
    }
    assert len(identities) == 3
    assert _turns(CHATML)[0].identity in identities


@pytest.mark.parametrize("role", [TurnRole.USER, TurnRole.ASSISTANT])
@pytest.mark.parametrize("style", ALL_STYLES)
def test_turn_around_a_gap_is_the_turn_with_the_gap_cut_out(style: str, role: TurnRole) -> None:
    turns, _, vocabulary = _turns(ALL_STYLES[style])
    before, behind = turns.turn_around(role, "Look <|im_end|> here:", "and say")
    whole = turns.turn(role, "Look <|im_end|> here:and say")
    assert spelled(vocabulary, [*before, *behind]) == spelled(vocabulary, whole)
    assert spelled(vocabulary, before).endswith("here:")
    assert spelled(vocabulary, behind).startswith("and say")


def test_turn_around_a_gap_needs_no_text() -> None:
    turns, _, vocabulary = _turns(CHATML)
    before, behind = turns.turn_around(TurnRole.USER, "", "")
    assert spelled(vocabulary, before) == "<|im_start|>user\n"
    assert spelled(vocabulary, behind) == "<|im_end|>\n"


def test_turn_around_a_gap_in_a_system_turn_has_no_prologue() -> None:
    turns, _, vocabulary = _turns(DEFAULT_SYSTEM_STYLE)
    before, behind = turns.turn_around(TurnRole.SYSTEM, "a", "b")
    assert turns.turn(TurnRole.SYSTEM, "ab") == [*before, *behind]
    assert spelled(vocabulary, before).endswith("a")


def test_turn_around_a_gap_where_the_template_writes_a_text_twice_is_refused() -> None:
    content = "message['content']"
    turns, _, _ = _turns(CHATML.replace(content, f"{content} + {content}"))
    with pytest.raises(UnsupportedInputError, match="in one piece"):
        turns.turn_around(TurnRole.USER, "a", "b")


def test_turn_around_a_gap_leaves_every_private_character_to_the_text() -> None:
    turns, _, vocabulary = _turns(CHATML)
    text = "".join(chr(code) for code in range(0xE000, 0xF8FF))
    before, _ = turns.turn_around(TurnRole.USER, text, "")
    assert spelled(vocabulary, before).endswith(text)
    with pytest.raises(UnsupportedInputError, match="private-use"):
        turns.turn_around(TurnRole.USER, text + chr(0xF8FF), "")


PARTS_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}<image>{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As models that see images have them."""


def test_template_that_wants_its_content_in_parts_gets_it_so() -> None:
    turns, codec, vocabulary = _turns(PARTS_TEMPLATE)
    plain, _, _ = _turns(CHATML)
    assert turns.has_turns
    assert codec.is_append_stable
    assert turns.turn(TurnRole.USER, "Hello") == plain.turn(TurnRole.USER, "Hello")
    assert codec.has_system_turn
    before, behind = turns.turn_around(TurnRole.USER, "see ", "!")
    assert spelled(vocabulary, [*before, *behind]) == "<|im_start|>user\nsee !<|im_end|>\n"
