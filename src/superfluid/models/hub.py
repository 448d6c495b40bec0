"""Pulling a model from a hub into the hub cache. Runs in the daemon before it serves.

The download is our own because the hub's client deletes what it has when a connection breaks and checks no digest,
neither of which does for files of many gigabytes. Listing: ``GET /api/models/{repo}/revision/{rev}?blobs=true``; files:
``HEAD`` and ``GET /{repo}/resolve/{commit}/{path}``.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urljoin

import httpx

from superfluid.config import HubConfig
from superfluid.errors import PullError
from superfluid.models.download import PATIENT, RemoteFile, RetryPolicy, download
from superfluid.models.filelock import exclusive_lock
from superfluid.models.hub_cache import HubCache
from superfluid.models.names import HubId
from superfluid.models.placing import place_file
from superfluid.models.progress import PullProgress
from superfluid.models.projector import choose_projector, is_projector_name
from superfluid.models.quants import HubFile, ModelSet, choose_set, model_sets
from superfluid.version import __version__

_REVISION = "main"
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_MAX_REDIRECTS = 5


class _UnreachableError(Exception):
    """No answer from the hub: what the cache holds may do."""


class _Listing(NamedTuple):
    commit: str
    files: list[HubFile]


class _FileFacts(NamedTuple):
    etag: str
    size_bytes: int | None


class Pulled(NamedTuple):
    """The files of a model, all parts in order, and what lets it see images, if that was wanted and is there."""

    parts: tuple[Path, ...]
    projector: Path | None = None


def pull_model(
    model: HubId,
    hub: HubConfig,
    progress: PullProgress,
    *,
    is_offline: bool = False,
    wants_projector: bool = False,
    retry: RetryPolicy = PATIENT,
) -> Pulled:
    """The files of ``model`` after downloading what the cache lacks. Blocks.

    Offline, or where the hub does not answer, only the cache is asked. Raises PullError. A pull that is cut short keeps
    what it has and is continued by the next.
    """
    cache = HubCache(hub.cache_directory.expanduser(), model.repository)
    if is_offline:
        cached = _find_cached(cache, model, wants_projector=wants_projector)
        if cached is None:
            raise PullError(
                f"{_text(model)} is not in the hub cache at {cache.folder.parent} and --offline forbids pulling it"
            )
        return cached
    with _Hub(hub, model.repository) as remote:
        try:
            listing = remote.listing()
        except _UnreachableError as error:
            return _fall_back(cache, model, error, progress, wants_projector=wants_projector)
        wanted = choose_set(model_sets(listing.files), model.quant, model.repository)
        projector = _projector_of(listing.files, wanted) if wants_projector else None
        files = wanted.files if projector is None else (*wanted.files, projector)
        try:
            _fetch_files(remote, cache, listing.commit, files, progress, retry)
        except _UnreachableError as error:
            raise PullError(f"{_text(model)} cannot be pulled: {error}") from error
    cache.write_ref(_REVISION, listing.commit)
    return _located(cache, listing.commit, wanted, projector)


def _located(cache: HubCache, commit: str, wanted: ModelSet, projector: HubFile | None) -> Pulled:
    return Pulled(
        tuple(cache.snapshot_file(commit, file.path) for file in wanted.files),
        None if projector is None else cache.snapshot_file(commit, projector.path),
    )


def _projector_of(files: Iterable[HubFile], wanted: ModelSet) -> HubFile | None:
    """The projector in the repository that goes with the model, if it has any."""
    projectors = {file.path: file for file in files if is_projector_name(file.path.rpartition("/")[2])}
    chosen = choose_projector(projectors, wanted.files[0].path)
    return None if chosen is None else projectors[chosen]


def _fall_back(
    cache: HubCache, model: HubId, error: _UnreachableError, progress: PullProgress, *, wants_projector: bool
) -> Pulled:
    cached = _find_cached(cache, model, wants_projector=wants_projector)
    if cached is None:
        raise PullError(f"{_text(model)} cannot be pulled: {error}") from error
    progress.note(f"{error}; serving the copy of {_text(model)} in the hub cache")
    return cached


def _find_cached(cache: HubCache, model: HubId, *, wants_projector: bool) -> Pulled | None:
    """The model's files from the first snapshot that has them all, and the projector if that has one. A quant that is
    named must be there."""
    for commit in cache.commits(_REVISION):
        files = cache.files(commit)
        sets = model_sets(files)
        try:
            chosen = choose_set(sets, model.quant, model.repository)
        except PullError:
            continue
        return _located(cache, commit, chosen, _projector_of(files, chosen) if wants_projector else None)
    return None


def _fetch_files(
    remote: "_Hub", cache: HubCache, commit: str, files: Iterable[HubFile], progress: PullProgress, retry: RetryPolicy
) -> None:
    missing = [file for file in files if not cache.has(commit, file)]
    for number, file in enumerate(missing, start=1):
        name = file.path.rpartition("/")[2]
        label = name if len(missing) == 1 else f"{name} ({number} of {len(missing)})"
        _fetch_file(remote, cache, commit, file, label, progress, retry)


def _fetch_file(
    remote: "_Hub",
    cache: HubCache,
    commit: str,
    file: HubFile,
    label: str,
    progress: PullProgress,
    retry: RetryPolicy,
) -> None:
    facts = remote.facts(commit, file)
    blob, partial = cache.blob(facts.etag), cache.partial(facts.etag)
    try:
        with exclusive_lock(
            cache.lock(facts.etag), lambda: progress.note(f"{label} is being pulled by another program; waiting")
        ):
            if not blob.is_file() or facts.size_bytes not in (None, blob.stat().st_size):
                whole = RemoteFile(
                    url=remote.file_url(commit, file.path),
                    label=label,
                    size_bytes=facts.size_bytes,
                    digest=file.sha256 or facts.etag,
                )
                download(remote.client, whole, partial, progress, retry)
                place_file(partial, blob)
        cache.link(commit, file.path, facts.etag)
    except OSError as error:
        raise PullError(f"the hub cache at {cache.folder} cannot be written: {error.strerror or error}") from error


class _Hub:
    """One repository on the hub, over HTTP. Translates the hub's refusals."""

    def __init__(self, hub: HubConfig, repository: str) -> None:
        self._endpoint = hub.endpoint
        self._repository = repository
        self._has_token = hub.token is not None
        headers = {"User-Agent": f"superfluid/{__version__}"}
        if hub.token is not None:
            # httpx drops this header by itself when a redirect leaves the hub for its file servers.
            headers["Authorization"] = f"Bearer {hub.token.reveal()}"
        self.client = httpx.Client(headers=headers, timeout=_TIMEOUT)

    def __enter__(self) -> "_Hub":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def file_url(self, commit: str, path: str) -> str:
        return f"{self._endpoint}/{self._repository}/resolve/{commit}/{quote(path)}"

    def listing(self) -> _Listing:
        """Raises _UnreachableError if the hub gives no answer, PullError if it refuses."""
        url = f"{self._endpoint}/api/models/{self._repository}/revision/{_REVISION}"
        response = self._request("GET", url, params={"blobs": "true"}, follow_redirects=True)
        if response.status_code != 200:
            raise self._refusal(response, "the repository")
        try:
            return _read_listing(response.json())
        except (ValueError, KeyError, TypeError) as error:
            raise PullError(f"{self._endpoint} did not answer like a model hub") from error

    def facts(self, commit: str, file: HubFile) -> _FileFacts:
        """What the hub says of a file's content.

        The headers that count are the hub's own, not those of the file server it redirects to. Only redirects within
        the hub (a renamed repository) are followed, also because the token must not leave it.
        """
        url = self.file_url(commit, file.path)
        for _ in range(_MAX_REDIRECTS):
            response = self._request("HEAD", url, headers={"Accept-Encoding": "identity"})
            following = urljoin(url, response.headers.get("Location", ""))
            if not response.is_redirect or not following.startswith(f"{self._endpoint}/"):
                break
            url = following
        if response.status_code >= 400:
            raise self._refusal(response, file.path)
        etag = response.headers.get("X-Linked-ETag") or response.headers.get("ETag")
        if not etag:
            raise PullError(f"{self._endpoint} names no ETag for {file.path}")
        own_length = None if response.is_redirect else response.headers.get("Content-Length")
        size = response.headers.get("X-Linked-Size") or own_length
        return _FileFacts(
            etag=etag.removeprefix("W/").strip('"'),
            size_bytes=file.size_bytes if size is None or not size.isdecimal() else int(size),
        )

    def _request(self, method: str, url: str, **options: Any) -> httpx.Response:
        try:
            response = self.client.request(method, url, **options)
        except httpx.InvalidURL as error:
            raise PullError(f"HF_ENDPOINT is no usable address: {self._endpoint}") from error
        except httpx.HTTPError as error:
            raise _UnreachableError(f"{self._endpoint} does not answer ({type(error).__name__})") from error
        if response.status_code in (429, 500, 502, 503, 504):
            raise _UnreachableError(f"{self._endpoint} answers {response.status_code}")
        return response

    def _refusal(self, response: httpx.Response, what: str) -> PullError:
        status = response.status_code
        is_gated = response.headers.get("X-Error-Code") == "GatedRepo" or status == 403
        token = (
            "the token in HF_TOKEN was not accepted for it"
            if self._has_token
            else "set HF_TOKEN to a token that may read it"
        )
        if is_gated:
            return PullError(f"{self._repository} is gated: accept its terms on the hub, and {token}")
        if status == 401:
            return PullError(f"{self._repository} does not exist or is private; in that case {token}")
        if status == 404:
            place = "" if what == "the repository" else f" in {self._repository}"
            return PullError(f"the hub has no {self._repository if not place else what}{place}")
        return PullError(f"the hub answered {status} {response.reason_phrase} for {what} of {self._repository}")


def _read_listing(answer: Any) -> _Listing:
    commit = answer["sha"]
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{6,64}", commit):
        raise ValueError(commit)
    return _Listing(commit, [_read_file(entry) for entry in answer["siblings"]])


def _read_file(entry: Any) -> HubFile:
    large = entry.get("lfs") or {}
    size = large.get("size", entry.get("size"))
    digest = large.get("sha256")
    return HubFile(
        path=str(entry["rfilename"]),
        size_bytes=size if isinstance(size, int) else None,
        sha256=digest if isinstance(digest, str) else None,
    )


def _text(model: HubId) -> str:
    return model.repository if model.quant is None else f"{model.repository}:{model.quant}"
