"""The records of Ollama's API: streamed lines and whole answers."""

from typing import Any

import msgspec
import pytest

from superfluid.domain.reply import (
    Channel,
    Finish,
    ReplyEvent,
    ReplyFinished,
    ReplyStarted,
    TextDelta,
    TokenAlternative,
    TokenLogprob,
    ToolCallArguments,
    ToolCallFinished,
    ToolCallStarted,
)
from superfluid.domain.request import GenerationRequest, TextPrompt
from superfluid.errors import EngineFaultError, MalformedCallError
from superfluid.http.collect import ReplyCollector, ReplyProgress
from superfluid.http.dialect import Answer, Opening
from superfluid.http.ollama_records import MESSAGE, PLAIN_RESPONSE, RESPONSE, OllamaExchange, RecordForm

OPENING = Opening(reply_id=9, model_id="m", created_unix=1_700_000_000, prompt_tokens=7)
HEAD = {"model": "m:latest", "created_at": "2023-11-14T22:13:20Z"}
ENDING = {
    "done": True,
    "done_reason": "stop",
    "total_duration": 10_000_000_000,
    "load_duration": 2_000_000_000,
    "prompt_eval_count": 7,
    "prompt_eval_cached_count": 5,
    "prompt_eval_duration": 3_000_000_000,
    "eval_count": 4,
    "eval_duration": 5_000_000_000,
}
FINISHED = ReplyFinished(Finish.END_OF_TURN, 7, 5, 4)
TALK: list[list[ReplyEvent]] = [
    [ReplyStarted(7, 5)],
    [TextDelta(Channel.REASONING, "hm", 1)],
    [TextDelta(Channel.TEXT, 'He"', 2), TextDelta(Channel.TEXT, "y", 3)],
    [FINISHED],
]
CALLS: list[list[ReplyEvent]] = [
    [TextDelta(Channel.TEXT, "so", 1), ToolCallStarted(0, "call_9", "f", 2), ToolCallArguments(0, '{"a":1}', 3)],
    [ToolCallFinished(0, "call_9", "f", '{"a":1}', True, 3), ToolCallFinished(1, "call_9_1", "g", "{}", True, 4)],
    [FINISHED],
]


def _exchange(form: RecordForm, *, logprobs: int | None = None, is_infill: bool = False) -> OllamaExchange:
    request = GenerationRequest(prompt=TextPrompt(text="x"), logprobs=logprobs)
    return OllamaExchange(
        model="m:latest", requests=(request,), is_stream=True, form=form, route="POST /x", is_infill=is_infill
    )


def _streamed(exchange: OllamaExchange, batches: list[list[ReplyEvent]]) -> list[dict[str, Any]]:
    """The records, of a reply that was accepted after 2 seconds, began after 5 and took 10."""
    progress = ReplyProgress(100.0, 102.0)
    writer = exchange.stream_writer(OPENING, progress)
    data = writer.begin()
    for batch in batches:
        progress.note(batch, 110.0 if batch is batches[-1] else 105.0)
        data += writer.feed(batch)
    assert data.endswith(b"}\n")
    return [msgspec.json.decode(line) for line in data.splitlines()]


def _answer(exchange: OllamaExchange, batches: list[list[ReplyEvent]]) -> Answer:
    progress = ReplyProgress(100.0, 102.0)
    collector = ReplyCollector(progress)
    for batch in batches:
        progress.note(batch, 110.0 if batch is batches[-1] else 105.0)
        collector.feed(batch)
    return exchange.answer(OPENING, [collector.finish()])


def _whole(exchange: OllamaExchange, batches: list[list[ReplyEvent]]) -> dict[str, Any]:
    record: dict[str, Any] = msgspec.json.decode(_answer(exchange, batches).body)
    return record


def _said(content: str, **members: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": content, **members}}


def test_chat_stream_is_records_with_thinking_and_text_and_one_that_tells_of_the_whole() -> None:
    assert _streamed(_exchange(MESSAGE), TALK) == [
        {**HEAD, **_said("", thinking="hm"), "done": False},
        {**HEAD, **_said('He"'), "done": False},
        {**HEAD, **_said("y"), "done": False},
        {**HEAD, **_said(""), **ENDING},
    ]


def test_chat_answer_is_one_record() -> None:
    answer = _answer(_exchange(MESSAGE), TALK)
    assert msgspec.json.decode(answer.body) == {**HEAD, **_said('He"y', thinking="hm"), **ENDING}
    assert answer.headers == ((b"x-superfluid-warm", b"5"),)


def test_generate_splits_thinking_off_and_raw_does_not() -> None:
    assert _whole(_exchange(RESPONSE), TALK) == {**HEAD, "response": 'He"y', "thinking": "hm", **ENDING}
    assert _whole(_exchange(PLAIN_RESPONSE), TALK) == {**HEAD, "response": 'hmHe"y', **ENDING}
    assert _answer(_exchange(PLAIN_RESPONSE), TALK).headers == ()
    streamed = _streamed(_exchange(RESPONSE), TALK)
    assert [record["response"] for record in streamed] == ["", 'He"', "y", ""]
    assert [record.get("thinking") for record in streamed] == ["hm", None, None, None]
    assert [record["response"] for record in _streamed(_exchange(PLAIN_RESPONSE), TALK)] == ["hm", 'He"', "y", ""]


def test_calls_are_whole_with_objects_as_arguments_in_the_record_before_the_last() -> None:
    calls = [
        {"id": "call_9", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}},
        {"id": "call_9_1", "function": {"index": 1, "name": "g", "arguments": {}}},
    ]
    assert _streamed(_exchange(MESSAGE), CALLS) == [
        {**HEAD, **_said("so"), "done": False},
        {**HEAD, **_said("", tool_calls=calls), "done": False},
        {**HEAD, **_said(""), **ENDING},
    ]
    assert _whole(_exchange(MESSAGE), CALLS) == {**HEAD, **_said("so", tool_calls=calls), **ENDING}


@pytest.mark.parametrize(
    ("arguments", "is_valid"), [('{"a":', False), ('{"a":NaN}', True), ('{"a":"\\ud800"}', True), ("[1]", True)]
)
def test_call_whose_arguments_are_no_json_object_is_an_error(arguments: str, is_valid: bool) -> None:
    batches: list[list[ReplyEvent]] = [[ToolCallFinished(0, "call_9", "f", arguments, is_valid, 3)], [FINISHED]]
    for deliver in (_streamed, _whole):
        with pytest.raises(MalformedCallError, match="call of f"):
            deliver(_exchange(MESSAGE), batches)


def test_text_beside_a_call_that_is_none_is_sent_before_the_error() -> None:
    progress = ReplyProgress()
    writer = _exchange(MESSAGE).stream_writer(OPENING, progress)
    batch: list[ReplyEvent] = [TextDelta(Channel.TEXT, "so", 1), ToolCallFinished(0, "call_9", "f", "{", False, 3)]
    batch.append(FINISHED)
    progress.note(batch)
    with pytest.raises(MalformedCallError) as failure:
        writer.feed(batch)
    records = [msgspec.json.decode(line) for line in writer.fail(failure.value).splitlines()]
    assert [list(record)[-1] for record in records] == ["done", "error"]


def test_end_by_the_cap_is_length() -> None:
    batches: list[list[ReplyEvent]] = [[ReplyFinished(Finish.LENGTH, 7, 5, 4)]]
    assert _streamed(_exchange(MESSAGE), batches)[-1]["done_reason"] == "length"


def test_logprobs_are_an_object_for_each_token() -> None:
    entry = TokenLogprob(TokenAlternative(5, b"Hi", -0.5), (TokenAlternative(6, b"a", -1.5),))
    batches: list[list[ReplyEvent]] = [[TextDelta(Channel.TEXT, "Hi", 1, (entry,))], [FINISHED]]
    top = [{"token": "a", "logprob": -1.5, "bytes": [97]}]
    logprobs = [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": top}]
    exchange = _exchange(MESSAGE, logprobs=1)
    first, last = _streamed(exchange, batches)
    assert (first["logprobs"], "logprobs" in last) == (logprobs, False)
    assert _whole(exchange, batches)["logprobs"] == logprobs


def test_filled_gap_says_how_it_came_about() -> None:
    finished = ReplyFinished(Finish.LENGTH, 7, 0, 2, is_expired=True)
    batches: list[list[ReplyEvent]] = [[TextDelta(Channel.TEXT, "upon", 2)], [finished]]
    record = _whole(_exchange(PLAIN_RESPONSE, is_infill=True), batches)
    assert (record["response"], record["done_reason"]) == ("", "length")
    assert record["superfluid"] == {"cached": False, "expired": True, "served_by": "m"}


def test_guesses_are_told_of() -> None:
    finished = ReplyFinished(Finish.END_OF_TURN, 7, 5, 4, guessed_tokens=4, right_guesses=3)
    record = _streamed(_exchange(MESSAGE), [[finished]])[-1]
    assert record["superfluid"] == {"spec": {"proposed": 4, "accepted": 3, "acceptance_rate": 0.75}}


def test_stream_that_fails_ends_with_the_error_alone() -> None:
    writer = _exchange(MESSAGE).stream_writer(OPENING, ReplyProgress())
    assert writer.fail(EngineFaultError("broken")) == b'{"error":"broken"}\n'


def test_answer_to_nothing_says_that_the_model_is_loaded() -> None:
    answer = _exchange(RESPONSE).answer(OPENING, [])
    assert msgspec.json.decode(answer.body) == {**HEAD, "response": "", "done": True, "done_reason": "load"}
