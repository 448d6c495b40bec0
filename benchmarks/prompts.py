"""Prompts of an exact number of tokens, the same for every contender and different for every seed."""

import ctypes
import random
from pathlib import Path
from types import TracebackType
from typing import Any

import llama_cpp.llama_cpp as llama
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from benchmarks.quiet import silence_llama

_WORDS = tuple(
    """time people water light house morning river paper music garden window children winter story country road mountain
    letter summer market bread kitchen forest teacher village weather station island bridge picture doctor animal
    question answer number table evening friend travel engine silver copper little early quiet open bright slowly
    often again under between always never together""".split()  # noqa: SIM905 - a list of a hundred quotes reads worse
)


class Vocabulary:
    """The model's vocabulary, without its weights. A context manager."""

    def __init__(self, model: Path) -> None:
        llama.llama_backend_init()
        silence_llama()
        params = llama.llama_model_default_params()
        params.vocab_only = True
        self._model = llama.llama_model_load_from_file(str(model).encode(), params)
        if not self._model:
            raise FileNotFoundError(f"llama.cpp cannot read the vocabulary of {model}")
        self._vocabulary = llama.llama_model_get_vocab(self._model)

    def __enter__(self) -> "Vocabulary":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        llama.llama_model_free(self._model)

    def encode(self, text: str, *, is_template: bool = False) -> list[int]:
        """Token ids of ``text``; ``is_template`` reads markers such as ``<|im_start|>`` as what they stand for."""
        data = text.encode()
        room = len(data) + 8
        tokens = (ctypes.c_int32 * room)()
        count = llama.llama_tokenize(self._vocabulary, data, len(data), tokens, room, False, is_template)
        assert count >= 0, "a token is at least one byte, so the room sufficed"
        return list(tokens[:count])

    def count(self, text: str) -> int:
        """How many tokens ``text`` has."""
        return len(self.encode(text))

    def chat_length(self, content: str) -> int:
        """Tokens of a conversation that consists of this message of the user, up to where the reply begins: as a server
        reads it, with all that the model's template adds."""
        messages: Any = [{"role": "user", "content": content}]
        template = llama.llama_model_chat_template(self._model, None)
        if not template:
            return len(self.encode(chat_text(messages), is_template=True))
        formatter = Jinja2ChatFormatter(template.decode(), eos_token="", bos_token="")
        return len(self.encode(formatter(messages=messages).prompt, is_template=True))

    def end_tokens(self) -> list[int]:
        """Every token at which an engine ends a generation."""
        count = llama.llama_vocab_n_tokens(self._vocabulary)
        return [token for token in range(count) if llama.llama_vocab_is_eog(self._vocabulary, token)]

    @property
    def has_template(self) -> bool:
        """Whether the model says how a conversation is written."""
        return bool(llama.llama_model_chat_template(self._model, None))

    def text_of(self, token_count: int, seed: int) -> str:
        """Words that make exactly ``token_count`` tokens; different from the first word on for another seed."""
        source = random.Random(seed)
        words = [source.choice(_WORDS) for _ in range(token_count)]
        while (count := len(self.encode(" ".join(words)))) != token_count:
            if count > token_count:
                words.pop()
            else:
                words.append(source.choice(_WORDS))
        return " ".join(words)


def chat_text(messages: list[dict[str, str]]) -> str:
    """A conversation in ChatML, up to where the reply begins."""
    turns = [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages]
    return "".join(turns) + "<|im_start|>assistant\n"


def chat_prefix(system: str) -> str:
    """What two ChatML conversations with this system message have in common, up to the first user message's text."""
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"
