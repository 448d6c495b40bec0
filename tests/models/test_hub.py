import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import httpx
import huggingface_hub
import pytest
from tests.fixtures.fake_hub import COMMIT, FakeHub, FakeRepository, running_hub

from superfluid.config import HubConfig, Secret
from superfluid.errors import PullError
from superfluid.models import download as download_module
from superfluid.models.download import RetryPolicy
from superfluid.models.hub import Pulled, pull_model
from superfluid.models.hub_cache import HubCache
from superfluid.models.names import HubId
from superfluid.models.progress import PullProgress, SilentProgress

Q4, Q8 = os.urandom(300_000), os.urandom(200_000)
REPOSITORY = "org/model"


class NotedProgress(SilentProgress):
    """Keeps the notes, and how far each transfer was when it was first heard of."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.starts: list[int] = []
        self._is_new = False

    def begin(self, label: str, total_bytes: int | None) -> None:
        self._is_new = True

    def update(self, done_bytes: int) -> None:
        if self._is_new:
            self.starts.append(done_bytes)
            self._is_new = False

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    files = {"README.md": b"x", "mmproj-f16.gguf": b"p", "m-Q4_K_M.gguf": Q4, "m-Q8_0.gguf": Q8}
    with running_hub(FakeHub(repositories={REPOSITORY: FakeRepository(files=files)})) as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


class Puller:
    """Pulls from ``hub`` into ``cache`` with pauses recorded instead of slept."""

    def __init__(self, hub: FakeHub, cache: Path) -> None:
        self.hub = hub
        self.cache = cache
        self.pauses: list[float] = []
        self.progress = NotedProgress()

    def pull(
        self,
        quant: str | None = None,
        *,
        repository: str = REPOSITORY,
        token: str | None = None,
        is_offline: bool = False,
    ) -> tuple[Path, ...]:
        return self.pull_with_projector(quant, repository, token, is_offline, wants_projector=False).parts

    def pull_with_projector(
        self,
        quant: str | None = None,
        repository: str = REPOSITORY,
        token: str | None = None,
        is_offline: bool = False,
        *,
        wants_projector: bool = True,
    ) -> Pulled:
        settings = HubConfig(
            endpoint=self.hub.endpoint, cache_directory=self.cache, token=Secret(token) if token is not None else None
        )
        return pull_model(
            HubId(repository, quant),
            settings,
            self.progress,
            is_offline=is_offline,
            wants_projector=wants_projector,
            retry=RetryPolicy(attempts=3, sleep=self.pauses.append),
        )

    def blobs(self) -> list[str]:
        return sorted(path.name for path in (self.cache / "models--org--model" / "blobs").glob("*"))


@pytest.fixture
def puller(hub: FakeHub, cache: Path) -> Puller:
    return Puller(hub, cache)


def test_pull_without_quant_takes_the_preferred_file_only(puller: Puller) -> None:
    (path,) = puller.pull()
    assert path.name == "m-Q4_K_M.gguf"
    assert path.read_bytes() == Q4
    assert [seen.path for seen in puller.hub.content_requests()] == [f"/{REPOSITORY}/resolve/{COMMIT}/m-Q4_K_M.gguf"]


def test_pull_with_quant_takes_that_file(puller: Puller) -> None:
    assert puller.pull("q8_0")[0].read_bytes() == Q8


def test_pull_again_downloads_nothing(puller: Puller) -> None:
    assert puller.pull() == puller.pull()
    assert len(puller.hub.content_requests()) == 1


def test_pull_leaves_a_cache_that_the_hubs_own_client_reads(puller: Puller, cache: Path) -> None:
    (path,) = puller.pull()
    assert huggingface_hub.try_to_load_from_cache(REPOSITORY, "m-Q4_K_M.gguf", cache_dir=cache) == str(path)
    (repository,) = huggingface_hub.scan_cache_dir(cache).repos
    (revision,) = repository.revisions
    assert (revision.commit_hash, revision.refs) == (COMMIT, frozenset({"main"}))
    assert [file.size_on_disk for file in revision.files] == [len(Q4)]
    assert path.is_symlink()
    assert not os.path.isabs(os.readlink(path))


def test_pull_of_what_the_hubs_own_client_pulled_downloads_nothing(puller: Puller, cache: Path) -> None:
    theirs = huggingface_hub.hf_hub_download(
        REPOSITORY, "m-Q4_K_M.gguf", cache_dir=cache, endpoint=puller.hub.endpoint, token=False
    )
    before = len(puller.hub.content_requests())
    assert puller.pull() == (Path(theirs),)
    assert len(puller.hub.content_requests()) == before


def test_pull_of_a_split_set_takes_all_parts_in_order(puller: Puller, hub: FakeHub) -> None:
    names = [f"Q6_K/m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    hub.repositories[REPOSITORY].files |= {name: name.encode() * 100 for name in reversed(names)}
    paths = puller.pull("Q6_K")
    assert [path.name for path in paths] == [name.partition("/")[2] for name in names]
    assert [path.read_bytes() for path in paths] == [name.encode() * 100 for name in names]
    assert len({path.parent for path in paths}) == 1


def test_pull_cut_in_the_middle_resumes_where_it_stood(puller: Puller, hub: FakeHub) -> None:
    hub.cuts = [100_000, 50_000]
    assert puller.pull()[0].read_bytes() == Q4
    assert [seen.range for seen in hub.content_requests()] == [None, "bytes=100000-", "bytes=150000-"]
    assert len(puller.pauses) == 2


def test_pull_that_gave_up_is_continued_by_the_next(puller: Puller, hub: FakeHub) -> None:
    hub.cuts = [100_000, 0, 0]
    with pytest.raises(PullError, match=r"3 times in a row; 100 kB are kept, and the same command goes on from there"):
        puller.pull()
    assert len(puller.blobs()) == 1
    assert puller.blobs()[0].endswith(".incomplete")
    assert puller.pull()[0].read_bytes() == Q4
    assert hub.content_requests()[-1].range == "bytes=100000-"
    assert puller.progress.starts[-1] == 100_000
    assert not puller.blobs()[0].endswith(".incomplete")


def test_pull_that_keeps_getting_a_little_does_not_give_up(puller: Puller, hub: FakeHub) -> None:
    hub.cuts = [10_000] * 8
    assert puller.pull()[0].read_bytes() == Q4


def test_pull_from_a_server_without_ranges_starts_over(puller: Puller, hub: FakeHub) -> None:
    hub.cuts, hub.has_ranges = [100_000], False
    assert puller.pull()[0].read_bytes() == Q4


def test_pull_with_a_longer_partial_than_the_file_drops_it(puller: Puller, cache: Path) -> None:
    puller.pull()
    (name,) = puller.blobs()
    blob = cache / "models--org--model" / "blobs" / name
    blob.rename(blob.with_name(f"{name}.incomplete"))
    with blob.with_name(f"{name}.incomplete").open("ab") as file:
        file.write(b"more")
    with pytest.raises(PullError, match=r"300,000 bytes but came with 300,004; it was dropped"):
        puller.pull()
    assert puller.pull()[0].read_bytes() == Q4


def test_pull_with_the_wrong_content_is_dropped(puller: Puller, hub: FakeHub) -> None:
    hub.is_corrupt = True
    with pytest.raises(PullError, match=r"m-Q4_K_M\.gguf came with digest .* dropped"):
        puller.pull()
    assert puller.blobs() == []
    hub.is_corrupt = False
    assert puller.pull()[0].read_bytes() == Q4


def test_pull_of_a_small_file_is_checked_by_its_git_digest(puller: Puller, hub: FakeHub) -> None:
    hub.repositories[REPOSITORY] = FakeRepository(files={"m.gguf": b"tiny"}, small_files=frozenset({"m.gguf"}))
    hub.is_corrupt = True
    with pytest.raises(PullError, match="came with digest"):
        puller.pull()
    hub.is_corrupt = False
    assert puller.pull()[0].read_bytes() == b"tiny"


def test_pull_from_a_mirror_that_lists_names_only_asks_the_headers(puller: Puller, hub: FakeHub) -> None:
    hub.lists_blobs = False
    assert puller.pull()[0].read_bytes() == Q4
    assert puller.pull()[0].read_bytes() == Q4
    assert len(hub.content_requests()) == 1


def test_pull_through_a_file_server_keeps_the_token_from_it(puller: Puller, hub: FakeHub) -> None:
    files = hub.repositories[REPOSITORY].files
    with running_hub(FakeHub(repositories={REPOSITORY: FakeRepository(files=files)})) as file_server:
        hub.file_server = file_server.endpoint
        assert puller.pull(token="hf_secret")[0].read_bytes() == Q4
    assert {seen.authorization for seen in hub.requests} == {"Bearer hf_secret"}
    assert [seen.authorization for seen in file_server.requests] == [None]


@pytest.mark.parametrize("has_linked_headers", [True, False])
def test_pull_asks_the_hub_alone_what_a_file_is(puller: Puller, hub: FakeHub, has_linked_headers: bool) -> None:
    hub.has_linked_headers = has_linked_headers
    with running_hub(FakeHub(repositories=hub.repositories)) as file_server:
        hub.file_server = file_server.endpoint
        puller.pull()
    assert {seen.method for seen in file_server.requests} == {"GET"}


def test_pull_of_a_renamed_repository_follows_the_hub(puller: Puller, hub: FakeHub) -> None:
    hub.repositories["org/old"] = FakeRepository(files={"m-Q4_K_M.gguf": Q4}, moved_to=REPOSITORY)
    assert puller.pull(repository="org/old")[0].read_bytes() == Q4


def test_pull_of_a_new_commit_fetches_only_what_changed(puller: Puller, hub: FakeHub, cache: Path) -> None:
    old = puller.pull()
    hub.repositories[REPOSITORY].commit = "f" * 40
    new = puller.pull()
    assert new != old
    assert len(hub.content_requests()) == 1
    assert puller.pull(is_offline=True) == new


def test_pull_private_repository_with_the_token_is_open(puller: Puller, hub: FakeHub) -> None:
    hub.repositories[REPOSITORY].token = "hf_secret"
    with pytest.raises(PullError, match=r"does not exist or is private; .*set HF_TOKEN"):
        puller.pull()
    with pytest.raises(PullError, match="the token in HF_TOKEN was not accepted") as refused:
        puller.pull(token="hf_wrong")
    assert "hf_wrong" not in str(refused.value)
    assert puller.pull(token="hf_secret")[0].read_bytes() == Q4


def test_pull_gated_repository_says_to_accept_its_terms(puller: Puller, hub: FakeHub) -> None:
    hub.repositories[REPOSITORY].token, hub.repositories[REPOSITORY].is_gated = "hf_secret", True
    with pytest.raises(PullError, match=r"is gated: accept its terms on the hub, and set HF_TOKEN"):
        puller.pull()


def test_pull_unknown_repository_names_it(puller: Puller) -> None:
    with pytest.raises(PullError, match="org/other does not exist or is private"):
        puller.pull(repository="org/other")


def test_pull_file_that_vanished_names_it(puller: Puller, hub: FakeHub) -> None:
    hub.statuses = [404]
    with pytest.raises(PullError, match=r"the hub has no m-Q4_K_M\.gguf in org/model"):
        puller.pull()


def test_pull_unknown_quant_lists_what_there_is(puller: Puller) -> None:
    with pytest.raises(PullError, match=r"org/model has no Q3_K_M; it has Q4_K_M, Q8_0"):
        puller.pull("Q3_K_M")


def test_pull_from_a_busy_hub_says_so(puller: Puller, hub: FakeHub) -> None:
    hub.statuses = [503]
    with pytest.raises(PullError, match="answers 503"):
        puller.pull()


def test_pull_without_a_hub_serves_the_cached_copy_with_a_note(puller: Puller, hub: FakeHub) -> None:
    paths = puller.pull()
    hub.endpoint = "http://127.0.0.1:9"
    assert puller.pull() == paths
    assert "serving the copy of org/model in the hub cache" in puller.progress.notes[-1]
    with pytest.raises(PullError, match=r"org/model:Q8_0 cannot be pulled: .* does not answer"):
        puller.pull("Q8_0")


def test_pull_offline_asks_only_the_cache(puller: Puller, hub: FakeHub) -> None:
    with pytest.raises(PullError, match="--offline"):
        puller.pull(is_offline=True)
    assert hub.requests == []
    paths = puller.pull()
    asked = len(hub.requests)
    assert puller.pull(is_offline=True) == paths
    with pytest.raises(PullError, match="org/model:Q8_0 is not in the hub cache"):
        puller.pull("Q8_0", is_offline=True)
    assert len(hub.requests) == asked


def test_pull_offline_of_a_half_fetched_split_set_is_refused(puller: Puller, hub: FakeHub) -> None:
    hub.repositories[REPOSITORY].files = {"s-00001-of-00002.gguf": b"a" * 99, "s-00002-of-00002.gguf": b"b" * 99}
    hub.cuts = [99, 1, 0, 0]
    with pytest.raises(PullError, match="goes on from there"):
        puller.pull()
    with pytest.raises(PullError, match="--offline"):
        puller.pull(is_offline=True)


def test_pull_onto_a_full_disk_keeps_what_it_has(puller: Puller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "_copy", _copy_onto_a_full_disk)
    with pytest.raises(PullError, match=r"no room left at .* goes on from there"):
        puller.pull()
    monkeypatch.undo()
    assert puller.pull()[0].read_bytes() == Q4
    assert puller.hub.content_requests()[-1].range == "bytes=1000-"


def test_pull_larger_than_the_disk_is_refused_before_it_starts(
    puller: Puller, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(free=0))
    with pytest.raises(PullError, match=r"needs 300 kB more, but .* has 0 bytes left"):
        puller.pull()
    assert hub.content_requests() == []


def _copy_onto_a_full_disk(response: httpx.Response, file: BinaryIO, done: int, progress: PullProgress) -> None:
    file.write(next(response.iter_raw(1000)))
    raise OSError(errno.ENOSPC, "No space left on device")


class _Usage(NamedTuple):
    free: int


@pytest.mark.parametrize("path", ["../../evil.gguf", "/etc/evil.gguf", "a//b.gguf", "a/./b.gguf"])
def test_pull_from_a_hub_that_lists_escaping_paths_writes_nothing(
    puller: Puller, hub: FakeHub, cache: Path, path: str
) -> None:
    hub.repositories[REPOSITORY].files = {path: b"evil"}
    with pytest.raises(PullError, match="leads elsewhere"):
        puller.pull()
    assert not cache.exists()


def test_cache_names_from_the_hub_must_be_plain(cache: Path) -> None:
    for etag in ("../../x", "", ".hidden", "a/b", "x" * 200):
        with pytest.raises(PullError, match="cannot be a file name"):
            HubCache(cache, REPOSITORY).blob(etag)


def test_pull_from_something_that_is_no_hub_says_so(puller: Puller, hub: FakeHub) -> None:
    hub.repositories[REPOSITORY].commit = "../.."
    with pytest.raises(PullError, match="did not answer like a model hub"):
        puller.pull()
