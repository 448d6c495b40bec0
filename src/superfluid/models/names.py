"""What model files are called: split parts, hub ids, and the name a model is served under. Pure; in the daemon."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<parts>\d{5})\.gguf", re.IGNORECASE)
_HUB_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/(?P<rest>.+)", re.IGNORECASE)
_HUB_ID = re.compile(r"(?P<repository>[\w][\w.-]*/[\w][\w.-]*)(?::(?P<quant>[\w.-]+))?", re.ASCII)


class SplitName(NamedTuple):
    """One part of a split model: ``stem-00002-of-00005.gguf`` is ``number`` 2 of ``parts`` 5."""

    stem: str
    number: int
    parts: int

    def part(self, number: int) -> str:
        """The file name of part ``number``, counted from 1."""
        return f"{self.stem}-{number:05}-of-{self.parts:05}.gguf"


class HubId(NamedTuple):
    """``org/model[:quant]``."""

    repository: str
    quant: str | None


def split_name(file_name: str) -> SplitName | None:
    """The part that ``file_name`` is, or None if it is a whole model."""
    match = _SPLIT.fullmatch(file_name)
    if match is None:
        return None
    name = SplitName(match["stem"], int(match["number"]), int(match["parts"]))
    return name if 1 <= name.number <= name.parts else None


def model_stem(file_name: str) -> str:
    """``file_name`` without ``.gguf`` and without the suffix of a part."""
    split = split_name(file_name)
    if split is not None:
        return split.stem
    return file_name[: -len(".gguf")] if file_name.lower().endswith(".gguf") else file_name


def served_name(path: Path, taken: Collection[str] = ()) -> str:
    """The name of the model at ``path``: its stem; where that is taken, its file name, then ``parent/name``."""
    for name in (model_stem(path.name), path.name):
        if name not in taken:
            return name
    return f"{path.parent.name}/{path.name}"


def looks_like_path(text: str) -> bool:
    """Whether ``text`` can only mean a file, existing or not."""
    return text.startswith((".", "/", "~")) or text.lower().endswith(".gguf")


def parse_hub_id(text: str) -> HubId | None:
    """``text`` as a hub id, or None if it is none. Whether a file of that name exists is the caller's to ask first."""
    if looks_like_path(text):
        return None
    match = _HUB_ID.fullmatch(text)
    if match is None or ".." in text or "--" in text:
        return None
    return HubId(match["repository"], match["quant"])


def misnamed_hint(text: str) -> str | None:
    """What somebody probably meant by ``text``, which is neither a file nor a hub id: a clause, or None."""
    address = _HUB_ADDRESS.fullmatch(text)
    if address is not None:
        meant = "/".join(address["rest"].split("/")[:2])
        return f"of the hub's address only {meant} is needed" if parse_hub_id(meant) is not None else None
    if "://" in text:
        return "it cannot be an address; fetch the file and give its path"
    if "/" not in text:
        return "a name alone, as Ollama has them, says nothing here: organisation and repository are needed"
    return None
