"""The hub cache's layout on disk, as huggingface_hub defines it: other tools find what we pull, and we what they did.

models--org--name/refs/main                   the commit that the branch stood at
models--org--name/snapshots/<commit>/<path>   symlink into blobs
models--org--name/blobs/<etag>                content, <etag>.incomplete while it arrives
.locks/models--org--name/<etag>.lock
"""

import os
import re
from pathlib import Path

from superfluid.errors import PullError
from superfluid.models.quants import HubFile

_SAFE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


class HubCache:
    """One repository's folder in the cache. Names that come from the hub are checked before they become paths."""

    def __init__(self, root: Path, repository: str) -> None:
        folder = "models--" + repository.replace("/", "--")
        self._folder = root / folder
        self._locks = root / ".locks" / folder

    @property
    def folder(self) -> Path:
        return self._folder

    def blob(self, etag: str) -> Path:
        return self._folder / "blobs" / _checked(etag, "ETag")

    def partial(self, etag: str) -> Path:
        """Where the blob grows. Its name carries the content's digest, so an earlier attempt can be continued."""
        return self._folder / "blobs" / f"{_checked(etag, 'ETag')}.incomplete"

    def lock(self, etag: str) -> Path:
        return self._locks / f"{_checked(etag, 'ETag')}.lock"

    def snapshot_file(self, commit: str, path: str) -> Path:
        parts = path.split("/")
        if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
            raise PullError(f"the hub lists a file with a path that leads elsewhere: {path!r}")
        return self._folder.joinpath("snapshots", _checked(commit, "commit"), *parts)

    def has(self, commit: str, file: HubFile) -> bool:
        """Whether ``file`` lies in the snapshot, whole as far as its size tells."""
        path = self.snapshot_file(commit, file.path)
        return path.is_file() and (file.size_bytes is None or path.stat().st_size == file.size_bytes)

    def link(self, commit: str, path: str, etag: str) -> None:
        """Makes ``path`` of the snapshot point at the blob, in one step."""
        pointer = self.snapshot_file(commit, path)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        temporary = pointer.with_name(f".{pointer.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(self.blob(etag), pointer.parent))
        temporary.replace(pointer)

    def write_ref(self, revision: str, commit: str) -> None:
        reference = self._folder / "refs" / _checked(revision, "revision")
        reference.parent.mkdir(parents=True, exist_ok=True)
        temporary = reference.with_name(f".{reference.name}.{os.getpid()}")
        temporary.write_text(_checked(commit, "commit"))
        temporary.replace(reference)

    def commits(self, revision: str) -> list[str]:
        """The snapshots on this machine: the one that ``revision`` last stood at, then the others, newest first."""
        snapshots = self._folder / "snapshots"
        if not snapshots.is_dir():
            return []
        by_age = sorted(snapshots.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        names = [path.name for path in by_age if path.is_dir()]
        try:
            current = (self._folder / "refs" / _checked(revision, "revision")).read_text().strip()
        except FileNotFoundError:
            return names
        return sorted(names, key=lambda name: name != current)

    def files(self, commit: str) -> list[HubFile]:
        """What the snapshot holds. A link whose blob is gone does not count."""
        root = self._folder / "snapshots" / _checked(commit, "commit")
        return [
            HubFile(path=path.relative_to(root).as_posix(), size_bytes=path.stat().st_size)
            for path in sorted(root.rglob("*"))
            if path.is_file()
        ]


def _checked(name: str, what: str) -> str:
    if not _SAFE_NAME.fullmatch(name):
        raise PullError(f"the hub gave a {what} that cannot be a file name: {name[:80]!r}")
    return name
