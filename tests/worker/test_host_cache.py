"""The blobs of host memory."""

import numpy as np

from superfluid.engine.fake import FakeEngine
from superfluid.engine.interface import Row
from superfluid.worker.host_cache import HostCache


def _engine(*tokens: int) -> FakeEngine:
    engine = FakeEngine(lanes=2)
    engine.step([Row(0, 0, np.array(tokens, np.int32))])
    return engine


def test_save_and_restore_move_a_lane() -> None:
    engine, cache = _engine(1, 2, 3), HostCache()
    size = cache.save(engine, 0, 7)
    assert cache.size_bytes == size > 0
    assert cache.restore(engine, 1, 7, 3)
    assert engine.length(1) == 3
    cache.check_integrity()


def test_restore_of_the_wrong_length_is_refused_and_leaves_the_lane_empty() -> None:
    engine, cache = _engine(1, 2, 3), HostCache()
    cache.save(engine, 0, 7)
    assert not cache.restore(engine, 0, 7, 2)
    assert engine.length(0) == 0


def test_restore_of_an_unknown_entry_leaves_the_lane_empty() -> None:
    engine = _engine(1, 2, 3)
    assert not HostCache().restore(engine, 0, 7, 3)
    assert engine.length(0) == 0


def test_drop_frees_the_bytes_and_knows_no_unknown_entries() -> None:
    engine, cache = _engine(1, 2, 3), HostCache()
    cache.save(engine, 0, 7)
    cache.drop(7)
    cache.drop(8)
    assert (len(cache), cache.size_bytes) == (0, 0)
