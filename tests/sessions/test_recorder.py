"""What a generation leaves in the log, token by token, whatever the ticks were and wherever it ends."""

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.session_core import END, PARAMS, fake_text, tokens_of

from superfluid.domain.events import (
    Body,
    Created,
    Event,
    Generated,
    GenerationFingerprint,
    GenerationPrompt,
    Message,
    ToolLease,
    ToolParseFailure,
    ToolUse,
)
from superfluid.domain.reply import Channel, Finish
from superfluid.domain.state import SessionState
from superfluid.errors import StoreUnavailableError
from superfluid.sessions.open_session import EndReason, OpenSession, TurnPhase
from superfluid.sessions.opening import turn_parser
from superfluid.sessions.recorder import TurnRecorder
from superfluid.store.interface import Origin, Write

CODEC = fake_text().codec
HEADER = tokens_of("<|im_start|>assistant\n")
CALL = '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'


class MemoryLog:
    """``Appender`` that keeps one entry an append, and fails when told to."""

    def __init__(self) -> None:
        self.appends: list[list[Body]] = []
        self.phases: list[TurnPhase | None] = []
        self.error: StoreUnavailableError | None = None

    def append(
        self,
        opened: OpenSession,
        bodies: Sequence[Body],
        *,
        extra: Sequence[Write] = (),
        phase: TurnPhase | None = None,
    ) -> "asyncio.Future[list[Event]]":
        future: asyncio.Future[list[Event]] = asyncio.get_running_loop().create_future()
        if self.error is not None:
            future.set_exception(self.error)
            return future
        events = []
        for body in bodies:
            event = Event(opened.state.events, 1, 0, body)
            opened.state.apply(event)
            events.append(event)
        self.appends.append(list(bodies))
        self.phases.append(phase)
        future.set_result(events)
        return future


class Reader:
    """A watcher that joins provisional text."""

    def __init__(self) -> None:
        self.provisional_text: list[tuple[int, str]] = []

    def committed(self, events: Sequence[Event]) -> None: ...

    def provisional(self, channel: Channel, text: str) -> None:
        self.provisional_text.append((channel, text))

    def ended(self, reason: EndReason) -> None: ...


class Recording:
    """A recorder at the beginning of a turn."""

    def __init__(self, state: SessionState | None = None, **settings: Any) -> None:
        if state is None:
            state = SessionState(1)
            bodies: tuple[Body, ...] = (
                Created(None, PARAMS),
                Message(1, "q", tokens_of("q")),
                GenerationPrompt(HEADER),
            )
            state.apply_all(Event(index, 1, 0, body) for index, body in enumerate(bodies))
        self.session = OpenSession(state, None, Origin.SESSION_API, 1, durable_events=state.events)
        self.reader = Reader()
        self.session.watchers.append(self.reader)
        self.log = MemoryLog()
        self.failures: list[Exception] = []
        self.recorder = TurnRecorder(
            self.log, self.session, turn_parser(state, (), CODEC), on_failed=self.failures.append, **settings
        )

    async def say(self, text: str) -> None:
        for token in tokens_of(text):
            await self.tick(token)

    async def tick(self, *tokens: int) -> None:
        self.recorder.feed(tokens)
        await asyncio.sleep(0)

    async def end(self, *tokens: int) -> None:
        """The last tick, with its end token."""
        self.recorder.feed((*tokens, *tokens_of(END)))
        await self.recorder.close(Finish.END_OF_TURN)

    @property
    def bodies(self) -> list[Body]:
        return [body for append in self.log.appends for body in append]

    @property
    def spans(self) -> list[int]:
        return [token for body in self.bodies for token in getattr(body, "span", ())]

    def text(self, channel: int) -> str:
        return "".join(b.text for b in self.bodies if isinstance(b, Generated) and b.channel == channel)


async def test_tick_is_one_record_with_finish_none_but_the_last() -> None:
    recording = Recording()
    await recording.say("ab")
    await recording.end()
    assert recording.log.appends == [
        [Generated(tokens_of("a"), "a", 0, 0)],
        [Generated(tokens_of("b"), "b", 0, 0)],
        [Generated(tokens_of(END), "", 0, Finish.END_OF_TURN)],
    ]


async def test_tick_with_two_channels_is_one_record_a_run() -> None:
    recording = Recording()
    await recording.tick(*tokens_of("<think>h</think>a"))
    assert recording.log.appends == [
        [Generated(tokens_of("<think>h</think>"), "h", 1, 0), Generated(tokens_of("a"), "a", 0, 0)]
    ]


async def test_character_split_over_ticks_is_text_of_the_record_that_completes_it() -> None:
    first, second = "é".encode()
    recording = Recording()
    await recording.tick(first)
    await recording.tick(second)
    assert recording.log.appends == [[Generated((first,), "", 0, 0)], [Generated((second,), "é", 0, 0)]]


async def test_character_that_is_never_completed_is_replaced_at_the_end_of_the_turn() -> None:
    recording = Recording()
    await recording.tick("é".encode()[0])
    await recording.end()
    assert recording.bodies[-1] == Generated(tokens_of(END), "�", 0, Finish.END_OF_TURN)
    assert recording.reader.provisional_text[-1] == (0, "�")


async def test_two_calls_in_a_row_are_two_tool_uses_behind_the_records_that_closed_them() -> None:
    recording = Recording()
    await recording.tick(*tokens_of(CALL + CALL))
    await recording.end()
    kinds = [type(body).__name__ for body in recording.bodies]
    assert kinds == ["Generated", "ToolUse", "Generated", "ToolUse", "Generated"]
    assert recording.bodies[1] == ToolUse("f", '{"a":1}')
    assert recording.bodies[-1] == Generated(tokens_of(END), "", 0, Finish.END_OF_TURN)


async def test_call_that_does_not_parse_is_kept_as_it_was_written() -> None:
    recording = Recording()
    await recording.say("<tool_call>nonsense</tool_call>")
    assert recording.bodies[-1] == ToolParseFailure("nonsense")


@pytest.mark.parametrize(
    ("written", "body"),
    [('{"name":"f","arguments":{}}', ToolUse("f", "{}")), ("{", ToolParseFailure("{")), ("", ToolParseFailure(""))],
)
async def test_call_still_open_at_the_end_of_the_turn_is_parsed_behind_the_finish(written: str, body: Body) -> None:
    recording = Recording()
    await recording.say("<tool_call>" + written)
    await recording.end()
    *_, finished, last = recording.bodies
    assert isinstance(finished, Generated)
    assert (finished.channel, finished.finish) == (2, Finish.END_OF_TURN)
    assert last == body


@pytest.mark.parametrize("finish", [Finish.CANCELLED, Finish.ERROR])
async def test_cancelled_or_failed_turn_ends_with_a_record_without_tokens_and_drops_an_open_call(
    finish: Finish,
) -> None:
    recording = Recording()
    await recording.say('a<tool_call>{"name":"f","arguments":{}}')
    await recording.recorder.close(finish)
    assert recording.log.appends[-1] == [Generated((), "", 2, finish)]
    assert not any(isinstance(body, ToolUse | ToolParseFailure) for body in recording.bodies)


async def test_cut_at_max_tokens_marks_the_last_record_and_leaves_the_call_to_be_continued() -> None:
    recording = Recording()
    await recording.say('<tool_call>{"na')
    recording.recorder.feed(tokens_of("m"))
    await recording.recorder.close(Finish.LENGTH)
    assert recording.bodies[-1] == Generated(tokens_of("m"), "m", 2, Finish.LENGTH)
    again = Recording(recording.session.state)
    await again.say('e":"f","arguments":{"a":1}}</tool_call>')
    assert again.bodies[-1] == ToolUse("f", '{"a":1}')


async def test_end_without_a_token_in_its_tick_gets_a_record_of_its_own() -> None:
    recording = Recording()
    await recording.say("a")
    await recording.recorder.close(Finish.LENGTH)
    assert recording.log.appends[-1] == [Generated((), "", 0, Finish.LENGTH)]


async def test_what_the_turn_begins_with_is_appended_at_once() -> None:
    recording = Recording()
    recording.recorder.open((1, 2), 99)
    recording.recorder.open((), None)
    assert recording.log.appends == [[GenerationFingerprint(99), GenerationPrompt((1, 2))]]


async def test_call_gets_its_lease_right_behind_it_naming_it() -> None:
    recording = Recording(lease_deadline_unix_ms=lambda: 77)
    await recording.tick(*tokens_of(CALL + CALL))
    leases = [(e, b.call_id) for e, b in enumerate(recording.bodies, 3) if isinstance(b, ToolLease)]
    calls = [e for e, b in enumerate(recording.bodies, 3) if isinstance(b, ToolUse)]
    assert leases == [(call + 1, call) for call in calls]
    assert len(calls) == 2


async def test_abandoned_turn_keeps_what_was_fed_in_the_same_tick_and_no_end() -> None:
    recording = Recording()
    recording.recorder.feed(tokens_of("ab"))
    await recording.recorder.abandon()
    await asyncio.sleep(0)
    assert recording.bodies == [Generated(tokens_of("ab"), "ab", 0, 0)]
    recording.recorder.feed(tokens_of("c"))
    await asyncio.sleep(0)
    assert len(recording.bodies) == 1


async def test_refused_record_is_reported_once_and_ends_the_recording() -> None:
    recording = Recording()
    recording.log.error = StoreUnavailableError("full")
    await recording.say("ab")
    assert recording.failures == [recording.log.error]
    recording.log.error = None
    await recording.say("c")
    assert recording.bodies == []


async def test_extra_writes_are_told_where_the_log_ends() -> None:
    recording = Recording()
    lengths: list[int] = []

    def extra(length: int) -> list[Write]:
        lengths.append(length)
        return []

    recording.recorder.feed(tokens_of(CALL + END))
    await recording.recorder.close(Finish.END_OF_TURN, extra)
    assert lengths == [recording.session.state.events]


pieces = st.sampled_from(
    ["a", "é", "日", "🙂", " ", "\n", "<think>", "</think>", "<tool_call>", "</tool_call>", '{"name":"f"}', CALL, "{"]
)
replies = st.lists(pieces, max_size=12).map("".join).map(tokens_of)


@given(replies, st.lists(st.integers(1, 4), min_size=1, max_size=8), st.integers(0, 60), st.sampled_from(list(Finish)))
@settings(deadline=None)
def test_spans_are_the_tokens_fed_wherever_the_reply_is_cut_and_continued(
    tokens: tuple[int, ...], ticks: list[int], cut: int, finish: Finish
) -> None:
    """And the texts, calls and channels are those of the uncut reply."""

    async def run() -> None:
        whole = Recording()
        await feed(whole, tokens)
        await whole.end()
        first = Recording()
        await feed(first, tokens[:cut])
        if finish not in (Finish.NONE, Finish.END_OF_TURN):
            await first.recorder.close(finish)
        assert first.spans == list(tokens[:cut])
        second = Recording(first.session.state)
        await feed(second, tokens[cut:])
        await second.end()
        assert first.spans + second.spans == whole.spans
        for channel in Channel:
            assert first.text(channel) + second.text(channel) == whole.text(channel)
        assert calls(first) + calls(second) == calls(whole)
        assert whole.session.state.tokens == second.session.state.tokens == array("i", second.session.state.tokens)

    async def feed(recording: Recording, rest: Sequence[int]) -> None:
        position = tick = 0
        while position < len(rest):
            size = ticks[tick % len(ticks)]
            await recording.tick(*rest[position : position + size])
            position, tick = position + size, tick + 1

    def calls(recording: Recording) -> list[Body]:
        return [body for body in recording.bodies if isinstance(body, ToolUse | ToolParseFailure)]

    asyncio.run(run())


@given(replies, st.integers(1, 5))
@settings(deadline=None)
def test_provisional_text_joined_is_the_committed_text_of_its_channels(tokens: tuple[int, ...], size: int) -> None:
    async def run() -> None:
        recording = Recording()
        for start in range(0, len(tokens), size):
            await recording.tick(*tokens[start : start + size])
        await recording.end()
        for channel in (Channel.TEXT, Channel.REASONING):
            shown = "".join(text for number, text in recording.reader.provisional_text if number == channel)
            assert shown == recording.text(channel)
        assert all(number != Channel.TOOL_CALL for number, _ in recording.reader.provisional_text)

    asyncio.run(run())


async def test_records_of_several_ticks_are_appended_together_at_moments_that_recorders_share() -> None:
    patient = [Recording(interval_seconds=0.05) for _ in range(2)]
    for recording in patient:
        recording.session.watchers.clear()
    for letter in "abc":
        for recording in patient:
            recording.recorder.feed(tokens_of(letter))
        await asyncio.sleep(0)
    assert [recording.log.appends for recording in patient] == [[], []]
    loop = asyncio.get_running_loop()
    while not patient[0].log.appends:  # noqa: ASYNC110  (the memory log has no event for it)
        await asyncio.sleep(0.001)
    assert [len(recording.log.appends) for recording in patient] == [1, 1]
    assert [body.text for body in patient[0].bodies if isinstance(body, Generated)] == ["abc"]
    patient[0].recorder.feed(tokens_of("d"))
    begun = loop.time()
    await patient[0].recorder.close(Finish.END_OF_TURN)
    assert loop.time() - begun < 0.05
    last = patient[0].bodies[-1]
    assert isinstance(last, Generated)
    assert last.finish == Finish.END_OF_TURN


async def test_records_of_a_watched_session_do_not_wait() -> None:
    recording = Recording(interval_seconds=3600.0)
    assert recording.session.watchers
    recording.recorder.feed(tokens_of("a"))
    await asyncio.sleep(0)
    assert len(recording.log.appends) == 1
