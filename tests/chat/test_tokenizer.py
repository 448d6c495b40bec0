"""The vocabulary of a real GGUF file, and the fake one: both hold to the Tokenizer contract."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.chat_templates import CHATML
from tests.fixtures.vocabulary_gguf import write_vocabulary

from superfluid.chat.bound import PromptBound
from superfluid.chat.fake_tokenizer import ByteTokenizer
from superfluid.chat.interface import ModelVocabulary
from superfluid.chat.template import TemplateCodec
from superfluid.chat.tokenizer import LlamaTokenizer
from superfluid.domain.request import ChatPrompt, Message
from superfluid.errors import ContextLengthExceededError, ModelFileError

_MARKERS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> LlamaTokenizer:
    path = tmp_path_factory.mktemp("bpe") / "v.gguf"
    return LlamaTokenizer(str(write_vocabulary(path, kind="bpe", template=CHATML, tool_template="{{ tools }}")))


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> LlamaTokenizer:
    path = tmp_path_factory.mktemp("spm") / "v.gguf"
    return LlamaTokenizer(str(write_vocabulary(path, kind="spm", add_bos=True)))


@pytest.fixture(params=["fake", "bpe", "spm"])
def vocabulary(request: pytest.FixtureRequest) -> ModelVocabulary:
    if request.param == "fake":
        return ByteTokenizer()
    tokenizer: LlamaTokenizer = request.getfixturevalue(request.param)
    return tokenizer


def _spell(vocabulary: ModelVocabulary, tokens: list[int]) -> str:
    return b"".join(vocabulary.piece(token) for token in tokens).decode()


@pytest.mark.parametrize(
    "text", ["", "the theme", " a  b\n\nc", "é汉🎉", "\x00\x01", "a<think>b</think><|im_end|>", "<think" * 3]
)
def test_text_comes_back_from_its_tokens_and_holds_no_marker(vocabulary: ModelVocabulary, text: str) -> None:
    tokens = vocabulary.encode_text(text)
    assert _spell(vocabulary, tokens) == text
    assert vocabulary.special_tokens.keys() >= set(_MARKERS)
    assert set(vocabulary.special_tokens.values()).isdisjoint(tokens)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([*_MARKERS, "<", "th", "e", " ", "\n", "nk>", "</s>", "<s>", "é"]), max_size=10).map(
        "".join
    )
)
def test_look_alikes_in_text_stay_text_in_real_vocabularies(
    bpe: LlamaTokenizer, spm: LlamaTokenizer, text: str
) -> None:
    for vocabulary in (bpe, spm):
        tokens = vocabulary.encode_text(text)
        assert _spell(vocabulary, tokens) == text
        assert set(vocabulary.special_tokens.values()).isdisjoint(tokens)


def test_template_text_turns_markers_into_their_tokens(vocabulary: ModelVocabulary) -> None:
    tokens = vocabulary.encode_template("<|im_start|>the<think>")
    special = vocabulary.special_tokens
    assert (tokens[0], tokens[-1]) == (special["<|im_start|>"], special["<think>"])
    assert set(special.values()).isdisjoint(tokens[1:-1])


def test_lone_surrogate_becomes_a_question_mark(vocabulary: ModelVocabulary) -> None:
    assert _spell(vocabulary, vocabulary.encode_text("a\ud800b")) == "a?b"


def test_every_token_has_a_piece(vocabulary: ModelVocabulary) -> None:
    assert all(isinstance(vocabulary.piece(token), bytes) for token in range(vocabulary.vocabulary_tokens))
    with pytest.raises(IndexError):
        vocabulary.piece(vocabulary.vocabulary_tokens)


def test_start_of_a_stream_gets_bos_and_blank_where_the_vocabulary_wants_them(
    bpe: LlamaTokenizer, spm: LlamaTokenizer
) -> None:
    assert bpe.encode_text("the", is_start=True) == bpe.encode_text("the")
    bos = spm.special_tokens["<s>"]
    assert spm.encode_text("", is_start=True) == [bos]
    started = spm.encode_text("the", is_start=True)
    assert started[0] == bos
    assert _spell(spm, started[1:]) == " the"


def test_blank_goes_behind_markers_and_nowhere_else(spm: LlamaTokenizer) -> None:
    assert _spell(spm, spm.encode_fragment("the<think>he", follows_marker=True)) == " the<think>he"
    assert _spell(spm, spm.encode_fragment("the<think>he", follows_marker=False)) == "the<think>he"
    assert _spell(spm, spm.encode_template("a<think>b")) == "a<think> b"


def test_bos_in_the_template_text_is_not_doubled(spm: LlamaTokenizer) -> None:
    bos = spm.special_tokens["<s>"]
    assert spm.encode_template("<s>a", is_start=True).count(bos) == 1
    assert spm.encode_template("a", is_start=True).count(bos) == 1


def test_control_tokens_are_told_from_user_defined_ones(bpe: LlamaTokenizer) -> None:
    assert bpe.special_tokens["<|im_end|>"] in bpe.control_tokens
    assert bpe.special_tokens["<think>"] not in bpe.control_tokens
    assert bpe.special_tokens["</s>"] in bpe.end_of_generation


def test_template_source_is_read_from_the_file(bpe: LlamaTokenizer, spm: LlamaTokenizer) -> None:
    source = bpe.template_source
    assert (source.default, source.tool_use, source.bos_text, source.eos_text) == (CHATML, "{{ tools }}", "<s>", "</s>")
    assert spm.template_source.default is None


@pytest.mark.parametrize("run", ["a", "1", " ", "<", "é", "word "])
def test_run_long_enough_to_overflow_a_regular_expression_is_tokenized(tmp_path: Path, run: str) -> None:
    """llama.cpp cuts this kind of vocabulary into words by a recursive ``std::regex``: 40,000 letters in one piece kill
    the process."""
    tokenizer = LlamaTokenizer(str(write_vocabulary(tmp_path / "v.gguf", kind="bpe", pre="falcon")))
    text = run * (40_000 // len(run))
    assert _spell(tokenizer, tokenizer.encode_text(text)) == text


def test_long_text_is_cut_where_its_tokens_do_not_change(bpe: LlamaTokenizer) -> None:
    sentence = "the theme of the other "
    whole = bpe.encode_text(sentence * 1000)
    assert len(whole) == 1000 * len(bpe.encode_text(sentence))


def test_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    path.write_bytes(b"GGUF is not what this is")
    with pytest.raises(ModelFileError, match=r"v\.gguf"):
        LlamaTokenizer(str(path))


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    tokenizer = LlamaTokenizer(str(write_vocabulary(tmp_path / "v.gguf", kind="bpe")))
    tokenizer.close()
    tokenizer.close()
    assert tokenizer.piece(0)


def test_codec_on_a_real_vocabulary_writes_markers_and_keeps_look_alikes(bpe: LlamaTokenizer) -> None:
    codec = TemplateCodec(bpe)
    rendered = codec.render(ChatPrompt(messages=(Message(role="user", content="the <|im_end|><think>"),)))
    special = bpe.special_tokens
    marks = [token for token in rendered.tokens if token in special.values()]
    assert marks == [special["<|im_start|>"], special["<|im_end|>"], special["<|im_start|>"]]
    assert _spell(bpe, rendered.tokens) == (
        "<|im_start|>user\nthe <|im_end|><think><|im_end|>\n<|im_start|>assistant\n"
    )


def test_text_prompt_over_the_bound_is_refused_and_a_piece_of_text_is_not(bpe: LlamaTokenizer) -> None:
    bpe.prompt_bound = PromptBound(bpe, 1)
    try:
        with pytest.raises(ContextLengthExceededError):
            bpe.encode_text("a" * 10_000, is_start=True)
        with pytest.raises(ContextLengthExceededError):
            bpe.encode_template("a" * 10_000, is_start=True)
        assert len(bpe.encode_text("a" * 10_000)) > 1
    finally:
        bpe.prompt_bound = None
