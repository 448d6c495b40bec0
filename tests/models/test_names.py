from pathlib import Path

import pytest

from superfluid.models.names import HubId, SplitName, misnamed_hint, model_stem, parse_hub_id, served_name, split_name


@pytest.mark.parametrize(
    ("file_name", "expected"),
    [
        ("m-00001-of-00003.gguf", SplitName("m", 1, 3)),
        ("m-00003-of-00003.GGUF", SplitName("m", 3, 3)),
        ("m.gguf", None),
        ("m-00004-of-00003.gguf", None),
        ("m-00000-of-00003.gguf", None),
        ("m-1-of-3.gguf", None),
    ],
)
def test_split_name_of_file_names_is_read_or_none(file_name: str, expected: SplitName | None) -> None:
    assert split_name(file_name) == expected


def test_split_part_names_are_what_the_files_are_called() -> None:
    assert SplitName("m", 1, 12).part(10) == "m-00010-of-00012.gguf"


@pytest.mark.parametrize(
    ("file_name", "stem"),
    [("a.b.gguf", "a.b"), ("a-00002-of-00002.gguf", "a"), ("A.GGUF", "A"), ("plain", "plain")],
)
def test_model_stem_drops_extension_and_part_suffix(file_name: str, stem: str) -> None:
    assert model_stem(file_name) == stem


def test_served_name_taken_stem_falls_back_to_file_then_parent() -> None:
    path = Path("/models/qwen/m.gguf")
    assert served_name(path) == "m"
    assert served_name(path, {"m"}) == "m.gguf"
    assert served_name(path, {"m", "m.gguf"}) == "qwen/m.gguf"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/model", HubId("org/model", None)),
        ("org/model:Q4_K_M", HubId("org/model", "Q4_K_M")),
        ("Org-1/Mo.del_2-GGUF:latest", HubId("Org-1/Mo.del_2-GGUF", "latest")),
        ("./org/model", None),
        ("/org/model", None),
        ("~/model", None),
        ("org/model.gguf", None),
        ("model", None),
        ("a/b/c", None),
        ("org/model:", None),
        ("org/../model", None),
        ("org/mo del", None),
        ("org/..", None),
        ("", None),
    ],
)
def test_hub_id_of_text_is_read_or_none(text: str, expected: HubId | None) -> None:
    assert parse_hub_id(text) == expected


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("hf.co/org/model", "only org/model is needed"),
        ("hf.co/org/model:Q4_K_M", "only org/model:Q4_K_M is needed"),
        ("https://huggingface.co/org/model/blob/main/m.gguf", "only org/model is needed"),
        ("https://example.org/m.gguf", "fetch the file"),
        ("llama3.2:3b", "a name alone"),
    ],
)
def test_misnamed_model_is_met_with_what_was_probably_meant(text: str, hint: str) -> None:
    assert hint in (misnamed_hint(text) or "")


@pytest.mark.parametrize("text", ["a/b/c", "org/", "https://huggingface.co/org"])
def test_misnamed_model_that_means_nothing_gets_no_hint(text: str) -> None:
    assert misnamed_hint(text) is None
