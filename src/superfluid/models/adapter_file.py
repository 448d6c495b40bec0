"""A look at a LoRA adapter's file before a worker is asked to load it. Runs in the daemon; blocks."""

from pathlib import Path

from superfluid.errors import AdapterRefusedError, ModelFileError
from superfluid.models.gguf_header import GgufHeader, require_sound_model


def require_adapter(path: Path, architecture: str | None) -> None:
    """Whether the shapes fit is the engine's to say; ``architecture`` is the model's, ``None`` if any will do.

    Raises AdapterRefusedError: no GGUF, cut or damaged, no adapter, or one for another kind of model.
    """
    try:
        if path.exists() and not path.is_file():
            raise AdapterRefusedError(f"{path} is no file", param="path")
    except OSError as error:  # a name that is too long, a loop of links, a closed directory on the way
        raise AdapterRefusedError(f"{str(path)[:200]} cannot be read: {error.strerror}", param="path") from error
    try:
        header = require_sound_model(path)
    except ModelFileError as error:
        raise AdapterRefusedError(error.message, param="path") from error
    reason = _refusal(header, architecture)
    if reason:
        raise AdapterRefusedError(f"{path} {reason}", param="path")


def _refusal(header: GgufHeader, architecture: str | None) -> str:
    adapter = header.adapter
    if adapter is None:
        return "is no adapter: its header does not say general.type = adapter"
    if adapter.kind != "lora":
        return f"is no LoRA adapter but of the type {adapter.kind!r}"
    if header.architecture is None:
        return "does not say which architecture it is for"
    if architecture is not None and header.architecture != architecture:
        return f"is for {header.architecture} models; this one is {architecture}"
    if adapter.alpha is None:
        return "is damaged: adapter.lora.alpha is no number"
    if adapter.is_invoked:
        return "is switched on by tokens of the prompt (aLoRA), which is not supported"
    if header.tensors == 0:
        return "has no tensors"
    return ""
