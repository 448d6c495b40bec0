"""LoRA adapters in the tick loop, on the fake engine: whose replies they change, and when they go."""

from pathlib import Path

import pytest
from tests.fixtures.tick_loop import Received, SteppedLoop, make_job, make_settings, words

from superfluid.domain.reply import Finish
from superfluid.worker.protocol import LoadAdapter, UnloadAdapter


def _file(tmp_path: Path, name: str) -> str:
    path = tmp_path / name
    path.write_bytes(b"GGUF" + name.encode())
    return str(path)


def _loop(tmp_path: Path, *adapters: int, lanes: int = 4) -> SteppedLoop:
    loop = SteppedLoop(settings=make_settings(lanes))
    for adapter in adapters:
        loop.loop.take(LoadAdapter(adapter, _file(tmp_path, f"{adapter}")))
    assert [answer.code for answer in loop.adapters_loaded] == [""] * len(adapters)
    return loop


def _alone(tmp_path: Path, adapter: int, prompt: list[int]) -> list[int]:
    loop = _loop(tmp_path, *[adapter] * (adapter > 0))
    received = loop.submit(make_job(prompt, adapter=adapter, max_tokens=20))
    loop.run()
    return received.tokens


def test_jobs_of_several_adapters_at_once_get_what_they_get_alone(tmp_path: Path) -> None:
    alone = [_alone(tmp_path, adapter, words(3, 50)) for adapter in (0, 1, 2)]
    assert len({tuple(reply) for reply in alone}) == 3
    loop = _loop(tmp_path, 1, 2)
    received = [loop.submit(make_job(words(3, 50), adapter=adapter, max_tokens=20)) for adapter in (0, 1, 2, 0, 1, 2)]
    loop.run()
    assert [job.tokens for job in received] == alone + alone
    assert all(job.finish is not Finish.NONE for job in received)


def test_warm_and_restored_prefixes_are_those_of_the_adapter(tmp_path: Path) -> None:
    alone = [_alone(tmp_path, adapter, words(3, 600)) for adapter in (0, 1)]
    loop = _loop(tmp_path, 1, lanes=1)
    received: list[Received] = []
    for adapter in (0, 1, 0, 1, 1):
        received.append(loop.submit(make_job(words(3, 600), adapter=adapter, max_tokens=20)))
        loop.run()
    assert [job.tokens for job in received] == [alone[0], alone[1], alone[0], alone[1], alone[1]]
    assert [job.warm_tokens[0] > 0 for job in received] == [False, False, True, True, True]


def test_unloaded_adapter_serves_its_jobs_to_the_end_and_no_other(tmp_path: Path) -> None:
    expected = _alone(tmp_path, 1, words(3, 50))
    loop = _loop(tmp_path, 1, lanes=1)
    running, waiting = [loop.submit(make_job(words(3, 50), adapter=1, max_tokens=20)) for _ in range(2)]
    loop.tick()
    loop.loop.take(UnloadAdapter(1))
    late = loop.submit(make_job(words(3, 50), adapter=1))
    loop.run()
    assert (running.tokens, waiting.tokens) == (expected, expected)
    assert late.rejection == "adapter_not_found"
    with pytest.raises(KeyError):
        loop.engine.use_adapter(1)


def test_unloaded_adapter_goes_at_once_if_nobody_has_it_or_with_the_last_cancelled_job(tmp_path: Path) -> None:
    loop = _loop(tmp_path, 1, 2)
    job = make_job(words(3, 50), adapter=2)
    loop.submit(job)
    loop.loop.take(UnloadAdapter(1))
    loop.loop.take(UnloadAdapter(2))
    with pytest.raises(KeyError):
        loop.engine.use_adapter(1)
    loop.engine.use_adapter(2)
    loop.cancel(job)
    loop.run()
    with pytest.raises(KeyError):
        loop.engine.use_adapter(2)


def test_what_an_unloaded_adapter_left_is_given_up(tmp_path: Path) -> None:
    loop = _loop(tmp_path, 1, lanes=1)
    for adapter in (1, 0, 1):
        loop.submit(make_job(words(3, 600), adapter=adapter))
        loop.run()
    loop.loop.take(UnloadAdapter(1))
    loop.loop.check_integrity()
    assert loop.engine.length(0) == 0
    job = loop.submit(make_job(words(3, 600)))
    loop.run()
    assert job.warm_tokens[0] > 0


def test_file_that_is_none_or_another_by_now_is_refused(tmp_path: Path) -> None:
    loop = _loop(tmp_path, 1)
    fingerprint = loop.adapters_loaded[0].fingerprint
    (tmp_path / "bad").write_bytes(b"nothing")
    Path(_file(tmp_path, "1")).write_bytes(b"GGUF another")
    loop.loop.take(LoadAdapter(2, str(tmp_path / "bad")))
    loop.loop.take(LoadAdapter(3, str(tmp_path / "missing")))
    loop.loop.take(LoadAdapter(4, str(tmp_path / "1"), fingerprint))
    assert [answer.code for answer in loop.adapters_loaded[1:]] == ["adapter_refused"] * 3
    assert loop.submit(make_job(words(3, 50), adapter=2)).rejection == "adapter_not_found"


def test_unknown_adapter_is_unloaded_without_a_word(tmp_path: Path) -> None:
    loop = _loop(tmp_path)
    loop.loop.take(UnloadAdapter(0))
    loop.loop.take(UnloadAdapter(9))
    job = loop.submit(make_job(words(3, 50)))
    loop.run()
    assert job.finish is not Finish.NONE
