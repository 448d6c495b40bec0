"""Jobs with images on the tick loop: what is shared, what is not, and what happens to those that cannot be shown."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.fixtures.image_jobs import Part, image_job, pool_image
from tests.fixtures.images import picture
from tests.fixtures.tick_loop import SteppedLoop, make_settings, words
from tests.fixtures.tiny_vision import write_tiny_vision

from superfluid.domain.reply import Finish
from superfluid.engine.fake import FakeEngine
from superfluid.engine.fake_script import FakeScript
from superfluid.engine.interface import Engine
from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.worker.leftovers import SETTLE_SECONDS
from superfluid.worker.protocol import SizeImage

IMAGE_TOKENS = 24
RED, BLUE = picture(1), picture(2)
BEFORE, BEHIND = words(1, 30), words(2, 20)


def fake_engine(lanes: int) -> FakeEngine:
    return FakeEngine(FakeScript(image_tokens=IMAGE_TOKENS), lanes=lanes)


@pytest.fixture(params=["fake", "llama"])
def open_loop(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., SteppedLoop]:
    """A loop whose pool has both pictures, on the fake engine or on a tiny vision model in exact mode."""
    pool = tmp_path / "media"
    pool.mkdir()
    for content in (RED, BLUE):
        pool_image(pool, content)

    pair = write_tiny_vision(tmp_path)

    def open_engine(lanes: int) -> Engine:
        if request.param == "fake":
            return fake_engine(lanes)
        options = LlamaOptions(
            lanes=lanes, threads=1, window_tokens=512, flash_attention="off", projector=pair.projector,
            projector_type="idefics3",
        )  # fmt: skip
        engine = LlamaEngine(pair.model, options)
        request.addfinalizer(engine.close)
        return engine

    def open_it(lanes: int = 2, host_cache_bytes: int = 1_000_000) -> SteppedLoop:
        settings = make_settings(lanes=lanes, host_cache_bytes=host_cache_bytes)
        settings = msgspec.structs.replace(settings, media_directory=str(pool))
        return SteppedLoop(settings=settings, engine=open_engine(lanes))

    return open_it


def run(loop: SteppedLoop, job_id: int, parts: list[Part], *, reply: list[int] | None = None) -> tuple[list[int], int]:
    """What the job drew, and how much of its prompt was warm."""
    received = loop.submit(image_job(loop.engine, job_id, parts, reply=reply or []))
    loop.run()
    assert received.rejection is None
    return received.tokens, received.warm_tokens[0]


def test_reply_depends_on_the_image(open_loop: Callable[..., SteppedLoop]) -> None:
    loop = open_loop()
    red, _ = run(loop, 1, [BEFORE, RED, BEHIND])
    blue, _ = run(loop, 2, [BEFORE, BLUE, BEHIND])
    assert red != blue


def test_same_image_is_warm_and_gives_the_cold_reply(open_loop: Callable[..., SteppedLoop]) -> None:
    loop = open_loop()
    cold, none = run(loop, 1, [BEFORE, RED, BEHIND])
    steps = loop.image_steps
    warm, kept = run(loop, 2, [BEFORE, RED, BEHIND])
    assert none == 0
    assert kept > len(BEFORE) + IMAGE_TOKENS
    assert loop.image_steps == steps, "nothing of the image was evaluated again"
    assert warm == cold


def test_other_image_shares_only_what_comes_before_it(open_loop: Callable[..., SteppedLoop]) -> None:
    loop = open_loop()
    cold, _ = run(open_loop(), 1, [BEFORE, BLUE, BEHIND])
    run(loop, 1, [BEFORE, RED, BEHIND])
    warm, kept = run(loop, 2, [BEFORE, BLUE, BEHIND])
    assert len(BEFORE) <= kept <= len(BEFORE) + 2, "the text, and what marks an image"
    assert warm == cold


def test_image_saved_to_host_memory_comes_back(open_loop: Callable[..., SteppedLoop]) -> None:
    loop = open_loop(lanes=1, host_cache_bytes=1 << 24)
    long_before = words(5, 150)
    cold, _ = run(loop, 1, [long_before, RED, BEHIND])
    run(loop, 2, [words(9, 200)])
    assert loop.records[-1].host_cache_entries == 1
    warm, kept = run(loop, 3, [long_before, RED, BEHIND])
    assert kept > len(long_before) + IMAGE_TOKENS
    assert warm == cold


def test_image_copied_to_host_memory_in_an_idle_moment_comes_back(open_loop: Callable[..., SteppedLoop]) -> None:
    loop = open_loop(lanes=1, host_cache_bytes=1 << 24)
    long_before = words(5, 350)
    cold, _ = run(loop, 1, [long_before, RED, BEHIND])
    loop.clock.now += SETTLE_SECONDS
    assert loop.loop.park_one()
    run(loop, 2, [words(9, 400)])
    assert (loop.records[-1].host_saves_total, loop.records[-1].host_cache_entries) == (1, 1), "the copy, and no other"
    warm, kept = run(loop, 3, [long_before, RED, BEHIND])
    assert kept > len(long_before) + IMAGE_TOKENS
    assert warm == cold


def test_cut_reply_behind_an_image_goes_on_in_a_new_worker(open_loop: Callable[..., SteppedLoop]) -> None:
    whole, _ = run(open_loop(), 1, [BEFORE, RED, BEHIND])
    rest, _ = run(open_loop(), 1, [BEFORE, RED, BEHIND], reply=whole[:3])
    assert rest[: len(whole) - 3] == whole[3:]


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_seam_never_cuts_an_image(open_loop: Callable[..., SteppedLoop], behind: int) -> None:
    """The last two tokens of a prompt are evaluated again, which would reach into an image that is near the end."""
    loop = open_loop()
    parts: list[Part] = [BEFORE, RED, words(3, behind)]
    cold, _ = run(loop, 1, parts)
    warm, _ = run(loop, 2, parts)
    assert warm == cold


def test_two_images_and_nothing_between_them(open_loop: Callable[..., SteppedLoop]) -> None:
    loop = open_loop()
    cold, _ = run(loop, 1, [RED, BLUE, BEHIND])
    assert run(loop, 2, [BLUE, RED, BEHIND])[0] != cold
    assert run(loop, 3, [RED, BLUE, BEHIND])[0] == cold


def test_others_decode_between_the_runs_of_an_image(open_loop: Callable[..., SteppedLoop]) -> None:
    alone, _ = run(open_loop(), 1, [BEFORE])
    loop = open_loop()
    streaming = loop.submit(image_job(loop.engine, 1, [BEFORE]))
    while not streaming.tokens:
        loop.tick()
    looking = loop.submit(image_job(loop.engine, 2, [RED, BEHIND]))
    drawn = []
    while not looking.tokens:
        loop.tick()
        drawn.append(len(streaming.tokens))
    assert drawn[-1] > drawn[0]
    loop.run()
    assert streaming.tokens == alone


def test_image_that_is_gone_fails_its_own_job_only(open_loop: Callable[..., SteppedLoop]) -> None:
    loop = open_loop()
    lost = loop.submit(image_job(loop.engine, 1, [BEFORE, picture(3), BEHIND]))
    other = loop.submit(image_job(loop.engine, 2, [words(7, 30)]))
    loop.run()
    assert lost.rejection == "engine_fault"
    assert lost.tokens == []
    assert other.finish is Finish.LENGTH


def test_image_that_was_changed_in_the_pool_is_not_shown(open_loop: Callable[..., SteppedLoop]) -> None:
    loop = open_loop()
    assert loop.settings.media_directory is not None
    job = image_job(loop.engine, 1, [BEFORE, RED, BEHIND])
    (Path(loop.settings.media_directory) / job.images[0].blob).write_bytes(BLUE)
    received = loop.submit(job)
    loop.run()
    assert received.rejection == "engine_fault"


def test_size_is_the_layout_or_the_reason(open_loop: Callable[..., SteppedLoop]) -> None:
    loop = open_loop()
    assert loop.settings.media_directory is not None
    blob = pool_image(Path(loop.settings.media_directory), b"no image")
    loop.loop.take(SizeImage(1, image_job(loop.engine, 1, [RED]).images[0].blob))
    loop.loop.take(SizeImage(2, blob))
    loop.loop.take(SizeImage(3, "0" * 64))
    found, refused, missing = loop.sized
    assert np.frombuffer(found.layout, "<i4").tolist() == list(loop.engine.image_layout(RED))
    assert (refused.request_id, refused.code) == (2, "invalid_value")
    assert (missing.request_id, missing.code) == (3, "engine_fault")


def test_images_out_of_place_are_refused(open_loop: Callable[..., SteppedLoop]) -> None:
    loop = open_loop()
    job = image_job(loop.engine, 1, [BEFORE, RED])
    run_ = job.images[0]
    for images in ([msgspec.structs.replace(run_, position=10_000)], [run_, run_]):
        received = loop.submit(msgspec.structs.replace(job, images=images))
        assert received.rejection is not None
