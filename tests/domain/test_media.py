from array import array

import pytest

from superfluid.domain.media import (
    ImagePayload,
    ImageRun,
    MediaIdentity,
    image_ids,
    image_runs,
    parse_image_payload,
    runs_of,
    with_image_ids,
)

BLOB, OTHER = "a" * 64, "b" * 64
IMAGE = 7


def payload(*, offset: int, n_tokens: int) -> ImagePayload:
    return ImagePayload(BLOB, n_tokens, IMAGE, offset, "look", "well?", MediaIdentity("0" * 16, "tiny"))


def test_payload_is_the_documented_json() -> None:
    text = payload(offset=3, n_tokens=2).encode()
    assert text == (
        f'{{"blob":"{BLOB}","n_tokens":2,"image_token_id":7,"offset":3,"pre_text":"look","post_text":"well?",'
        '"media_identity":{"preprocessing_fp":"0000000000000000","encoder":"tiny"}}'
    )
    assert parse_image_payload(text) == payload(offset=3, n_tokens=2)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "nonsense", '{"blob":1}', "[" * 100_000])
def test_payload_that_is_none_parses_to_none(text: str) -> None:
    assert parse_image_payload(text) is None


def test_runs_are_the_stretches_of_placeholders() -> None:
    assert runs_of([], 7) == []
    assert runs_of([1, 2], 7) == []
    assert runs_of([7, 7, 1, 7, 2, 7], 7) == [(0, 2), (3, 1), (5, 1)]


def test_image_runs_are_where_the_payload_says() -> None:
    span = [1, 2, IMAGE, IMAGE, 3, IMAGE, 4]
    assert image_runs(payload(offset=102, n_tokens=3), span, 100) == [
        ImageRun(102, 2, BLOB, 0),
        ImageRun(105, 1, BLOB, 1),
    ]


def test_image_runs_end_with_the_image_though_its_token_comes_again() -> None:
    """Text of a client never has that token, but a template might."""
    assert image_runs(payload(offset=1, n_tokens=2), [9, IMAGE, IMAGE, IMAGE], 0) == [ImageRun(1, 2, BLOB, 0)]


@pytest.mark.parametrize(("offset", "n_tokens"), [(0, 3), (5, 1), (99, 1), (2, 4)])
def test_image_runs_of_a_payload_that_does_not_fit_its_span_are_none(offset: int, n_tokens: int) -> None:
    assert image_runs(payload(offset=offset, n_tokens=n_tokens), [1, IMAGE, IMAGE, 2], 1) == []


def test_ids_tell_images_runs_and_encoders_apart() -> None:
    run = ImageRun(0, 100, BLOB, 0)
    ids = image_ids(run, "encoder 1")
    assert len(ids) == 100
    assert max(ids) < 0
    assert len(set(ids)) == 100
    assert ids == image_ids(ImageRun(9, 100, BLOB, 0), "encoder 1")
    assert ids[:50] == image_ids(ImageRun(0, 50, BLOB, 0), "encoder 1")
    for other in (ImageRun(0, 100, OTHER, 0), ImageRun(0, 100, BLOB, 1)):
        assert not set(ids) & set(image_ids(other, "encoder 1"))
    assert not set(ids) & set(image_ids(run, "encoder 2"))


def test_tokens_get_ids_in_the_places_of_images_only() -> None:
    tokens = array("i", [1, 7, 7, 2])
    replaced = with_image_ids(tokens, [ImageRun(1, 2, BLOB, 0)], "e")
    assert (replaced[0], replaced[3]) == (1, 2)
    assert replaced[1] < 0 > replaced[2]
    assert tokens == array("i", [1, 7, 7, 2])
