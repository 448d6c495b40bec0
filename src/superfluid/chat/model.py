"""Opens the text side of a model: its vocabulary and its codecs. Blocks; runs in a thread of the daemon."""

from pathlib import Path

from msgspec import Struct

from superfluid.chat.fake_tokenizer import ByteTokenizer
from superfluid.chat.interface import ModelVocabulary
from superfluid.chat.template import TemplateCodec
from superfluid.chat.turns import TemplateTurns


class LoadedText(Struct, frozen=True):
    """The vocabulary, and the codecs over it: of whole conversations, and of single turns."""

    tokenizer: ModelVocabulary
    codec: TemplateCodec
    turns: TemplateTurns


def open_text(path: Path | None, library_path: Path | None = None) -> LoadedText:
    """The text side of the model at ``path``, which a worker has loaded before; ``None`` is the fake engine's.

    Raises EngineLibraryError and ModelFileError.
    """
    if path is None:
        return _codecs(ByteTokenizer())
    # The fake engine's daemon never loads llama.cpp.
    from superfluid.chat.tokenizer import LlamaTokenizer

    return _codecs(LlamaTokenizer(str(path), None if library_path is None else str(library_path)))


def _codecs(vocabulary: ModelVocabulary) -> LoadedText:
    codec = TemplateCodec(vocabulary)
    return LoadedText(vocabulary, codec, TemplateTurns(vocabulary, codec))
