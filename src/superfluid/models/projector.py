"""Finding the file that lets a model see images: named, beside the model, or in its repository. Runs in the daemon."""

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from superfluid.errors import ModelFileError
from superfluid.models.gguf_header import require_sound_model
from superfluid.models.names import model_stem
from superfluid.models.quants import quant_of, without_quant

# A projector is small and its precision shows: not the smallest, but the one that most people serve.
_PREFERRED_QUANTS = ("F16", "BF16", "Q8_0", "F32")


class ProjectorFile(Struct, frozen=True, kw_only=True):
    """A projector that is all there. ``encoder`` is what its header calls it. One that was not ``is_named`` by anybody
    must not keep the model from being served."""

    path: Path
    encoder: str
    is_named: bool


def require_projector(path: Path, *, is_named: bool) -> ProjectorFile:
    """Raises ModelFileError if it is missing, cut off, or nothing that makes a model see."""
    header = require_sound_model(path)
    if header.projector_type is None:
        raise ModelFileError(f"{path} is no projector for images: it holds a {header.architecture or 'nameless'} model")
    return ProjectorFile(path=path, encoder=header.projector_type, is_named=is_named)


def is_projector_name(name: str) -> bool:
    """``name`` is a file's name without its directory."""
    return name.lower().startswith("mmproj") and name.lower().endswith(".gguf")


def projector_beside(model: Path) -> Path | None:
    """The file in the model's directory whose name begins with ``mmproj``. Of several the one named like the model."""
    try:
        names = [entry.name for entry in model.parent.iterdir() if is_projector_name(entry.name)]
    except OSError:
        return None
    chosen = choose_projector(names, model.name)
    return None if chosen is None else model.parent / chosen


def choose_projector(names: Iterable[str], model_name: str) -> str | None:
    """Of several (paths in a repository, or names): first those named like the model, then by precision."""
    name = model_stem(model_name.rpartition("/")[2]).lower()

    def rank(candidate: str) -> tuple[int, int, str]:
        shared = _shared_letters(_bare(candidate), name)
        quant = quant_of(candidate)
        precision = _PREFERRED_QUANTS.index(quant) if quant in _PREFERRED_QUANTS else len(_PREFERRED_QUANTS)
        return -shared, precision, candidate

    return min(names, key=rank, default=None)


def _bare(path: str) -> str:
    """A projector's name without what makes it one, and without its precision."""
    return without_quant(model_stem(path.rpartition("/")[2])).lower().removeprefix("mmproj").strip("-_.")


def _shared_letters(projector: str, model: str) -> int:
    """How much of its beginning the model's name shares; a few letters are no sign of kinship."""
    count = 0
    for left, right in zip(projector, model, strict=False):
        if left != right:
            break
        count += 1
    return count if count >= 4 else 0
