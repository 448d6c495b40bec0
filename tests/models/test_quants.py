import pytest

from superfluid.errors import PullError
from superfluid.models.quants import HubFile, ModelSet, choose_set, model_sets


def sets_of(*paths: str) -> list[ModelSet]:
    return model_sets(HubFile(path=path) for path in paths)


def chosen(quant: str | None, *paths: str) -> list[str]:
    return [file.path for file in choose_set(sets_of(*paths), quant, "org/model").files]


def test_model_sets_of_a_repository_skip_projectors_matrices_and_other_files() -> None:
    sets = sets_of("README.md", "mmproj-m-f16.gguf", "m-Q8_0.gguf", "imatrix.gguf", "m.safetensors")
    assert [each.stem for each in sets] == ["m-Q8_0"]


def test_model_sets_of_split_files_need_every_part() -> None:
    whole = sets_of("b-00002-of-00002.gguf", "b-00001-of-00002.gguf", "c-00001-of-00002.gguf")
    assert [[file.path for file in each.files] for each in whole] == [
        ["b-00001-of-00002.gguf", "b-00002-of-00002.gguf"]
    ]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_0.gguf"], "m-Q4_K_M.gguf"),
        (["m-Q8_0.gguf", "m-Q4_0.gguf"], "m-Q4_0.gguf"),
        (["m-f16.gguf", "m-q8_0.gguf"], "m-q8_0.gguf"),
        (["m-Q1_X.gguf", "m-F32.gguf"], "m-F32.gguf"),
        (["model.gguf"], "model.gguf"),
    ],
)
@pytest.mark.parametrize("quant", [None, "latest"])
def test_choose_set_without_a_quant_takes_the_most_usual(paths: list[str], expected: str, quant: str | None) -> None:
    assert chosen(quant, *paths) == [expected]


@pytest.mark.parametrize(
    ("quant", "expected"),
    [
        ("q4_k_m", "m-Q4_K_M.gguf"),
        ("Q4_K", "m-Q4_K.gguf"),
        ("Q4_K_S", "sub/m-Q4_K_S.gguf"),
        ("Q5", "m-Q5_K_M.gguf"),
        ("UD-Q2_K_XL", "m-UD-Q2_K_XL.gguf"),
        ("Q2_K_XL", "m-UD-Q2_K_XL.gguf"),
        ("BF16", "BF16/m-00001-of-00001.gguf"),
    ],
)
def test_choose_set_with_a_quant_matches_names_ignoring_case(quant: str, expected: str) -> None:
    paths = (
        "m-Q4_K_M.gguf", "m-Q4_K.gguf", "sub/m-Q4_K_S.gguf", "m-Q5_K_M.gguf", "m-Q5_K_S.gguf", "m-UD-Q2_K_XL.gguf",
        "BF16/m-00001-of-00001.gguf",
    )  # fmt: skip
    assert chosen(quant, *paths) == [expected]


def test_choose_set_unknown_quant_lists_what_there_is() -> None:
    with pytest.raises(PullError, match=r"org/model has no Q9_9; it has Q4_K_M, Q8_0"):
        chosen("Q9_9", "m-Q4_K_M.gguf", "m-Q8_0.gguf")


def test_choose_set_in_a_repository_without_models_says_so() -> None:
    with pytest.raises(PullError, match="holds no GGUF"):
        chosen(None, "README.md")
