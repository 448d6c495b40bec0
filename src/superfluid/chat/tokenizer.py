"""A model's vocabulary in the daemon, through llama.cpp: text to tokens, and what each token stands for.

A damaged file can abort the process that reads it, even if only its vocabulary is read. So a worker loads the file
first, and the daemon opens it only after that has succeeded.
"""

import ctypes
from collections.abc import Iterator
from typing import Any, Final

from superfluid.chat.bound import PromptBound
from superfluid.chat.infill import known_infill_markers
from superfluid.chat.interface import InfillMarkers, TemplateSource
from superfluid.chat.llama_library import load_llama_library
from superfluid.chat.markers import (
    MarkerSplitter,
    break_look_alikes,
    encode_with_markers,
    is_marker_text,
    marker_pattern,
)
from superfluid.errors import ModelFileError

_MAX_RUN_CHARACTERS: Final = 4096
"""Some vocabularies are cut into words by ``std::regex``, which recurses once a character: a run of 25,000 letters or
digits overflows an 8 MB stack and kills the process. Text goes in by pieces of at most this length."""

_LEAD: Final = "\x01"
"""A character that no vocabulary merges with what follows it."""


class LlamaTokenizer:
    """``ModelVocabulary`` over a GGUF file. Thread-safe: the vocabulary is only read. Pieces are kept as Python bytes,
    so decoding never enters the library."""

    def __init__(self, path: str, llama_library_path: str | None = None) -> None:
        """Opens the vocabulary and nothing else; takes tens of milliseconds, blocks. Call it after a worker has loaded
        the same file.

        Raises EngineLibraryError and ModelFileError.
        """
        self._library = load_llama_library(llama_library_path)
        self._model = _open_vocabulary(self._library, path)
        self._vocabulary = self._library.llama_model_get_vocab(self._model)
        library, vocabulary = self._library, self._vocabulary
        self.vocabulary_tokens: int = library.llama_vocab_n_tokens(vocabulary)
        self._pieces = list(_read_pieces(library, vocabulary, self.vocabulary_tokens))
        self.prompt_bound: PromptBound | None = None
        """Text that begins a stream and passes it is refused with ContextLengthExceededError."""
        self._classify_tokens()
        self.infill_markers = self._find_infill_markers()
        self._is_bpe = library.llama_vocab_type(vocabulary) == library.LLAMA_VOCAB_TYPE_BPE
        bos = library.llama_vocab_bos(vocabulary)
        self._prologue = [bos] if bos >= 0 and library.llama_vocab_get_add_bos(vocabulary) else []
        self._lead = self._tokenize(_LEAD)
        first = self._tokenize("a")[:1]
        self._puts_space = not self._is_bpe and bool(first) and self._pieces[first[0]].startswith(b" ")
        self.template_source = TemplateSource(
            default=self._chat_template(None),
            tool_use=self._chat_template(b"tool_use"),
            bos_text=self._token_text(bos),
            eos_text=self._token_text(library.llama_vocab_eos(vocabulary)),
        )

    def _classify_tokens(self) -> None:
        library, vocabulary = self._library, self._vocabulary
        special: dict[str, int] = {}
        user_defined: list[str] = []
        sets: dict[str, set[int]] = {"control": set(), "before": set(), "after": set(), "end": set()}
        control = library.LLAMA_TOKEN_ATTR_CONTROL | library.LLAMA_TOKEN_ATTR_UNKNOWN
        for token in range(self.vocabulary_tokens):
            attributes = library.llama_vocab_get_attr(vocabulary, token)
            if not attributes & (control | library.LLAMA_TOKEN_ATTR_USER_DEFINED):
                continue
            text = self._token_text(token)
            if attributes & control:
                sets["control"].add(token)
            elif is_marker_text(text):
                user_defined.append(text)
            else:
                continue
            if text:
                special.setdefault(text, token)
            if attributes & library.LLAMA_TOKEN_ATTR_LSTRIP:
                sets["before"].add(token)
            if attributes & library.LLAMA_TOKEN_ATTR_RSTRIP:
                sets["after"].add(token)
        sets["end"] = {
            token for token in range(self.vocabulary_tokens) if library.llama_vocab_is_eog(vocabulary, token)
        }
        self.special_tokens: dict[str, int] = special
        self.control_tokens: frozenset[int] = frozenset(sets["control"])
        self.strips_text_before: frozenset[int] = frozenset(sets["before"])
        self.strips_text_after: frozenset[int] = frozenset(sets["after"])
        self.end_of_generation: frozenset[int] = frozenset(sets["end"])
        self._splitter = MarkerSplitter(
            special,
            strips_text_before=self.strips_text_before,
            strips_text_after=self.strips_text_after,
        )
        self._user_defined = marker_pattern(user_defined)
        self._markers = frozenset(special.values())

    def encode_text(self, text: str, *, is_start: bool = False) -> list[int]:
        if not is_start:
            return self.encode_fragment(text, follows_marker=False)
        if self.prompt_bound is not None:
            self.prompt_bound.check(len(text))
        return self._prologue + self.encode_fragment(text, follows_marker=True)

    def encode_template(self, text: str, *, is_start: bool = False) -> list[int]:
        if is_start and self.prompt_bound is not None:
            self.prompt_bound.check(len(text))
        tokens = encode_with_markers(
            text,
            self._splitter,
            lambda part, follows_marker: self.encode_fragment(part, follows_marker=follows_marker),
            follows_marker=is_start,
        )
        if is_start and tokens[: len(self._prologue)] != self._prologue:
            return self._prologue + tokens
        return tokens

    def encode_fragment(self, text: str, *, follows_marker: bool) -> list[int]:
        # With special tokens off llama.cpp still recognizes user-defined ones: their look-alikes are cut apart first.
        tokens: list[int] = []
        takes_space = follows_marker
        for part in break_look_alikes(self._user_defined, text):
            for run in self._runs(part):
                tokens += self._encode_run(run, takes_space=takes_space)
                takes_space = False
        if self._markers.isdisjoint(tokens):
            return tokens
        return self._encode_characters(text)

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def close(self) -> None:
        """Frees the vocabulary; nothing may be encoded any more. Idempotent."""
        if self._model is not None:
            self._library.llama_model_free(self._model)
            self._model = None

    def _encode_characters(self, text: str) -> list[int]:
        """A merge produced a marker after all: the characters one by one cannot."""
        tokens: list[int] = []
        for character in text:
            tokens += self._encode_run(character, takes_space=False)
        return [token for token in tokens if token not in self._markers]

    def _encode_run(self, text: str, *, takes_space: bool) -> list[int]:
        if takes_space or not self._puts_space:
            return self._tokenize(text)
        # llama.cpp puts its space before whatever a call begins with: begin with something that can be taken off again.
        tokens = self._tokenize(_LEAD + text)
        lead = len(self._lead)
        return tokens[lead:] if tokens[:lead] == self._lead else self._tokenize(text)

    def _runs(self, text: str) -> Iterator[str]:
        if not self._is_bpe:
            yield text
            return
        start = 0
        while len(text) - start > _MAX_RUN_CHARACTERS:
            end = _word_boundary(text, start + _MAX_RUN_CHARACTERS // 2, start + _MAX_RUN_CHARACTERS)
            yield text[start:end]
            start = end
        yield text[start:]

    def _tokenize(self, text: str) -> list[int]:
        # A lone surrogate is no text; invalid UTF-8 would make llama.cpp throw through the binding.
        data = text.encode("utf-8", "replace")
        capacity = len(data) + 16
        while True:
            buffer = (ctypes.c_int32 * capacity)()
            count = self._library.llama_tokenize(self._vocabulary, data, len(data), buffer, capacity, False, False)
            if count >= 0:
                return buffer[:count]
            capacity = -count

    def _token_text(self, token: int) -> str:
        """The text llama.cpp matches a marker by, or empty if there is no such token."""
        if token < 0:
            return ""
        text: bytes | None = self._library.llama_vocab_get_text(self._vocabulary, token)
        return (text or b"").decode("utf-8", "replace")

    def _find_infill_markers(self) -> InfillMarkers | None:
        """Those that the file names or llama.cpp knows by their texts; else those that we know."""
        library, vocabulary = self._library, self._vocabulary
        prefix = library.llama_vocab_fim_pre(vocabulary)
        suffix = library.llama_vocab_fim_suf(vocabulary)
        middle = library.llama_vocab_fim_mid(vocabulary)
        if all(0 <= token < self.vocabulary_tokens for token in (prefix, suffix, middle)):
            return InfillMarkers(prefix, suffix, middle)
        return known_infill_markers(self.special_tokens)

    def _chat_template(self, name: bytes | None) -> str | None:
        text: bytes | None = self._library.llama_model_chat_template(self._model, name)
        return None if text is None else text.decode("utf-8", "replace")


def _open_vocabulary(library: Any, path: str) -> Any:
    library.llama_backend_init()
    parameters = library.llama_model_default_params()
    parameters.vocab_only = True
    model = library.llama_model_load_from_file(path.encode(), parameters)
    if not model:
        raise ModelFileError(f"the vocabulary of {path} could not be read")
    return model


def _read_pieces(library: Any, vocabulary: Any, count: int) -> Iterator[bytes]:
    capacity = 256
    buffer = ctypes.create_string_buffer(capacity)
    for token in range(count):
        length = library.llama_token_to_piece(vocabulary, token, buffer, capacity, 0, True)
        if length < 0:
            capacity = -length
            buffer = ctypes.create_string_buffer(capacity)
            length = library.llama_token_to_piece(vocabulary, token, buffer, capacity, 0, True)
        yield ctypes.string_at(buffer, length)


def _word_boundary(text: str, low: int, high: int) -> int:
    """Where between ``low`` and ``high`` to cut so that tokens do not change: before a blank between two letters. Else
    ``high``."""
    position = text.rfind(" ", low, high)
    while position > low:
        if text[position - 1].isalpha() and text[position + 1 : position + 2].isalpha():
            return position
        position = text.rfind(" ", low, position)
    return high
