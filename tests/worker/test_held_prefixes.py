"""What a worker tells of prefixes that are kept: on the tick loop with the fake engine, read as the daemon does."""

from array import array
from random import Random

from tests.fixtures.tick_loop import SteppedLoop, make_job, make_settings, words

from superfluid.domain.statistics import KeptPrefix, LaneStatus, Warmth
from superfluid.worker.protocol import Forget
from superfluid.worker.warm_prefixes import WarmPrefixes

FIRST, SECOND = words(1, 300), words(2, 400)


def loop_with(lanes: int = 1, host_cache_bytes: int = 1_000_000) -> SteppedLoop:
    return SteppedLoop(settings=make_settings(lanes, host_cache_bytes=host_cache_bytes))


def turn(loop: SteppedLoop, tokens: list[int], session: int) -> "array[int]":
    """A session's input after a turn of it."""
    got = loop.submit(make_job(tokens, max_tokens=4, ignore_eos=True, session=session))
    loop.run()
    return array("i", [*tokens, *got.tokens])


def known(loop: SteppedLoop) -> WarmPrefixes:
    warm = WarmPrefixes()
    for change in loop.prefixes:
        warm.take(change)
    return warm


def warmth(loop: SteppedLoop, session: int, tokens: "array[int]") -> Warmth:
    return known(loop).warmth(session, tokens, can_truncate=True)


def test_conversation_is_in_its_lane_then_in_memory_when_another_has_the_lane() -> None:
    loop = loop_with()
    first = turn(loop, FIRST, 7)
    assert warmth(loop, 7, first) == Warmth(lane=303)
    assert known(loop).lane_session(LaneStatus(0)) == 7
    second = turn(loop, SECOND, 8)
    assert warmth(loop, 7, first) == Warmth(memory=303)
    assert warmth(loop, 8, second) == Warmth(lane=403)
    assert known(loop).lane_session(LaneStatus(0)) == 8
    assert known(loop).newest_in_memory(9) == (KeptPrefix(7, 303),)


def test_conversation_that_is_lost_is_nowhere() -> None:
    loop = loop_with(host_cache_bytes=0)
    first = turn(loop, FIRST, 7)
    turn(loop, SECOND, 8)
    assert warmth(loop, 7, first) == Warmth()


def test_session_that_others_have_gone_on_from_is_warm_through_them() -> None:
    """A turn over HTTP is a fork of the one before."""
    loop = loop_with(lanes=2)
    first = turn(loop, FIRST, 7)
    turn(loop, [*first, *words(3, 40)], 8)
    assert warmth(loop, 7, first[:303]).lane == 288
    assert warmth(loop, 9, array("i", SECOND)) == Warmth()


def test_nothing_is_told_while_jobs_run() -> None:
    loop = loop_with(lanes=2)
    loop.submit(make_job(FIRST, max_tokens=50, ignore_eos=True, session=7))
    for _ in range(40):
        loop.tick()
    assert loop.prefixes == []
    assert len([record for record in loop.records if record.lanes is not None]) > 1
    loop.run()
    assert len(loop.prefixes) == 1


def test_what_is_erased_is_taken_back_at_once() -> None:
    loop = loop_with()
    first, second = turn(loop, FIRST, 7), turn(loop, SECOND, 8)
    loop.loop.take(Forget(1, [7, 8]))
    assert warmth(loop, 7, first) == warmth(loop, 8, second) == Warmth()
    assert known(loop).newest_in_memory(9) == ()


def test_lane_views_are_told_after_an_erasure_without_a_tick() -> None:
    loop = loop_with()
    turn(loop, FIRST, 7)
    loop.loop.take(Forget(1, [7]))
    loop.run()
    lanes = loop.records[-1].lanes
    assert lanes is not None
    assert lanes[0].held_tokens == 0


def test_messages_hold_no_token() -> None:
    loop = loop_with()
    turn(loop, FIRST, 7)
    ((prefix,),) = [change.added for change in loop.prefixes]
    assert (prefix.tokens, len(prefix.digests)) == (303, 16 * len(prefix.lengths))
    assert array("i", FIRST[:8]).tobytes() not in prefix.digests


def test_what_the_daemon_knows_is_what_there_is_whenever_nothing_runs() -> None:
    """Turns of several sessions on few lanes with too little memory, in orders drawn by a seed; some are erased."""
    rng = Random(5)
    loop = loop_with(lanes=2, host_cache_bytes=6_000)
    streams: dict[int, array[int]] = {
        session: array("i", words(session, 130 + 40 * session)) for session in range(1, 8)
    }
    for _ in range(150):
        session = rng.choice([*streams])
        if rng.random() < 0.05 and len(streams) > 5:
            loop.loop.take(Forget(session, [session]))
            del streams[session]
        else:
            others = [rng.choice([*streams]) for _ in range(rng.randrange(3))]
            for each in {session, *others}:
                job = make_job([*streams[each], 40], max_tokens=rng.randrange(1, 5), ignore_eos=True, session=each)
                streams[each] = array("i", [*streams[each], 40])
                loop.submit(job)
            loop.run()
        warm, scheduler = known(loop), loop.loop._scheduler
        lanes = [lane for lane in scheduler.parks.lanes if lane.length]
        assert {lane.index: lane.owner for lane in lanes} == {
            index: warm.lane_session(LaneStatus(index)) for index in (lane.index for lane in lanes)
        }
        entries = sorted((entry.owner or 0, entry.length) for entry in scheduler._index if not entry.is_transient)
        assert sorted((prefix.session or 0, prefix.tokens) for prefix in warm.newest_in_memory(99)) == entries
    assert loop.records[-1].host_saves_total > 50
    assert loop.records[-1].host_cache_entries < 10
