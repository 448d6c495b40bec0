"""Opens the text side of a model: its vocabulary and its codecs. Blocks; runs in a thread of the daemon."""

from pathlib import Path

from msgspec import Struct

from superfluid.chat.bound import PromptBound
from superfluid.chat.fake_tokenizer import ByteTokenizer
from superfluid.chat.interface import ModelVocabulary
from superfluid.chat.template import TemplateCodec
from superfluid.chat.turns import TemplateTurns


class LoadedText(Struct, frozen=True):
    """The vocabulary, and the codecs over it: of whole conversations, and of single turns."""

    tokenizer: ModelVocabulary
    codec: TemplateCodec
    turns: TemplateTurns


def open_text(
    path: Path | None, llama_library_path: Path | None = None, *, window_tokens: int | None = None
) -> LoadedText:
    """The text side of the model at ``path``, which a worker has loaded before; ``None`` is the fake engine's.

    What cannot fit ``window_tokens`` is refused as it is. Raises EngineLibraryError and ModelFileError.
    """
    if path is None:
        return _codecs(ByteTokenizer(), window_tokens)
    # The fake engine's daemon never loads llama.cpp.
    from superfluid.chat.tokenizer import LlamaTokenizer

    tokenizer = LlamaTokenizer(str(path), None if llama_library_path is None else str(llama_library_path))
    if window_tokens is not None:
        tokenizer.prompt_bound = PromptBound(tokenizer, window_tokens)
    return _codecs(tokenizer, window_tokens)


def _codecs(vocabulary: ModelVocabulary, window_tokens: int | None) -> LoadedText:
    bound = None if window_tokens is None else PromptBound(vocabulary, window_tokens)
    codec = TemplateCodec(vocabulary, bound=bound)
    return LoadedText(vocabulary, codec, TemplateTurns(vocabulary, codec))
