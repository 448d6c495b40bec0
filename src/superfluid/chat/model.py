"""Opens the text side of a model: its vocabulary and its codec. Blocks; runs in a thread of the daemon."""

from pathlib import Path

from msgspec import Struct

from superfluid.chat.fake_tokenizer import ByteTokenizer
from superfluid.chat.interface import ModelVocabulary
from superfluid.chat.template import TemplateCodec


class LoadedText(Struct, frozen=True):
    """The vocabulary and the codec over it."""

    tokenizer: ModelVocabulary
    codec: TemplateCodec


def open_text(path: Path | None, library_path: Path | None = None) -> LoadedText:
    """The text side of the model at ``path``, which a worker has loaded before; ``None`` is the fake engine's.

    Raises EngineLibraryError and ModelFileError.
    """
    if path is None:
        fake = ByteTokenizer()
        return LoadedText(fake, TemplateCodec(fake))
    # The fake engine's daemon never loads llama.cpp.
    from superfluid.chat.tokenizer import LlamaTokenizer

    vocabulary = LlamaTokenizer(str(path), None if library_path is None else str(library_path))
    return LoadedText(vocabulary, TemplateCodec(vocabulary))
