"""Where a stream with images may be cut, and in what pieces it is read."""

from array import array

import numpy as np
import pytest
from tests.fixtures.scheduling import Shadow, make_settings, text

from superfluid.domain.job import Job
from superfluid.domain.media import ImageRun, with_image_ids
from superfluid.domain.request import SamplingParams
from superfluid.errors import InvalidValueError
from superfluid.scheduling.images import ImageRuns
from superfluid.scheduling.plan import Chunk

RED, BLUE = "a" * 64, "b" * 64


def runs(*places: tuple[int, int], blob: str = RED) -> list[ImageRun]:
    return [ImageRun(position, length, blob, index) for index, (position, length) in enumerate(places)]


def job(job_id: int, tokens: int, images: list[ImageRun], *, max_tokens: int = 4) -> Job:
    stream = with_image_ids(array("i", text(1, tokens)), images, "encoder")
    return Job(
        job_id=job_id, tokens=stream.tobytes(), prompt_tokens=tokens, max_tokens=max_tokens,
        sampling=SamplingParams(temperature=0), images=images,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (0, 0), (8, 8), (9, 8), (10, 10), (11, 10), (14, 10), (15, 15),
        (16, 16), (17, 16), (18, 18), (25, 18), (26, 26), (27, 27), (31, 27), (32, 32), (40, 40),
    ],
)  # fmt: skip
def test_cut_leaves_images_whole_and_no_single_token_before_one(keep: int, kept: int) -> None:
    """Images at 10 to 14, 18 to 25 (behind a text of three tokens), 27 to 31 (behind a single one)."""
    assert ImageRuns(runs((10, 5), (18, 8), (27, 5))).kept(keep) == kept


def test_cut_of_a_stream_without_images_is_free() -> None:
    assert [ImageRuns([]).kept(keep) for keep in range(5)] == [0, 1, 2, 3, 4]


def test_chunks_are_texts_and_whole_images_in_order() -> None:
    shadow = Shadow(make_settings(lanes=1))
    shadow.submit(job(1, 200, runs((40, 100), (141, 20))))
    shadow.run()
    chunks = [plan.chunk for plan in shadow.plans if plan.chunk is not None]
    images = [(chunk.start, chunk.length) for chunk in chunks if chunk.is_image]
    assert images == [(40, 100), (141, 20)]
    texts = [chunk for chunk in chunks if not chunk.is_image]
    assert sum(chunk.length for chunk in texts) == 80
    assert not any(chunk.start < 40 < chunk.start + chunk.length for chunk in texts)
    assert Chunk(1, 0, 140, 1, False) in texts


def test_image_at_the_very_end_of_a_prompt_yields_the_next_token() -> None:
    shadow = Shadow(make_settings(lanes=1))
    shadow.submit(job(1, 60, runs((40, 20))))
    shadow.run()
    (last,) = [plan.chunk for plan in shadow.plans if plan.chunk is not None and plan.chunk.is_image]
    assert last == Chunk(1, 0, 40, 20, True, True)
    assert len(shadow.reply(1)) == 4


def test_same_image_is_kept_and_another_is_not() -> None:
    for blob, warm in ((RED, 198), (BLUE, 50)):
        shadow = Shadow(make_settings(lanes=1))
        shadow.submit(job(1, 200, runs((50, 100))))
        shadow.run()
        shadow.submit(job(2, 200, runs((50, 100), blob=blob)))
        shadow.run()
        assert shadow.warm[2] == warm


def test_images_do_not_count_for_the_speed_of_reading() -> None:
    shadow = Shadow(make_settings(lanes=1))
    before = shadow.scheduler._rates.prefill_seconds_per_token
    shadow.submit(job(1, 60, runs((0, 60))))
    shadow.run()
    assert shadow.scheduler._rates.prefill_seconds_per_token == before


@pytest.mark.parametrize("places", [((195, 10),), ((10, 5), (12, 5)), ((20, 5), (10, 5)), ((10, 0),), ((-5, 10),)])
def test_images_out_of_place_are_refused(places: tuple[tuple[int, int], ...]) -> None:
    shadow = Shadow(make_settings())
    sound = job(1, 200, runs((10, 5)))
    with pytest.raises(InvalidValueError):
        shadow.scheduler.submit(
            Job(
                job_id=1, tokens=sound.tokens, prompt_tokens=200, max_tokens=1, sampling=sound.sampling,
                images=runs(*places),
            )
        )  # fmt: skip


def test_ids_of_images_where_none_is_said_to_be_are_refused() -> None:
    shadow = Shadow(make_settings())
    sound = job(1, 200, runs((10, 5)))
    assert (np.frombuffer(sound.tokens, "<i4") < 0).sum() == 5
    with pytest.raises(InvalidValueError, match="token ids"):
        shadow.scheduler.submit(
            Job(job_id=1, tokens=sound.tokens, prompt_tokens=200, max_tokens=1, sampling=sound.sampling)
        )
