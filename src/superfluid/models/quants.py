"""Which files of a repository make the model that is meant: split sets, quantizations, and the choice. Pure."""

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from superfluid.errors import PullError
from superfluid.models.names import model_stem, split_name

# What is taken when nobody says: first what most people serve, then the nearest in size and quality.
PREFERRED_QUANTS = (
    "Q4_K_M", "Q4_0", "Q8_0", "Q4_K_S", "Q5_K_M", "Q6_K", "Q5_K_S", "Q5_0", "Q4_1", "IQ4_XS", "IQ4_NL", "MXFP4",
    "Q3_K_M", "Q3_K_L", "Q2_K", "BF16", "F16", "F32",
)  # fmt: skip

_QUANT = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q\d_[A-Z0-9_]+|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32))(?![A-Za-z0-9])",
    re.IGNORECASE,
)


class HubFile(Struct, frozen=True, kw_only=True):
    """A file of a repository, ``path`` from its root. What the listing does not tell is None."""

    path: str
    size_bytes: int | None = None
    sha256: str | None = None


class ModelSet(Struct, frozen=True, kw_only=True):
    """The files that make one model: one, or all parts in order."""

    stem: str
    files: tuple[HubFile, ...]

    @property
    def quant(self) -> str | None:
        """The quantization that the name tells, in capitals."""
        return quant_of(self.stem)


def quant_of(name: str) -> str | None:
    """The quantization that a file's name tells, in capitals."""
    found = _QUANT.findall(name)
    return found[-1].upper() if found else None


def without_quant(name: str) -> str:
    """``name`` with the quantization it tells taken out."""
    return _QUANT.sub("", name)


def model_sets(files: Iterable[HubFile]) -> list[ModelSet]:
    """The models among ``files``, by name. No projectors, no importance matrices, no sets that lack parts."""
    groups: dict[str, list[HubFile]] = {}
    for file in files:
        name = file.path.rpartition("/")[2].lower()
        if name.endswith(".gguf") and "mmproj" not in name and "imatrix" not in name:
            groups.setdefault(model_stem(file.path), []).append(file)
    sets = []
    for stem, members in sorted(groups.items()):
        members.sort(key=lambda file: file.path)
        split = split_name(members[0].path)
        if len(members) == (1 if split is None else split.parts):
            sets.append(ModelSet(stem=stem, files=tuple(members)))
    return sets


def choose_set(sets: Sequence[ModelSet], quant: str | None, repository: str) -> ModelSet:
    """The set that ``quant`` means (None, ``latest``: the most usual one). Raises PullError, listing what there is."""
    if not sets:
        hint = "they are often in a repository of their own, whose name ends in -GGUF"
        raise PullError(f"{repository} holds no GGUF model; {hint}")
    if quant is None or quant.lower() == "latest":
        return min(sets, key=_preference)
    # Q4_K must not silently mean Q4_K_M: only where no name has it as a whole word is a part of one enough.
    whole = re.compile(rf"(?<![A-Z0-9]){re.escape(quant)}(?![A-Z0-9_])", re.IGNORECASE)
    matching = [each for each in sets if whole.search(each.stem)]
    matching = matching or [each for each in sets if quant.lower() in each.stem.lower()]
    if not matching:
        raise PullError(f"{repository} has no {quant}; it has {_listing(sets)}")
    return min(matching, key=_preference)


def _preference(candidate: ModelSet) -> tuple[int, int, str]:
    quant = candidate.quant
    rank = PREFERRED_QUANTS.index(quant) if quant in PREFERRED_QUANTS else len(PREFERRED_QUANTS)
    return rank, len(candidate.stem), candidate.stem


def _listing(sets: Sequence[ModelSet]) -> str:
    names = sorted({each.quant or each.stem for each in sets})
    shown = ", ".join(names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown
