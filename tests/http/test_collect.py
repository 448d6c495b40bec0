"""How a reply ended, and what it said."""

import pytest

from superfluid.domain.reply import (
    Channel,
    Finish,
    ReplyEvent,
    ReplyFinished,
    ReplyStarted,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from superfluid.errors import EngineFaultError, ShuttingDownError
from superfluid.http.collect import CollectedReply, Phases, ReplyCollector, ReplyProgress

CALL = ToolCallFinished(0, "call_1", "f", "{}", True, 3)
BAD_CALL = ToolCallFinished(0, "call_1", "f", "{", False, 3)
DONE = ReplyFinished(Finish.END_OF_TURN, 9, 4, 1)


def _collect(*events: ReplyEvent, finish: Finish = Finish.END_OF_TURN) -> CollectedReply:
    progress = ReplyProgress()
    collector = ReplyCollector(progress)
    for event in (*events, ReplyFinished(finish, 5, 2, 9)):
        progress.note([event])
        collector.feed([event])
    return collector.finish()


@pytest.mark.parametrize(
    ("events", "finish", "ending"),
    [
        ((), Finish.END_OF_TURN, "stop"),
        ((), Finish.GRAMMAR, "stop"),
        ((), Finish.LENGTH, "length"),
        ((CALL,), Finish.END_OF_TURN, "tool_calls"),
        ((CALL,), Finish.LENGTH, "length"),
        ((BAD_CALL,), Finish.END_OF_TURN, "length"),
        ((CALL, BAD_CALL), Finish.END_OF_TURN, "length"),
    ],
)
def test_ending_follows_the_cap_then_the_calls(events: tuple[ReplyEvent, ...], finish: Finish, ending: str) -> None:
    assert _collect(*events, finish=finish).ending == ending


def test_collected_text_is_split_by_channel_in_order() -> None:
    reply = _collect(
        TextDelta(Channel.REASONING, "hm ", 1),
        TextDelta(Channel.TEXT, "a", 2),
        TextDelta(Channel.REASONING, "ah", 3),
        TextDelta(Channel.TEXT, "b", 4),
    )
    assert (reply.text({Channel.TEXT}), reply.text({Channel.REASONING})) == ("ab", "hm ah")
    assert reply.text(frozenset(Channel)) == "hm aahb"


@pytest.mark.parametrize(("finish", "error"), [(Finish.ERROR, EngineFaultError), (Finish.CANCELLED, ShuttingDownError)])
def test_progress_of_a_reply_cut_by_the_server_is_an_error(finish: Finish, error: type[Exception]) -> None:
    with pytest.raises(error):
        _collect(finish=finish)


def test_collector_of_a_reply_without_an_end_raises() -> None:
    with pytest.raises(EngineFaultError):
        ReplyCollector(ReplyProgress()).finish()


def test_progress_counts_tokens_of_deltas_and_takes_the_warm_prefix_from_the_start() -> None:
    progress = ReplyProgress()
    progress.note([ReplyStarted(9, 4)])
    assert (progress.tokens, progress.warm_tokens, progress.finished) == (0, 4, None)
    progress.note([TextDelta(Channel.TEXT, "x", 2), ToolCallStarted(0, "id", "f", 6)])
    assert progress.tokens == 6


@pytest.mark.parametrize(
    ("batches", "phases"),
    [
        (
            [([ReplyStarted(9, 4)], 13.0), ([TextDelta(Channel.TEXT, "x", 1)], 15.0), ([DONE], 20.0)],
            Phases(2.0, 3.0, 5.0),
        ),
        ([([ReplyStarted(9, 4)], 12.0), ([TextDelta(Channel.TEXT, "", 0), DONE], 15.0)], Phases(2.0, 3.0, 0.0)),
        ([([TextDelta(Channel.TEXT, "x", 1), DONE], 15.0)], Phases(2.0, 3.0, 0.0)),
        ([([DONE], 12.0)], Phases(2.0, 0.0, 0.0)),
    ],
)
def test_phases_of_a_reply_add_up_to_its_whole_time(
    batches: list[tuple[list[ReplyEvent], float]], phases: Phases
) -> None:
    progress = ReplyProgress(arrived=10.0, accepted=12.0)
    collector = ReplyCollector(progress)
    for events, now in batches:
        progress.note(events, now)
        collector.feed(events)
    assert progress.phases == collector.finish().phases == phases
