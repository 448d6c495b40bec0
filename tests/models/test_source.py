from pathlib import Path

import pytest
from tests.fixtures.fake_hub import FakeHub, FakeRepository, running_hub
from tests.fixtures.gguf_bytes import small_model, small_projector

from superfluid.config import HubConfig
from superfluid.errors import ModelFileError, PullError, UsageError
from superfluid.models.names import HubId
from superfluid.models.progress import SilentProgress
from superfluid.models.source import ModelFile, classify, resolve_model


def resolved(
    model: str | None,
    tmp_path: Path,
    endpoint: str = "http://127.0.0.1:9",
    is_offline: bool = True,
    mmproj: str | None = None,
    pulls_mmproj: bool = True,
    draft_model: str | None = None,
) -> ModelFile:
    hub = HubConfig(endpoint=endpoint, cache_directory=tmp_path / "cache")
    return resolve_model(
        model,
        hub,
        tmp_path / "home",
        SilentProgress(),
        is_offline=is_offline,
        mmproj=mmproj,
        pulls_mmproj=pulls_mmproj,
        draft_model=draft_model,
    )


def test_model_path_of_a_file_is_served_under_its_stem(tmp_path: Path) -> None:
    path = tmp_path / "tiny-Q8.gguf"
    path.write_bytes(small_model())
    model = resolved(str(path), tmp_path)
    assert (model.name, model.path, model.parts) == ("tiny-Q8", path, (path,))
    assert model.file_bytes == path.stat().st_size
    assert model.header.architecture == "llama"


def test_model_path_without_gguf_ending_is_a_file_if_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "model").write_bytes(small_model())
    assert classify("org/model") == Path("org/model")
    assert classify("org/other") == HubId("org/other", None)


@pytest.mark.parametrize("text", ["./org/model", "~/model", "/org/model", "a/b.gguf", "b.GGUF"])
def test_model_text_that_looks_like_a_path_is_never_a_hub_id(text: str) -> None:
    assert isinstance(classify(text), Path)


@pytest.mark.parametrize("text", ["smollm2", "a/b/c", "org/model:", "two words/model"])
def test_model_text_that_is_neither_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match=r"neither a file nor a hub id"):
        classify(text)


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_model_path_of_any_part_serves_the_whole_split_set(tmp_path: Path, asked: int) -> None:
    parts = tuple(tmp_path / f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3))
    for part in parts:
        part.write_bytes(small_model())
    model = resolved(str(parts[asked - 1]), tmp_path)
    assert (model.name, model.path, model.parts) == ("m", parts[0], parts)
    assert model.file_bytes == 3 * parts[0].stat().st_size


def test_model_path_of_a_split_set_with_gaps_names_the_missing_parts(tmp_path: Path) -> None:
    (tmp_path / "m-00002-of-00003.gguf").write_bytes(small_model())
    with pytest.raises(ModelFileError, match=r"missing: m-00001-of-00003\.gguf, m-00003-of-00003\.gguf"):
        resolved(str(tmp_path / "m-00002-of-00003.gguf"), tmp_path)


def test_model_path_of_a_split_set_checks_every_part(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(small_model())
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(small_model()[:-10])
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf is truncated"):
        resolved(str(tmp_path / "m-00001-of-00002.gguf"), tmp_path)


def test_model_path_that_does_not_exist_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.gguf does not exist"):
        resolved(str(tmp_path / "absent.gguf"), tmp_path)


def test_model_path_of_a_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is a directory"):
        resolved(str(tmp_path), tmp_path)


def test_model_id_is_pulled_and_served_under_the_repository_name(tmp_path: Path) -> None:
    hub = FakeHub(repositories={"org/model": FakeRepository(files={"m-Q8_0.gguf": small_model("Pulled")})})
    with running_hub(hub):
        model = resolved("org/model:Q8_0", tmp_path, hub.endpoint, is_offline=False)
    assert model.name == "org/model"
    assert model.header.name == "Pulled"
    assert resolved("org/model", tmp_path).path == model.path


def test_no_model_offline_and_never_fetched_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PullError, match="superfluid pull"):
        resolved(None, tmp_path)


# ---- the projector


def test_model_file_comes_with_the_projector_beside_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(small_model())
    assert resolved(str(tmp_path / "m.gguf"), tmp_path).projector is None
    (tmp_path / "mmproj-m.gguf").write_bytes(small_projector())
    found = resolved(str(tmp_path / "m.gguf"), tmp_path).projector
    assert found is not None
    assert (found.path, found.is_named) == (tmp_path / "mmproj-m.gguf", False)
    assert resolved(str(tmp_path / "m.gguf"), tmp_path, mmproj="none").projector is None


def test_damaged_projector_beside_a_model_is_left_out_and_a_named_one_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(small_model())
    (tmp_path / "mmproj-m.gguf").write_bytes(small_projector()[:-10])
    assert resolved(str(tmp_path / "m.gguf"), tmp_path).projector is None
    with pytest.raises(ModelFileError, match="truncated"):
        resolved(str(tmp_path / "m.gguf"), tmp_path, mmproj=str(tmp_path / "mmproj-m.gguf"))
    with pytest.raises(ModelFileError, match="cannot be read"):
        resolved(str(tmp_path / "m.gguf"), tmp_path, mmproj=str(tmp_path / "absent.gguf"))


def test_named_projector_wins_over_the_one_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(small_model())
    (tmp_path / "mmproj-m.gguf").write_bytes(small_projector())
    (tmp_path / "eyes.gguf").write_bytes(small_projector("mlp"))
    found = resolved(str(tmp_path / "m.gguf"), tmp_path, mmproj=str(tmp_path / "eyes.gguf")).projector
    assert found is not None
    assert (found.encoder, found.is_named) == ("mlp", True)


def test_model_from_the_hub_brings_its_projector_unless_told_not_to(tmp_path: Path) -> None:
    files = {
        "m-Q4_K_M.gguf": small_model(),
        "mmproj-F16.gguf": small_projector(),
        "mmproj-F32.gguf": small_projector("mlp"),
    }
    with running_hub(FakeHub(repositories={"org/model": FakeRepository(files=files)})) as hub:
        bare = resolved("org/model", tmp_path, hub.endpoint, is_offline=False, pulls_mmproj=False)
        assert bare.projector is None
        assert not any("mmproj" in seen.path for seen in hub.content_requests())
        found = resolved("org/model", tmp_path, hub.endpoint, is_offline=False).projector
        assert found is not None
        assert (found.path.name, found.encoder, found.is_named) == ("mmproj-F16.gguf", "idefics3", False)
        assert sum("mmproj" in seen.path for seen in hub.content_requests()) == 1
    again = resolved("org/model", tmp_path)
    assert again.projector == found
    assert again.parts == bare.parts


@pytest.mark.parametrize("model", [None, "./m.gguf"])
def test_pulling_without_the_projector_is_for_models_from_the_hub(tmp_path: Path, model: str | None) -> None:
    with pytest.raises(UsageError, match="--pull-no-mmproj"):
        resolved(model, tmp_path, pulls_mmproj=False)


def test_draft_model_that_is_the_model_itself_is_a_usage_error_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(small_model())
    (tmp_path / "link.gguf").symlink_to(path)
    (tmp_path / "other.gguf").write_bytes(small_model("Other"))
    for draft in ("tiny.gguf", "link.gguf"):
        with pytest.raises(UsageError, match="is the model itself"):
            resolved(str(path), tmp_path, draft_model=str(tmp_path / draft))
    other = tmp_path / "other.gguf"
    assert resolved(str(path), tmp_path, draft_model=str(other)).draft_model == other
