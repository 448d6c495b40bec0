"""From what the user calls a model to sound files on the disk. Runs in the daemon before it starts a worker."""

from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from superfluid.config import HubConfig
from superfluid.errors import ModelFileError, UsageError
from superfluid.models.embedded import fetch_embedded_model
from superfluid.models.gguf_header import GgufHeader, require_sound_model
from superfluid.models.names import HubId, looks_like_path, misnamed_hint, parse_hub_id, served_name, split_name
from superfluid.models.progress import PullProgress
from superfluid.models.projector import ProjectorFile, projector_beside, require_projector

NO_PROJECTOR: Final = "none"


class ModelFile(Struct, frozen=True, kw_only=True):
    """A model that is all there. ``path`` is what llama.cpp opens: of a split model the first part.

    ``header`` is the first part's; ``file_bytes`` counts all parts. That the header was readable does not make the file
    trustworthy: only a worker may load it.
    """

    name: str
    path: Path
    parts: tuple[Path, ...]
    file_bytes: int
    header: GgufHeader
    projector: ProjectorFile | None = None
    draft_model: Path | None = None


def resolve_model(
    model: str | None,
    hub: HubConfig,
    home: Path,
    progress: PullProgress,
    *,
    is_offline: bool = False,
    mmproj: str | None = None,
    pulls_mmproj: bool = True,
    draft_model: str | None = None,
) -> ModelFile:
    """Finds ``model``, pulling it if need be. Blocks, for as long as a pull takes.

    ``mmproj`` is the path of its projector, ``none`` for no projector, or None to look for one beside the file or pull
    it along, the latter unless ``pulls_mmproj`` is false, which only makes sense for hub ids. ``draft_model`` is the
    path of one that guesses for it.
    ``model`` is a path, ``org/model[:quant]``, or None for the embedded default. Raises UsageError if it is none of
    these, PullError if it cannot be fetched, ModelFileError if it is missing, incomplete, cut off or no GGUF.
    """
    check_model_name(model, pulls_mmproj=pulls_mmproj)
    source = None if model is None else classify(model)
    # Before a pull: a wrong path must not cost one.
    named = None if mmproj in (None, NO_PROJECTOR) else require_projector(Path(mmproj).expanduser(), is_named=True)
    draft = None if draft_model is None else _draft(Path(draft_model).expanduser())
    found: Path | None = None
    if source is None:
        path = fetch_embedded_model(home, progress, is_offline=is_offline)
        file = _checked(served_name(path), (path,))
    elif isinstance(source, Path):
        parts = _all_parts(source)
        file = _checked(served_name(parts[0]), parts)
        found = projector_beside(parts[0])
    else:
        # Only pulls need an HTTP client.
        from superfluid.models.hub import pull_model

        pulled = pull_model(source, hub, progress, is_offline=is_offline, wants_projector=pulls_mmproj and not mmproj)
        file = _checked(source.repository, pulled.parts)
        found = pulled.projector
    if named is None and mmproj is None and found is not None:
        named = _usable(found, progress)
    if draft is not None and draft.samefile(file.path):
        raise UsageError(
            f"the draft model {draft} is the model itself: guessing would cost what it saves", param="--speculate"
        )
    return replace(file, projector=named, draft_model=draft)


def _draft(path: Path) -> Path:
    """Its first part. Raises ModelFileError."""
    try:
        return _checked("", _all_parts(path)).path
    except ModelFileError as error:
        raise ModelFileError(f"the draft model cannot be used: {error.message}") from error


def _usable(projector: Path, progress: PullProgress) -> ProjectorFile | None:
    """Nobody named the file: if it is of no use, the model is served without."""
    try:
        return require_projector(projector, is_named=False)
    except ModelFileError as error:
        progress.note(f"{error.message}; serving without images")
        return None


def classify(model: str, *, param: str = "--model") -> Path | HubId:
    """What ``model`` means; an existing file always wins. Raises UsageError if it can be neither."""
    path = Path(model).expanduser()
    if path.exists() or (looks_like_path(model) and "://" not in model):
        return path
    hub_id = parse_hub_id(model)
    if hub_id is None:
        hint = misnamed_hint(model)
        problem = f"{model!r} is neither a file nor a hub id of the form org/model[:quant]"
        raise UsageError(problem if hint is None else f"{problem}; {hint}", param=param)
    return hub_id


def check_model_name(model: str | None, *, pulls_mmproj: bool = True, param: str = "--model") -> None:
    """What can be said without a network or a look into the file. Raises UsageError, and ModelFileError for no file."""
    source = None if model is None else classify(model, param=param)
    if not pulls_mmproj and not isinstance(source, HubId):
        raise UsageError("--pull-no-mmproj is for models from the hub, org/model[:quant]", param="--pull-no-mmproj")
    if isinstance(source, Path):
        _all_parts(source)


def _all_parts(path: Path) -> tuple[Path, ...]:
    if path.is_dir():
        raise ModelFileError(f"{path} is a directory; name the .gguf file in it")
    split = split_name(path.name)
    if split is None:
        if not path.exists():
            raise ModelFileError(f"{path} does not exist")
        return (path,)
    parts = tuple(path.with_name(split.part(number)) for number in range(1, split.parts + 1))
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ModelFileError(f"{path} is one of {split.parts} parts, of which these are missing: {shown}")
    return parts


def _checked(name: str, parts: tuple[Path, ...]) -> ModelFile:
    headers = [require_sound_model(part) for part in parts]
    return ModelFile(
        name=name,
        path=parts[0],
        parts=parts,
        file_bytes=sum(header.file_bytes for header in headers),
        header=headers[0],
    )
