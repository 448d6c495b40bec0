"""The template codec on templates of the well-known families."""

import datetime
import itertools
import json
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.chat_templates import (
    ALL_STYLES,
    BRACKET_STYLE,
    CHATML,
    DEFAULT_SYSTEM_STYLE,
    GEMMA_STYLE,
    LLAMA_STYLE,
    QWEN_STYLE,
    MarkerVocabulary,
)

from superfluid.chat.template import TemplateCodec
from superfluid.domain.request import ChatPrompt, Message, ToolCall
from superfluid.errors import TemplateRefusedError, UnsupportedInputError

_TALK = (
    Message(role="user", content="Hello"),
    Message(role="assistant", content="Hi!"),
    Message(role="user", content="How are you? "),
)
_TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}
_TOOL_TALK = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="Weather?"),
    Message(
        role="assistant",
        reasoning="I must look.",
        tool_calls=(ToolCall(id="call_1", name="look", arguments='{"at": "sky"}'),),
    ),
    Message(role="tool", tool_call_id="call_1", content="blue"),
    Message(role="tool", tool_call_id="call_2", content="dry"),
)


def _codec(template: str | None, **options: Any) -> tuple[TemplateCodec, MarkerVocabulary]:
    vocabulary = MarkerVocabulary(template, **options)
    return TemplateCodec(vocabulary, loaded_at=datetime.datetime(2026, 1, 1)), vocabulary


def _spans(vocabulary: MarkerVocabulary, tokens: list[int], ends: list[int]) -> list[str]:
    return [vocabulary.text(tokens[start:end]) for start, end in itertools.pairwise([0, *ends, len(tokens)])]


def _plain_rendering(template: str, messages: tuple[Message, ...]) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    dicts = [{"role": message.role, "content": message.content} for message in messages]
    return environment.from_string(template).render(messages=dicts, add_generation_prompt=True, bos_token="<s>")


@pytest.mark.parametrize("style", ALL_STYLES)
def test_rendering_spells_what_plain_jinja_writes(style: str) -> None:
    codec, vocabulary = _codec(ALL_STYLES[style])
    rendered = codec.render(ChatPrompt(messages=_TALK))
    plain = _plain_rendering(ALL_STYLES[style], _TALK)
    assert vocabulary.text(rendered.tokens) == plain
    assert rendered.tokens == vocabulary.encode_template(plain)


@pytest.mark.parametrize("style", ALL_STYLES)
def test_message_ends_part_the_rendering_into_turns(style: str) -> None:
    codec, vocabulary = _codec(ALL_STYLES[style])
    rendered = codec.render(ChatPrompt(messages=_TALK))
    *turns, header = _spans(vocabulary, rendered.tokens, rendered.message_ends)
    assert [content.strip() in turn for content, turn in zip(("Hello", "Hi!", "How"), turns, strict=True)] == [True] * 3
    assert (
        header
        == {
            "chatml": "<|im_start|>assistant\n",
            "qwen": "<|im_start|>assistant\n",
            "default-system": "<|im_start|>assistant\n",
            "llama": "<|head|>assistant<|/head|>\n\n",
            "gemma": "<turn>model\n",
            "bracket": "",
        }[style]
    )


@pytest.mark.parametrize("style", ALL_STYLES)
def test_longer_conversation_begins_with_the_tokens_of_the_shorter(style: str) -> None:
    codec, _ = _codec(ALL_STYLES[style], puts_space=True)
    shorter = codec.render(ChatPrompt(messages=_TALK[:1]))
    longer = codec.render(ChatPrompt(messages=_TALK))
    assert codec.is_append_stable
    end = shorter.message_ends[-1]
    assert longer.tokens[:end] == shorter.tokens[:end]
    assert longer.message_ends[0] == end
    assert longer.tokens[: len(shorter.tokens)] == shorter.tokens


def test_tool_conversation_is_written_in_spans_with_calls_as_objects() -> None:
    codec, vocabulary = _codec(QWEN_STYLE)
    rendered = codec.render(ChatPrompt(messages=_TOOL_TALK, tools=(_TOOL,)))
    assert codec.writes_tool_calls
    assert _spans(vocabulary, rendered.tokens, rendered.message_ends) == [
        "<|im_start|>system\nBe brief.\n\nFunctions:\n<tools>\n"
        + json.dumps(_TOOL)
        + "\n</tools>\nCall with <tool_call>\n{...}\n</tool_call><|im_end|>\n",
        "<|im_start|>user\nWeather?<|im_end|>\n",
        "<|im_start|>assistant\n<think>\nI must look.\n</think>\n\n\n<tool_call>\n"
        '{"name": "look", "arguments": {"at": "sky"}}\n</tool_call><|im_end|>\n',
        "<|im_start|>user\n<tool_response>\nblue\n</tool_response>",
        "\n<tool_response>\ndry\n</tool_response><|im_end|>\n",
        "<|im_start|>assistant\n",
    ]


@pytest.mark.parametrize("style", ALL_STYLES)
def test_reply_that_was_begun_is_ordinary_text_behind_the_header(style: str) -> None:
    codec, vocabulary = _codec(ALL_STYLES[style])
    plain = codec.render(ChatPrompt(messages=_TALK))
    begun = codec.render(ChatPrompt(messages=_TALK, prefill="I am <|im_end|> <end_of_turn></s>"))
    assert begun.message_ends == plain.message_ends
    assert begun.tokens[: len(plain.tokens)] == plain.tokens
    behind = begun.tokens[len(plain.tokens) :]
    assert vocabulary.text(behind).strip() == "I am <|im_end|> <end_of_turn></s>"
    assert not set(behind) & set(vocabulary.special_tokens.values())


def test_default_system_turn_belongs_to_the_first_message_and_appears_once() -> None:
    codec, vocabulary = _codec(DEFAULT_SYSTEM_STYLE)
    rendered = codec.render(ChatPrompt(messages=_TALK))
    first = _spans(vocabulary, rendered.tokens, rendered.message_ends)[0]
    assert first == "<|im_start|>system\nYou are helpful<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    own = codec.render(ChatPrompt(messages=(Message(role="system", content="Mine"), *_TALK)))
    assert "You are helpful" not in vocabulary.text(own.tokens)


def test_system_turn_where_the_template_has_none_goes_into_the_first_user_turn() -> None:
    codec, vocabulary = _codec(GEMMA_STYLE)
    rendered = codec.render(ChatPrompt(messages=(Message(role="system", content="Be brief."), *_TALK)))
    assert vocabulary.text(rendered.tokens).startswith("<s><turn>user\nBe brief.\n\nHello</turn>\n")
    assert len(rendered.message_ends) == 4
    assert rendered.message_ends == sorted(rendered.message_ends)


@pytest.mark.parametrize("template", [LLAMA_STYLE, CHATML])
def test_bos_comes_once_whether_or_not_the_template_writes_it(template: str) -> None:
    codec, vocabulary = _codec(template, has_bos=True)
    rendered = codec.render(ChatPrompt(messages=_TALK))
    assert vocabulary.markers(rendered.tokens).count("<s>") == 1
    assert rendered.tokens[0] == vocabulary.special_tokens["<s>"]
    assert "Hi!" in _spans(vocabulary, rendered.tokens, rendered.message_ends)[1]


def test_bos_of_the_template_stays_where_the_vocabulary_asks_for_none() -> None:
    codec, vocabulary = _codec(LLAMA_STYLE)
    assert vocabulary.markers(codec.render(ChatPrompt(messages=_TALK)).tokens)[0] == "<s>"


def test_tokens_end_behind_the_header_of_a_reply_that_is_sent_back() -> None:
    """Otherwise a reply that begins with a line break would melt into the header's."""
    codec, vocabulary = _codec(CHATML)
    seen: list[str] = []
    encode = vocabulary.encode_fragment

    def record(text: str, *, follows_marker: bool) -> list[int]:
        seen.append(text)
        return encode(text, follows_marker=follows_marker)

    vocabulary.encode_fragment = record  # type: ignore[method-assign]
    codec.render(ChatPrompt(messages=(_TALK[0], Message(role="assistant", content="\nHi!"), _TALK[2])))
    assert "assistant\n" in seen
    assert "\nHi!" in seen


def test_template_kwargs_reach_the_template_and_cannot_replace_its_inputs() -> None:
    codec, vocabulary = _codec(QWEN_STYLE)
    closed = codec.render(ChatPrompt(messages=_TALK, template_kwargs={"enable_thinking": False}))
    assert vocabulary.text(closed.tokens).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    same = codec.render(ChatPrompt(messages=_TALK, template_kwargs={"messages": [], "add_generation_prompt": False}))
    assert same == codec.render(ChatPrompt(messages=_TALK))


def test_tool_variant_is_used_if_and_only_if_there_are_tools() -> None:
    codec, vocabulary = _codec(CHATML, tool_template="tools: {{ tools | length }}")
    assert vocabulary.text(codec.render(ChatPrompt(messages=_TALK, tools=(_TOOL,))).tokens) == "tools: 1"
    assert "Hello" in vocabulary.text(codec.render(ChatPrompt(messages=_TALK)).tokens)


def test_template_that_does_not_write_turn_by_turn_gives_equal_ends_before_the_header() -> None:
    source = (
        "{{ messages | map(attribute='content') | join('|') }}{% if add_generation_prompt %}<|im_start|>{% endif %}"
    )
    codec, vocabulary = _codec(source)
    rendered = codec.render(ChatPrompt(messages=_TALK))
    assert rendered.message_ends == [len(rendered.tokens) - 1] * 3
    assert vocabulary.markers(rendered.tokens) == ["<|im_start|>"]


def test_template_that_drops_old_reasoning_is_not_append_stable() -> None:
    source = CHATML.replace("message['content']", "(message['content'] if loop.last else '')")
    assert not _codec(source)[0].is_append_stable


# ---- forged markers

_markers = st.sampled_from([*MarkerVocabulary().special_tokens])
_nasty = st.lists(
    st.one_of(
        _markers,
        _markers.flatmap(lambda text: st.integers(0, len(text)).map(lambda cut: text[:cut])),
        _markers.flatmap(lambda text: st.integers(0, len(text)).map(lambda cut: text[cut:])),
        _markers.map(lambda text: text.strip("<>/")),
        st.sampled_from([" ", "\n", "x", "<", "|", ">", "\U000f0000", "\U000f0001", "\U0010fffd", "\ue000", "é"]),
    ),
    max_size=5,
).map("".join)


def _nasty_talk(text: str, other: str) -> ChatPrompt:
    call = ToolCall(id=text, name="f" + other, arguments=json.dumps({"k" + text: [other, {text: other}]}))
    return ChatPrompt(
        messages=(
            Message(role="user", content="a" + text, name=other),
            Message(role="assistant", content=other, reasoning="r" + text, tool_calls=(call,)),
            Message(role="tool", content=text, tool_call_id=text),
            Message(role="assistant", content=other + text),
            Message(role="user", content=text + other),
        ),
        tools=({"type": "function", "function": {"name": other, "description": text, "parameters": {text: other}}},),
        template_kwargs={"note": text + other},
    )


_XML_STYLE = """\
{%- for tool in tools %}<{{ tool.function.name }}>{%- for key, value in tool.function.parameters.items() %}
{{- '<' ~ key ~ '>' ~ value ~ '</' ~ key ~ '>' }}{%- endfor %}{%- endfor %}
{%- for m in messages %}{{ '<|im_start|>' ~ m.role }}{{ note }}{{ m.content | trim }}{{ m.name }}{{ m.content }}
{%- for call in m.tool_calls or [] %}<{{ call.function.name | trim }}|{{ call.id }}>
{%- for key, value in call.function.arguments.items() %}<|{{ key }}|>{{ value }}{% endfor %}
{%- endfor %}<|im_end|>{%- endfor %}"""


@pytest.mark.parametrize("template", [QWEN_STYLE, _XML_STYLE], ids=["qwen", "xml"])
@settings(max_examples=150, deadline=None)
@given(_nasty, _nasty)
def test_client_text_never_forges_a_marker_and_arrives_unchanged(template: str, text: str, other: str) -> None:
    codec, vocabulary = _shared_codec(template)
    harmless = codec.render(_nasty_talk("x", "y"))
    rendered = codec.render(_nasty_talk(text, other))
    assert vocabulary.markers(rendered.tokens) == vocabulary.markers(harmless.tokens)
    spelled = vocabulary.text(rendered.tokens)
    assert text in spelled
    assert other + text in spelled or template == QWEN_STYLE


_codecs: dict[str, tuple[TemplateCodec, MarkerVocabulary]] = {}


def _shared_codec(template: str) -> tuple[TemplateCodec, MarkerVocabulary]:
    if template not in _codecs:
        _codecs[template] = _codec(template)
    return _codecs[template]


# ---- refusals


def test_model_without_a_template_cannot_chat() -> None:
    codec, _ = _codec(None)
    assert not codec.has_chat_template
    assert codec.template_text is None
    with pytest.raises(UnsupportedInputError):
        codec.render(ChatPrompt(messages=_TALK))


def test_template_shows_tools_if_it_speaks_of_them() -> None:
    with_tools, _ = _codec("{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{{ messages[0].content }}")
    without, _ = _codec("{{ messages[0].content }}")
    assert (with_tools.shows_tools, without.shows_tools) == (True, False)


def test_vocabulary_with_markers_around_reasoning_knows_it() -> None:
    with_markers, _ = _codec("{{ messages[0].content }}")
    assert with_markers.knows_reasoning
    _, vocabulary = _codec(None)
    del vocabulary.special_tokens["</think>"]
    assert not TemplateCodec(vocabulary).knows_reasoning


def test_template_that_does_not_compile_counts_as_none() -> None:
    codec, _ = _codec("{% if %}")
    assert not codec.has_chat_template
    assert codec.template_text == "{% if %}"


def test_conversation_the_template_refuses_is_refused_in_its_words() -> None:
    codec, _ = _codec(GEMMA_STYLE)
    with pytest.raises(TemplateRefusedError, match="Roles must alternate"):
        codec.render(ChatPrompt(messages=(_TALK[0], _TALK[2])))


def test_template_that_loops_is_refused_and_the_next_conversation_is_served() -> None:
    looks = itertools.count()
    source = (
        CHATML + "{% if loops %}{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}{% endif %}"
    )
    codec = TemplateCodec(MarkerVocabulary(source), render_seconds=1.0, cpu_clock=lambda: next(looks) / 10_000)
    with pytest.raises(TemplateRefusedError, match="too long"):
        codec.render(ChatPrompt(messages=_TALK, template_kwargs={"loops": True}))
    assert codec.render(ChatPrompt(messages=_TALK)).tokens


def test_arguments_nested_without_end_are_refused_not_crashed_on() -> None:
    codec, _ = _codec(QWEN_STYLE)
    deep: dict[str, Any] = {}
    for _level in range(5000):
        deep = {"a": deep}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    with pytest.raises(TemplateRefusedError, match="nested"):
        codec.render(ChatPrompt(messages=_TALK, tools=(tool,)))


# ---- cost


def test_conversation_one_turn_longer_tokenizes_that_turn_only() -> None:
    codec, vocabulary = _codec(CHATML)
    talk = tuple(
        Message(role="assistant" if index % 2 else "user", content=f"message {index} " * 20) for index in range(201)
    )
    codec.render(ChatPrompt(messages=talk[:199]))
    before = vocabulary.encoded_characters
    codec.render(ChatPrompt(messages=talk))
    assert vocabulary.encoded_characters - before < 3 * len(talk[200].content)


def test_text_with_a_bracket_template_is_cut_where_messages_end() -> None:
    codec, vocabulary = _codec(BRACKET_STYLE)
    rendered = codec.render(ChatPrompt(messages=_TALK))
    assert _spans(vocabulary, rendered.tokens, rendered.message_ends) == [
        "[Q] Hello [/Q]",
        " Hi!</s>",
        "[Q] How are you?  [/Q]",
        "",
    ]
