"""What the daemon makes of a worker's reports on free lanes and host memory."""

from array import array
from collections.abc import Sequence

from superfluid.domain.statistics import KeptPrefix, LaneStatus, Warmth
from superfluid.kvfiles.names import token_digest
from superfluid.worker.protocol import HeldPrefix, PrefixesChanged
from superfluid.worker.warm_prefixes import WarmPrefixes

STREAM = array("i", range(500))


def held(
    number: int, tokens: "array[int]", *, lane: int | None, session: int | None, marks: Sequence[int]
) -> HeldPrefix:
    digests = b"".join(token_digest(tokens[:mark].tobytes()) for mark in marks)
    return HeldPrefix(number, lane, session, len(tokens), list(marks), digests)


def warm_with(*prefixes: HeldPrefix) -> WarmPrefixes:
    warm = WarmPrefixes()
    warm.take(PrefixesChanged(list(prefixes), []))
    return warm


IN_LANE = held(1, STREAM[:400], lane=2, session=7, marks=(128, 400))
IN_MEMORY = held(2, STREAM[:450], lane=None, session=7, marks=(128, 450))


def test_own_state_counts_to_the_token_and_that_of_others_up_to_a_mark() -> None:
    warm = warm_with(IN_LANE, IN_MEMORY)
    assert warm.warmth(7, STREAM, can_truncate=True) == Warmth(lane=400, memory=450)
    assert warm.warmth(8, STREAM[:300], can_truncate=True) == Warmth(lane=128, memory=128)
    assert warm.warmth(8, array("i", [9, 9]), can_truncate=True) == Warmth()


def test_more_than_the_session_has_counts_where_it_can_be_cut() -> None:
    warm = warm_with(IN_LANE)
    assert warm.warmth(7, STREAM[:100], can_truncate=True) == Warmth(lane=100)
    assert warm.warmth(7, STREAM[:100], can_truncate=False) == Warmth()
    assert warm.warmth(7, STREAM, can_truncate=False) == Warmth(lane=400)


def test_what_is_removed_or_lost_with_the_worker_is_gone() -> None:
    warm = warm_with(IN_LANE, IN_MEMORY)
    warm.take(PrefixesChanged([], [1, 99]))
    assert warm.warmth(7, STREAM, can_truncate=True) == Warmth(memory=450)
    warm.worker_lost()
    assert warm.warmth(7, STREAM, can_truncate=True) == Warmth()
    assert warm.newest_in_memory(5) == ()


def test_free_lane_names_its_session_and_a_busy_one_does_not() -> None:
    warm = warm_with(IN_LANE)
    assert warm.lane_session(LaneStatus(2, held_tokens=400)) == 7
    assert warm.lane_session(LaneStatus(2, job_id=5)) is None
    assert warm.lane_session(LaneStatus(1)) is None
    warm.take(PrefixesChanged([held(3, STREAM[:300], lane=2, session=9, marks=())], [1]))
    assert warm.lane_session(LaneStatus(2)) == 9


def test_erased_session_is_gone_at_once_and_late_reports_do_not_bring_it_back() -> None:
    warm = warm_with(IN_LANE, IN_MEMORY)
    warm.forget([7])
    warm.take(PrefixesChanged([held(3, STREAM[:300], lane=1, session=7, marks=(300,))], []))
    assert warm.warmth(7, STREAM, can_truncate=True) == Warmth()
    assert warm.lane_session(LaneStatus(2)) is warm.lane_session(LaneStatus(1)) is None
    assert warm.newest_in_memory(5) == ()


def test_list_of_what_is_in_memory_has_the_newest_first_and_a_bound() -> None:
    entries = [held(number, STREAM[:number], lane=None, session=None, marks=()) for number in range(1, 9)]
    assert warm_with(*entries).newest_in_memory(2) == (KeptPrefix(None, 8), KeptPrefix(None, 7))


def test_same_prefix_twice_stays_until_both_are_gone() -> None:
    twin = held(3, STREAM[:400], lane=1, session=8, marks=(128, 400))
    warm = warm_with(IN_LANE, twin)
    warm.take(PrefixesChanged([], [1]))
    assert warm.warmth(9, STREAM, can_truncate=True).lane == 400
    warm.take(PrefixesChanged([], [3]))
    assert warm.warmth(9, STREAM, can_truncate=True).lane == 0
